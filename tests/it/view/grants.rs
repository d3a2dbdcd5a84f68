//! Grants by flags: where they appear, what they allow, and which are refused.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{TempDir, fails, refused, succeeds, workspace};

/// A directory with one file in it, outside of any workspace.
fn data() -> (TempDir, PathBuf) {
    let dir = workspace();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "text").unwrap();
    (dir, data)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn read_only_grant_reads_and_does_not_write() {
    let (dir, (_data, data)) = (workspace(), data());
    for (flag, place) in
        [(text(&data).to_owned(), text(&data)), (format!("{}:/data", data.display()), "/data")]
    {
        assert_eq!(succeeds(dir.path(), &["--ro", &flag], &format!("cat {place}/file")), "text");
        for attempt in ["touch P/new", "echo x >> P/file", "rm -f P/file", "chmod 700 P"] {
            let attempt = attempt.replace('P', place);
            let said = fails(dir.path(), &["--ro", &flag], &attempt);
            assert!(said.contains("Read-only file system"), "{attempt}: {said}");
        }
    }
    assert!(!data.join("new").exists());
}

#[test]
fn read_write_grant_writes_to_the_host() {
    let (dir, (_data, data)) = (workspace(), data());
    succeeds(dir.path(), &["--rw", text(&data)], &format!("touch {}/own", data.display()));
    succeeds(dir.path(), &["--rw", &format!("{}:/d/e/f", data.display())], "touch /d/e/f/target");
    assert!(data.join("own").exists() && data.join("target").exists());
    let said = fails(dir.path(), &["--rw", &format!("{}:/d/e/f", data.display())], "touch /d/e/x");
    assert!(said.contains("Read-only file system"), "only the target is writable: {said}");
}

#[test]
fn single_file_is_granted_without_its_directory() {
    let (dir, (_data, data)) = (workspace(), data());
    fs::write(data.join("beside"), "secret").unwrap();
    let file = data.join("file");
    assert_eq!(succeeds(dir.path(), &["--ro", text(&file)], &format!("ls -A {}", data.display())), "file");
    assert!(
        fails(dir.path(), &["--ro", text(&file)], &format!("echo x > {}", file.display()))
            .contains("Read-only")
    );
    succeeds(dir.path(), &["--rw", &format!("{}:/f", file.display())], "printf new > /f");
    assert_eq!(fs::read_to_string(file).unwrap(), "new");
}

#[test]
fn granted_fifo_carries_bytes_out() {
    let dir = workspace();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut reader = Command::new("cat").arg(&fifo).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let inner = workspace();
    succeeds(inner.path(), &["--rw", &format!("{}:/fifo", fifo.display())], "echo through > /fifo");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut reader.stdout.take().unwrap(), &mut said).unwrap();
    assert!(reader.wait().unwrap().success() && said == "through\n", "{said}");
}

#[test]
fn grant_through_a_link_shows_under_both_names() {
    let (dir, (outer, data)) = (workspace(), data());
    let link = outer.path().join("link");
    symlink("data", &link).unwrap();
    let script = format!("cat {}/file {}/file", link.display(), data.display());
    assert_eq!(succeeds(dir.path(), &["--ro", text(&link)], &script), "texttext");
}

#[test]
fn grant_that_is_not_there_is_refused_with_a_remedy() {
    let dir = workspace();
    symlink("absent", dir.path().join("dangling")).unwrap();
    for flag in ["--ro", "--rw"] {
        for path in ["/absent", "dangling"] {
            let said = refused(dir.path(), &[flag, path]);
            assert!(said.contains(&format!("grant {path}: No such file or directory")), "{said}");
            assert!(said.contains("hint: grant a path that exists"), "{said}");
        }
    }
}

#[test]
fn processes_of_the_host_cannot_be_granted() {
    let dir = workspace();
    symlink("/proc", dir.path().join("proc")).unwrap();
    symlink("/proc/self/root", dir.path().join("self")).unwrap();
    for path in ["/proc", "/proc/1", "/proc/self/root/etc", "/usr/../proc", "//proc/."] {
        for flag in ["--ro", "--rw"] {
            let said = refused(dir.path(), &[flag, path]);
            assert!(
                said.contains("the sandbox has its own /proc; that of the host is never shown"),
                "{said}"
            );
        }
    }
    for path in ["proc", "self"] {
        let said = refused(dir.path(), &["--ro", &format!("{path}:/x")]);
        assert!(
            said.contains("cannot be granted") && said.contains("the sandbox has its own /proc"),
            "{said}"
        );
    }
    for target in ["/proc", "/proc/x", "/"] {
        let said = refused(dir.path(), &["--ro", &format!("/usr:{target}")]);
        assert!(said.contains(&format!("--ro `{target}`: ")), "{said}");
    }
    let said = refused(dir.path(), &["--rw", "relative:target"]);
    assert!(said.contains("--rw `relative:target`: expected PATH"), "{said}");
    assert!(refused(dir.path(), &["--rw", "/sys:/s"]).contains("/sys can only be shown read-only"));
}

#[test]
fn conflicting_grants_are_refused_by_both_names() {
    let (dir, (outer, data)) = (workspace(), data());
    let other = outer.path().join("other");
    fs::create_dir(&other).unwrap();
    let (data, other) = (text(&data), text(&other));
    let at = |path: &str| format!("{path}:/x");
    let said = refused(dir.path(), &["--ro", data, "--rw", data]);
    assert!(said.contains(&format!("conflict at {data}: ro {data} and rw {data}; keep one")), "{said}");
    let said = refused(dir.path(), &["--ro", &at(data), "--ro", &at(other)]);
    assert!(said.contains(&format!("conflict at /x: ro {data} and ro {other}; keep one")), "{said}");
    let said = refused(dir.path(), &["--ro", &at(data), "--tmpfs", "/x"]);
    assert!(said.contains(&format!("conflict at /x: ro {data} and tmpfs; keep one")), "{said}");
    let said = refused(dir.path(), &["--tmpfs", "/x:4M", "--tmpfs", "/x:8M"]);
    assert!(said.contains("conflict at /x: tmpfs of 4M and tmpfs of 8M; keep one"), "{said}");
    assert_eq!(
        succeeds(dir.path(), &["--ro", data, "--ro", data], &format!("cat {data}/file")),
        "text",
        "said twice"
    );
}

#[test]
fn two_names_of_one_directory_are_refused_as_conflicting_grants() {
    let (dir, (outer, data)) = (workspace(), data());
    let link = outer.path().join("link");
    symlink("data", &link).unwrap();
    let said = refused(dir.path(), &["--ro", text(&data), "--rw", text(&link)]);
    assert!(said.contains(text(&data)) && said.contains("hint: keep one of the two"), "{said}");
    assert!(said.contains("read-write grant") && said.contains("read-only grant"), "{said}");
    let said = refused(dir.path(), &["--ro", text(dir.path())]);
    assert!(said.contains("workspace") && said.contains("hint:"), "the workspace is read-write: {said}");
}

#[test]
fn malformed_grants_are_refused_with_the_right_form() {
    let dir = workspace();
    for (flags, words) in [
        (["--ro", ""], "expected PATH or PATH:TARGET"),
        (["--ro", ":/x"], "expected PATH or PATH:TARGET"),
        (["--rw", "/usr:relative"], "the target absolute"),
        (["--rw", "/usr:/a:/b"], "a path with a colon goes into a file"),
        (["--ro", "/usr:/a/../b"], "must not contain `..`"),
        (["--tmpfs", "relative"], "absolute path"),
        (["--tmpfs", "/x:much"], "--tmpfs `much`: expected"),
        (["--tmpfs", "/x:0"], "--tmpfs `0`: expected"),
    ] {
        let said = refused(dir.path(), &flags);
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}
