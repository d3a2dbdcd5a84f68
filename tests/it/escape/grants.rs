//! Attempts to write read-only grants, and to swap the source of a grant.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{check, check_outside, command, lines};
use crate::support::{attempt, is_root, payload_path, shell, stderr, stdout, until, workspace};

#[test]
fn a_read_only_grant_stays_as_it_is() {
    let (ws, other) = (workspace(), workspace());
    let file = other.path().join("f");
    fs::write(&file, "kept").unwrap();
    fs::create_dir(other.path().join("d")).unwrap();
    let before = fs::metadata(&file).unwrap();
    let dir = other.path().display().to_string();
    let owned = [
        (format!("open s:{dir}/f 1"), "EROFS"),
        (format!("open s:{dir}/f 2"), "EROFS"),
        (format!("open s:{dir}/f 0x200"), "EROFS"),
        (format!("truncate s:{dir}/f 0"), "EROFS"),
        (format!("creat s:{dir}/new 0x1a4"), "EROFS"),
        (format!("open s:{dir} 0x410002 0x1a4"), "EROFS"), // O_TMPFILE
        (format!("mkdir s:{dir}/new 0x1ff"), "EROFS"),
        (format!("symlink s:/x s:{dir}/new"), "EROFS"),
        (format!("mknod s:{dir}/new 0x11a4 0"), "EROFS"),
        (format!("link s:{dir}/f s:{dir}/new"), "EROFS"),
        (format!("rename s:{dir}/f s:{dir}/new"), "EROFS"),
        (format!("rename s:{dir}/f s:mine"), "EXDEV"),
        (format!("unlink s:{dir}/f"), "EROFS"),
        (format!("rmdir s:{dir}/d"), "EROFS"),
        (format!("chmod s:{dir}/f 0x1ff"), "EROFS"),
        (format!("chown s:{dir}/f -1 -1"), "EROFS"),
        (format!("utimensat -100 s:{dir}/f 0 0"), "EROFS"),
        (format!("setxattr s:{dir}/f s:user.x s:y 1 0"), "EROFS"),
        (format!("open s:{dir}/f 0"), "ok"),
        ("fchmod $ 0x1ff".to_owned(), "EROFS"),
        ("fsetxattr $ s:user.x s:y 1 0".to_owned(), "EROFS"),
        ("ftruncate $ 0".to_owned(), "EINVAL"),
        ("openat -100 s:/proc/self/fd/3 1".to_owned(), "EROFS"),
    ];
    let expected: Vec<_> = owned.iter().map(|(call, errno)| (call.as_str(), *errno)).collect();
    check(ws.path(), &["--ro", &dir], &expected);
    let after = fs::metadata(&file).unwrap();
    assert_eq!((after.mode(), after.mtime_nsec(), after.ctime_nsec()), {
        (before.mode(), before.mtime_nsec(), before.ctime_nsec())
    });
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    check(ws.path(), &["--rw", &dir], &[(&format!("creat s:{dir}/new 0x1a4"), "ok")]);
    check_outside(&[(&format!("open s:{dir}/f 1"), "ok")]);
}

#[test]
fn opening_a_file_never_waits_for_a_command() {
    let (ws, data) = (workspace(), workspace());
    fs::write(data.path().join("f"), "kept").unwrap();
    let dir = data.path().display().to_string();
    let open = format!("open s:{dir}/f 0");
    let calls = |answer| [(open.as_str(), "ok"), ("fcntl $ 1024 0", answer), ("fcntl $ 1025 0", "ok")];
    check(ws.path(), &["--ro", &dir], &calls("EPERM"));
    check_outside(&calls("ok"));
}

#[test]
fn a_read_only_workspace_stays_as_it_is() {
    let ws = workspace();
    fs::write(ws.path().join("f"), "kept").unwrap();
    let calls = [
        ("open s:f 1", "EROFS"),
        ("creat s:new 0x1a4", "EROFS"),
        ("chmod s:f 0x1ff", "EROFS"),
        ("unlink s:f", "EROFS"),
        ("openat -100 s:f 0", "ok"),
        ("fchmod $ 0x1ff", "EROFS"),
    ];
    check(ws.path(), &["--profile", "read-only"], &calls);
    assert_eq!(fs::read_to_string(ws.path().join("f")).unwrap(), "kept");
}

#[test]
fn the_system_and_the_root_stay_as_they_are() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("creat s:/new 0x1a4", "EROFS"),
            ("mkdir s:/new 0x1ff", "EROFS"),
            ("unlink s:/usr/bin/env", "EROFS"),
            ("open s:/usr/bin/env 1", if is_root() { "EROFS" } else { "EACCES" }),
            ("chmod s:/usr 0x1ff", "EROFS"),
            ("creat s:/etc/new 0x1a4", "EROFS"),
            ("open s:/etc/passwd 1", "EROFS"),
            ("unlink s:/etc/hosts", "EROFS"),
            ("rename s:/etc s:/etc2", "EROFS"),
            ("creat s:/dev/new 0x1a4", "EROFS"),
            ("unlink s:/dev/null", "EROFS"),
            ("creat s:/run/new 0x1a4", "EROFS"),
            ("creat s:/var/new 0x1a4", "EROFS"),
            ("rmdir s:/tmp", "EROFS"),
            ("rename s:/tmp s:/usr", "EROFS"),
            ("creat s:/proc/new 0x1a4", "ENOENT"),
            ("chmod s:/payload 0x1ff", "EROFS"),
            ("creat s:/tmp/new 0x1a4", "ok"),
            ("creat s:/dev/shm/new 0x1a4", "ok"),
        ],
    );
    assert!(!fs::exists("/new").unwrap());
}

#[test]
fn one_grant_is_not_renamed_into_another() {
    let (ws, other) = (workspace(), workspace());
    fs::write(ws.path().join("f"), "").unwrap();
    let dir = other.path().display().to_string();
    let own = ws.path().display().to_string();
    check(
        ws.path(),
        &["--rw", &dir],
        &[
            (&format!("rename s:f s:{dir}/f"), "EXDEV"),
            (&format!("link s:f s:{dir}/f"), "EXDEV"),
            ("rename s:f s:/tmp/f", "EXDEV"),
            (&format!("rename s:{own} s:/tmp/x"), "EBUSY"),
            (&format!("rename s:{dir} s:{own}/x"), "EXDEV"),
            (&format!("rmdir s:{dir}"), "EBUSY"),
            (&format!("renameat2 -100 s:{own} -100 s:{dir} 2"), "EBUSY"),
        ],
    );
    assert!(other.path().is_dir());
}

/// Another process swaps a directory on the path to a grant for a link while sandboxes start. Each sandbox
/// shows the directory that Kennel looked at, read-only, or does not start.
#[test]
fn a_source_swapped_meanwhile_is_never_writable() {
    let (ws, other) = (workspace(), workspace());
    let target = workspace();
    fs::write(target.path().join("secret"), "s").unwrap();
    let data = other.path().join("parent/data");
    fs::create_dir_all(&data).unwrap();
    fs::create_dir(other.path().join("aside")).unwrap();
    symlink(target.path(), other.path().join("aside/data")).unwrap();
    let names = ["parent", "aside"].map(|name| other.path().join(name).display().to_string());
    let mut flipper = Command::new(payload_path())
        .args(["flip", &names[0], &names[1], "3000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_millis(2500);
    let grant = format!("{}:/data", data.display());
    let (mut shown, mut refused) = (0, 0);
    while Instant::now() < end {
        let calls = "call creat s:/data/written 0x1a4 + open s:/data/secret 0";
        let calls = calls.split_whitespace().collect::<Vec<_>>();
        let output = command(ws.path(), &["-q", "--ro", &grant], &calls).output().unwrap();
        match lines(&output).as_slice() {
            [create, _] => {
                assert_eq!(create, "EROFS");
                shown += 1;
            }
            _ => {
                assert_eq!(output.status.code(), Some(125), "{output:?}");
                refused += 1;
            }
        }
    }
    flipper.wait().unwrap();
    assert!(shown > 0, "{shown} shown, {refused} refused");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1);
}

#[test]
fn a_grant_swapped_while_the_command_runs_stays_the_same() {
    let (ws, other) = (workspace(), workspace());
    let data = other.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("f"), "granted").unwrap();
    let (go, path) = (ws.path().join("go"), data.display().to_string());
    let script = format!("echo up; touch ready; while [ ! -e go ]; do sleep 0.01; done; cat {path}/f");
    let child = Command::new(crate::support::kennel_path())
        .current_dir(ws.path())
        .args(["run", "--ro", &path, "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("it runs", || ws.path().join("ready").exists());
    fs::rename(&data, other.path().join("moved")).unwrap();
    symlink("/etc", &data).unwrap();
    fs::write(&go, "").unwrap();
    assert_eq!(lines(&child.wait_with_output().unwrap()), ["up", "granted"]);
}

#[test]
fn fifos_and_sockets_of_the_workspace_harm_nobody() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("mknod s:fifo 0x11a4 0", "ok"),
            ("mknod s:socket 0xc1a4 0", "ok"),
            ("open s:fifo 0x802", "ok"),
            ("open s:socket 0", "ENXIO"),
            ("mkdir s:.git 0x1ed", "ok"),
            ("mknod s:.git/config 0x11a4 0", "ok"),
            ("mknod s:.git/hooks 0x11a4 0", "ok"),
        ],
    );
    // Neither the recheck of protected paths nor the next start blocks on opening them.
    assert!(!fs::exists(ws.path().join(".git/hooks")).unwrap());
    assert_eq!(attempt(ws.path(), &["--timeout", "10s"], "call", &["open", "s:/dev/null", "0"]), "ok");
}

/// The command makes a link to the path that the user's next sandbox will be granted.
#[test]
fn a_link_of_a_command_cannot_be_granted() {
    let (ws, other) = (workspace(), workspace());
    fs::write(other.path().join("secret"), "secret").unwrap();
    fs::create_dir(ws.path().join("docs")).unwrap();
    let secret = format!("cat {}/secret", other.path().display());
    let granted =
        |flags: &[&str]| shell(ws.path(), flags, &format!("{secret} || cat docs/secret || cat /d/secret"));
    for flags in [&["--ro", "docs"][..], &["--rw", "docs"], &["--ro", "docs:/d"], &["--ro", "./docs/../docs"]]
    {
        assert!(!stdout(&granted(flags)).contains("secret"), "it is a directory of the workspace");
    }
    let plant = format!("rmdir docs; ln -s {} docs; ln -s docs again", other.path().display());
    assert!(shell(ws.path(), &[], &plant).status.success());
    for flags in [
        &["--ro", "docs"][..],
        &["--rw", "docs"],
        &["--ro", "docs:/d"],
        &["--ro", "again"],
        &["--ro", "docs/secret"],
    ] {
        let output = granted(flags);
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(125), String::new()),
            "{flags:?}: {output:?}"
        );
        let said = stderr(&output);
        assert!(said.contains("commands could have made the link that leads there"), "{flags:?}: {said}");
        assert!(said.contains(&format!("name the place it leads to, {}", other.path().display())), "{said}");
    }
    let by_name = other.path().to_str().unwrap();
    assert_eq!(stdout(&granted(&["--ro", by_name])), "secret", "the user can name it");
}

/// There the path would be visible a second time, without its protection.
#[test]
fn a_link_of_a_command_opens_no_protected_path() {
    let ws = workspace();
    fs::create_dir_all(ws.path().join(".git/hooks")).unwrap();
    fs::create_dir(ws.path().join("keep")).unwrap();
    for (to, flags) in [
        (".git/hooks", &["--rw", "build"][..]),
        (".git/hooks", &["--rw", "build:/x"]),
        ("keep", &["--protect", "keep", "--rw", "build:/x"]),
        ("keep", &["--ro", "keep", "--rw", "build:/x"]),
        ("keep", &["--mask", "keep", "--ro", "build:/x"]),
    ] {
        assert!(shell(ws.path(), &[], &format!("ln -sfn {to} build")).status.success());
        let output = shell(ws.path(), flags, "touch build/x /x/x");
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
        assert!(stderr(&output).contains("commands could have made the link"), "{output:?}");
    }
    assert!(fs::read_dir(ws.path().join(".git/hooks")).unwrap().next().is_none());
}
