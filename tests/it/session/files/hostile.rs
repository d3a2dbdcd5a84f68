//! Files that commands may have left there.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
};

use kennel::{Error, files::FileKind};

use super::{errno, in_time, names, session, shell, workspace};
use crate::support::only_once;

#[tokio::test]
async fn links_lead_only_to_files_that_commands_see() {
    let (dir, victim) = (workspace(), workspace());
    let secret = victim.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let session = session(dir.path()).await;
    let up = "../".repeat(40);
    let targets = [
        secret.display().to_string(),
        format!("{up}{}", secret.display()),
        format!("/proc/self/root{}", secret.display()),
        format!("/proc/1/root{}", secret.display()),
        format!("/proc/self/cwd/{up}{}", secret.display()),
        "/proc/self/fd/3".to_owned(),
        "/etc/shadow".to_owned(),
        format!("{up}etc/shadow"),
        "/proc/1/mem".to_owned(),
        "loop".to_owned(),
    ];
    for target in targets {
        let link = dir.path().join("loop");
        symlink(&target, &link).unwrap();
        for path in ["loop", "loop/", "loop/x", "./loop"] {
            errno(in_time(session.read(path)).await);
            let written = errno(in_time(session.write(path, "x")).await);
            assert_ne!(written, libc::EEXIST, "{target}");
            errno(in_time(session.mkdir(path)).await);
        }
        errno(session.stat("loop").await);
        errno(session.list("loop").await);
        session.remove("loop").await.unwrap();
        symlink(victim.path(), &link).unwrap();
        for path in ["loop/secret", "loop/new"] {
            errno(session.read(path).await);
            errno(session.write(path, "x").await);
            errno(session.remove(path).await);
            errno(session.mkdir(path).await);
        }
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert_eq!(names(victim.path()), ["secret"]);
    assert!(names(dir.path()).is_empty());
}

#[tokio::test]
async fn links_lead_where_they_would_lead_inside() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let inside = shell(&session, "cat /etc/passwd").await;
    shell(&session, "ln -s /etc/passwd abs; ln -s $PWD/file self; ln -s self twice; ln -s missing dangling")
        .await;
    assert_eq!(session.read("abs").await.unwrap(), inside.as_bytes(), "and not the host's");
    assert_ne!(fs::read_to_string("/etc/passwd").unwrap(), inside);
    assert_eq!(errno(session.write("abs", "x").await), libc::EROFS);
    session.write("twice", "through two links").await.unwrap();
    session.write("dangling", "made").await.unwrap();
    assert_eq!(names(dir.path()), ["abs", "dangling", "file", "missing", "self", "twice"]);
    assert!(fs::symlink_metadata(dir.path().join("twice")).unwrap().is_symlink());
    assert_eq!(session.read("self").await.unwrap(), b"through two links");
}

#[tokio::test]
async fn another_name_of_a_file_keeps_its_contents() {
    let (dir, victim) = (workspace(), workspace());
    let secret = victim.path().join("file");
    fs::write(&secret, "old").unwrap();
    fs::hard_link(&secret, dir.path().join("file")).unwrap();
    let session = session(dir.path()).await;
    session.write("file", "new").await.unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"old");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"new");
}

#[tokio::test]
async fn special_files_are_neither_opened_nor_replaced() {
    let dir = workspace();
    let session = session(dir.path()).await;
    shell(&session, "mkfifo fifo; ln -s fifo link").await;
    let _listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    for path in ["fifo", "socket", "link"] {
        assert_eq!(errno(in_time(session.read(path)).await), libc::EOPNOTSUPP, "{path}");
        assert_eq!(errno(in_time(session.open_read(path)).await), libc::EOPNOTSUPP, "{path}");
        assert_eq!(errno(in_time(session.write(path, "x")).await), libc::EOPNOTSUPP, "{path}");
        assert_eq!(errno(in_time(session.list(path)).await), libc::ENOTDIR, "{path}");
        assert_eq!(in_time(session.stat(path)).await.unwrap().kind, FileKind::Other, "{path}");
    }
    let copied = in_time(session.copy_in(dir.path().join("fifo"), "new")).await;
    assert!(matches!(copied, Err(Error::Io { .. })), "{copied:?}");
    session.remove("fifo").await.unwrap();
    assert_eq!(names(dir.path()), ["link", "socket"]);
}

#[tokio::test]
async fn a_huge_file_is_not_read_into_memory() {
    let dir = workspace();
    let session = session(dir.path()).await;
    shell(&session, "truncate -s 1T huge").await;
    assert_eq!(errno(in_time(session.read("huge")).await), libc::EFBIG);
    assert_eq!(session.stat("huge").await.unwrap().size, 1 << 40);
    session.write("huge", "small").await.unwrap();
    assert_eq!(session.read("huge").await.unwrap(), b"small");
}

#[tokio::test]
async fn a_directory_with_too_many_names_is_not_listed() {
    only_once!();
    let dir = workspace();
    fs::create_dir(dir.path().join("many")).unwrap();
    fs::write(dir.path().join("many/0"), "").unwrap();
    let session = session(dir.path()).await;
    for number in 1..=100_000 {
        fs::hard_link(dir.path().join("many/0"), dir.path().join(format!("many/{number}")))
            .or_else(|_| {
                // As many links as the file system allows for one file.
                fs::write(dir.path().join(format!("many/{number}")), "")
            })
            .unwrap();
    }
    assert_eq!(errno(session.list("many").await), libc::E2BIG);
    fs::remove_file(dir.path().join("many/7")).unwrap();
    assert_eq!(session.list("many").await.unwrap().len(), 100_000);
}
