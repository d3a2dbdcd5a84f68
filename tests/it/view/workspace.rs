//! The workspace: its own path, links to it, and directories that cannot be one.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use crate::support::{TempDir, fails, kennel, only_as_user, refused, stdout, succeeds, workspace};

#[test]
fn workspace_is_writable_at_its_own_path_and_the_host_sees_it() {
    let dir = workspace();
    let script =
        "pwd -P; echo text > out.txt; mkdir -p a/b; ln -s out.txt link; chmod 751 a; mv a/b a/c; rm link";
    assert_eq!(succeeds(dir.path(), &[], script), dir.path().to_str().unwrap());
    assert_eq!(fs::read_to_string(dir.path().join("out.txt")).unwrap(), "text\n");
    let made = fs::metadata(dir.path().join("a")).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o751);
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!(made.uid(), own, "what is made inside belongs to the caller");
    assert!(dir.path().join("a/c").is_dir() && !dir.path().join("link").exists());
}

#[test]
fn workspace_by_flag_is_where_the_command_starts() {
    let (here, there) = (workspace(), workspace());
    let flags = ["--workspace", there.path().to_str().unwrap()];
    assert_eq!(succeeds(here.path(), &flags, "pwd -P"), there.path().to_str().unwrap());
    let said = fails(here.path(), &flags, &format!("ls {}", here.path().display()));
    assert!(said.contains("No such file or directory"), "the current directory is not granted then: {said}");
}

#[test]
fn relative_workspace_is_taken_from_the_current_directory() {
    let dir = workspace();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    for given in ["a/b", "./a/b", "a/../a/b", "a//b/."] {
        let inside = succeeds(dir.path(), &["--workspace", given], "pwd -P");
        assert_eq!(inside, dir.path().join("a/b").to_str().unwrap(), "{given}");
    }
    succeeds(dir.path(), &["--workspace", "a/b"], "touch ../x");
    assert!(!dir.path().join("a/x").exists(), "what lies around it is the private /tmp");
}

#[test]
fn read_only_profile_reads_and_does_not_write() {
    let dir = workspace();
    fs::write(dir.path().join("file"), "text").unwrap();
    let flags = ["--profile", "read-only"];
    assert_eq!(succeeds(dir.path(), &flags, "cat file"), "text");
    for attempt in
        ["touch new", "echo x >> file", "rm -f file", "mkdir new", "mv file other", "chmod 600 file"]
    {
        let said = fails(dir.path(), &flags, attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "text");
    succeeds(dir.path(), &flags, "touch /tmp/x");
}

#[test]
fn linked_workspace_has_both_names_inside() {
    let dir = workspace();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::create_dir(&real).unwrap();
    fs::write(real.join("file"), "text").unwrap();
    symlink("real", &link).unwrap();
    let flags = ["--workspace", link.to_str().unwrap()];
    let script = format!(
        "pwd -P; cat {0}/file {1}/file; echo; touch {0}/by-real {1}/by-link",
        real.display(),
        link.display()
    );
    assert_eq!(succeeds(dir.path(), &flags, &script), format!("{}\ntexttext", real.display()));
    assert!(real.join("by-real").exists() && real.join("by-link").exists());
}

#[test]
fn names_of_workspaces_are_bytes_and_not_syntax() {
    let dir = workspace();
    let long = "n".repeat(255);
    for name in
        ["with space", "new\nline", "quo'te\"s", "ünï→", "a:b", "-dash", "$(x)", "back\\slash", "%s", &long]
    {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        succeeds(&path, &[], "echo x > file");
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "x\n", "{name:?}");
    }
    let deep = (0..60).fold(dir.path().to_owned(), |path, _| path.join("d"));
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(succeeds(&deep, &[], "pwd -P"), deep.to_str().unwrap());
}

#[test]
fn name_that_is_not_utf8_works() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let dir = workspace();
    let path = dir.path().join(OsStr::from_bytes(b"latin-\xe9"));
    fs::create_dir(&path).unwrap();
    let output = kennel(&path, &[], &["sh", "-c", "touch file; pwd -P"]).output().unwrap();
    assert!(output.status.success() && path.join("file").exists(), "{output:?}");
    assert!(output.stdout.ends_with(b"latin-\xe9\n"), "{}", stdout(&output));
}

#[test]
fn invalid_workspaces_are_refused_with_a_remedy() {
    let dir = workspace();
    fs::write(dir.path().join("file"), "").unwrap();
    symlink("absent", dir.path().join("dangling")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    symlink("/", dir.path().join("to-root")).unwrap();
    symlink("/etc", dir.path().join("to-etc")).unwrap();
    symlink("/proc", dir.path().join("to-proc")).unwrap();
    let missing = "kennel: hint: name an existing directory with --workspace";
    let system = "a directory of the system cannot be a workspace";
    for (given, cause, remedy) in [
        ("absent", "/absent: No such file or directory", missing),
        ("dangling", "/dangling: No such file or directory", missing),
        ("loop", "/loop: Too many", missing),
        ("file", "/file: not a directory", "kennel: hint: name a directory with --workspace"),
        ("file/x", "/file/x: Not a directory", missing),
        ("to-root", system, "work in a directory of your own"),
        ("to-etc", system, "work in a directory of your own"),
        ("to-proc", system, "work in a directory of your own"),
        ("/etc", system, "work in a directory of your own"),
        ("/usr", system, "work in a directory of your own"),
        ("/dev", system, "work in a directory of your own"),
        ("/run", system, "work in a directory of your own"),
        ("/", "workspace `/`: ", "name a directory below it"),
        ("/proc", "workspace `/proc`: ", "the sandbox has its own /proc"),
        ("/proc/self/cwd", "workspace `/proc/self/cwd`: ", "the sandbox has its own /proc"),
    ] {
        let said = refused(dir.path(), &["--workspace", given]);
        assert!(
            said.contains("workspace") && said.contains(cause) && said.contains(remedy),
            "{given}: {said}"
        );
    }
}

#[test]
fn unreadable_workspace_is_refused_with_a_remedy() {
    only_as_user!();
    let dir = workspace();
    let path = dir.path().join("closed");
    fs::create_dir(&path).unwrap();
    for mode in [0o000, 0o300] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let said = refused(dir.path(), &["--workspace", "closed"]);
        assert!(said.contains("/closed: Permission denied"), "{said}");
        assert!(said.contains("hint: run as a user who may read the workspace"), "{said}");
    }
    fs::set_permissions(&path, Permissions::from_mode(0o500)).unwrap();
    assert!(
        fails(&path, &[], "touch x").contains("Permission denied"),
        "a grant is no more than the caller has"
    );
}

#[test]
fn current_directory_that_was_removed_is_refused() {
    let dir = workspace();
    let script = format!(
        "mkdir gone && cd gone && rmdir ../gone && {} run -- true",
        crate::support::kennel_path().display()
    );
    let output =
        std::process::Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = crate::support::stderr(&output);
    assert!(said.contains("kennel: workspace .: No such file or directory"), "{said}");
    assert!(said.contains("kennel: hint: name an existing directory with --workspace"), "{said}");
}

#[test]
fn workspace_grants_and_home_can_lie_in_var_tmp() {
    let place = TempDir::new("kennel-test-", "/var/tmp");
    let (dir, path) = (workspace(), place.path().to_str().unwrap());
    succeeds(place.path(), &[], "touch made");
    assert!(place.path().join("made").exists());
    assert_eq!(succeeds(dir.path(), &["--ro", path], &format!("ls {path}")), "made");
    let output = kennel(dir.path(), &[], &["sh", "-c", "touch ~/x"]).env("HOME", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
