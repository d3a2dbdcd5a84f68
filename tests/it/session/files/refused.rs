//! These calls do nothing that a command could not do.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
};

use kennel::{Limits, Session, Size, TmpLife};

use super::{errno, in_time, names, shell, workspace};
use crate::support::{World, is_root, only_as_root};

#[tokio::test]
async fn read_only_files_stay_the_same() {
    let world = World::new();
    fs::write(world.at("file"), "x").unwrap();
    let session = world.session().await;
    for path in ["/x", "/usr/x", "/etc/x", "/etc/passwd", "/dev/x", "/usr/bin/env"] {
        assert_eq!(errno(session.write(path, "x").await), libc::EROFS, "write {path}");
    }
    for path in ["/usr/bin/env", "/etc/passwd", "/usr", world.path().to_str().unwrap()] {
        assert!([libc::EROFS, libc::EBUSY].contains(&errno(session.remove(path).await)), "remove {path}");
    }
    assert_eq!(errno(session.mkdir("/usr/x").await), libc::EROFS);
    let host = world.at("file");
    assert_eq!(errno(session.copy_in(&host, "/usr/x").await), libc::EROFS);
    assert_eq!(errno(session.open_write("/usr/x").await), libc::EROFS);
    assert!(!fs::exists("/usr/x").unwrap() && fs::exists("/usr/bin/env").unwrap());
    assert!(session.read("/usr/bin/env").await.unwrap().starts_with(b"\x7fELF"));
}

#[tokio::test]
async fn hidden_files_do_not_exist() {
    let world = World::new();
    let session = world.session().await;
    for path in ["/root", "/boot", "/srv", "/etc/shadow", "/var/log"] {
        let answer = session.read(format!("{path}/x")).await;
        assert!([libc::ENOENT, libc::ENOTDIR].contains(&errno(answer)), "{path}");
    }
    assert_eq!(errno(session.read("/etc/shadow").await), libc::ENOENT);
}

#[tokio::test]
async fn masked_files_are_neither_read_nor_replaced() {
    let world = World::new();
    fs::write(world.at(".env"), "SECRET=1").unwrap();
    fs::create_dir(world.at("keys")).unwrap();
    fs::write(world.at("keys/one"), "SECRET=2").unwrap();
    let policy = world.policy().mask(world.at(".env")).mask(world.at("keys"));
    let session = Session::prepare(&policy).await.unwrap();
    assert_eq!(errno(session.read(".env").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.write(".env", "x").await), libc::EROFS);
    assert_eq!(errno(session.remove(".env").await), libc::EROFS);
    assert_eq!(errno(session.remove("keys").await), libc::EROFS);
    assert_eq!(errno(session.read("keys/one").await), libc::ENOENT);
    assert_eq!(errno(session.write("keys/one", "x").await), libc::EROFS);
    assert!(session.list("keys").await.unwrap().is_empty());
    assert_eq!(fs::read(world.at(".env")).unwrap(), b"SECRET=1");
    assert_eq!(fs::read(world.at("keys/one")).unwrap(), b"SECRET=2");
    // A program outside replaced it, and its mount went away.
    fs::write(world.at("new"), "SECRET=3").unwrap();
    fs::rename(world.at("new"), world.at(".env")).unwrap();
    fs::rename(world.at("keys"), world.at("old")).unwrap();
    fs::create_dir(world.at("keys")).unwrap();
    fs::write(world.at("keys/one"), "SECRET=4").unwrap();
    assert_eq!(errno(session.read(".env").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.write(".env", "x").await), libc::EROFS);
    assert_eq!(errno(session.read("keys/one").await), libc::ENOENT);
    assert_eq!(shell(&session, "cat .env; ls keys").await, "");
}

/// From outside the kernel would allow a rename over it, which takes the grant away from everybody.
#[tokio::test]
async fn a_file_that_is_granted_by_itself_is_not_replaced() {
    let (world, other) = (World::new(), workspace());
    let file = other.path().join("file");
    fs::write(&file, "old").unwrap();
    let session = Session::prepare(&world.policy().read_write(&file)).await.unwrap();
    assert_eq!(session.read(&file).await.unwrap(), b"old");
    assert_eq!(errno(session.write(&file, "new").await), libc::EBUSY);
    assert_eq!(errno(session.remove(&file).await), libc::EBUSY);
    shell(&session, &format!("echo more >> {}", file.display())).await;
    assert_eq!(fs::read(&file).unwrap(), b"oldmore\n", "it is granted as before");
}

#[tokio::test]
async fn the_kernels_own_files_are_refused() {
    let world = World::new();
    let session = world.session().await;
    let proc = [
        "/proc/sys/kernel/core_pattern",
        "/proc/1/mem",
        "/proc/1/environ",
        "/proc/self/mem",
        "/proc/version",
        "/proc/sysrq-trigger",
        "/proc/x",
    ];
    for path in proc {
        let refused = [libc::EOPNOTSUPP, libc::ENOENT];
        assert!(refused.contains(&errno(in_time(session.read(path)).await)), "read {path}");
        assert!(refused.contains(&errno(in_time(session.write(path, "x")).await)), "write {path}");
    }
    assert_eq!(errno(session.read("/proc/version").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.write("/proc/sys/kernel/hostname", "x").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.list("/proc").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.list("/dev/pts").await), libc::EOPNOTSUPP);
    assert_eq!(errno(session.write("/dev/pts/0", "x").await), libc::EOPNOTSUPP);
    for path in ["/dev/null", "/dev/zero", "/dev/random", "/dev/tty"] {
        assert_eq!(errno(in_time(session.read(path)).await), libc::EOPNOTSUPP, "{path}");
        assert!([libc::EROFS, libc::EOPNOTSUPP].contains(&errno(session.write(path, "x").await)), "{path}");
    }
}

#[tokio::test]
async fn a_file_that_the_caller_may_not_write_is_not_replaced() {
    let world = World::new();
    let path = world.at("file");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::create_dir(world.at("d")).unwrap();
    fs::set_permissions(world.at("d"), fs::Permissions::from_mode(0o555)).unwrap();
    let session = world.session().await;
    assert_eq!(errno(session.write("file", "new").await), libc::EACCES);
    assert_eq!(errno(session.write("d/file", "new").await), libc::EACCES);
    assert_eq!(errno(session.mkdir("d/d").await), libc::EACCES);
    assert_eq!(shell(&session, "echo new > file || cat file").await, "old", "nor can a command");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(errno(session.read("file").await), libc::EACCES);
    fs::set_permissions(world.at("d"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn root_has_no_rights_over_files_of_others() {
    only_as_root!();
    assert!(is_root());
    let world = World::new();
    let (theirs, private) = (world.at("theirs"), world.at("theirs/private"));
    fs::create_dir(&theirs).unwrap();
    fs::write(&private, "old").unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&private, Some(1000), Some(1000)).unwrap();
    chown(&theirs, Some(1000), Some(1000)).unwrap();
    let session = world.session().await;
    assert_eq!(errno(session.read("theirs/private").await), libc::EACCES);
    assert_eq!(errno(session.write("theirs/private", "new").await), libc::EACCES);
    assert_eq!(errno(session.write("theirs/new", "new").await), libc::EACCES);
    assert_eq!(errno(session.remove("theirs/private").await), libc::EACCES);
    assert_eq!(shell(&session, "cat theirs/private || echo > theirs/new || echo so").await, "so\n");
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).unwrap();
    session.write("theirs/new", "new").await.unwrap();
    shell(&session, "echo > theirs/by-a-command").await;
    let owner = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(theirs.join(name)).unwrap().uid()
    };
    assert_eq!((owner("new"), owner("by-a-command")), (0, 0), "both are the caller's");
}

#[tokio::test]
async fn a_full_file_system_leaves_the_old_file_and_nothing_else() {
    let world = World::new();
    let limits = Limits { tmp_size: Some(Size::from_bytes(1 << 20)), ..Limits::default() };
    let policy = world.policy().limits(limits).tmp(TmpLife::Session);
    let session = Session::prepare(&policy).await.unwrap();
    session.mkdir("/tmp/d").await.unwrap();
    session.write("/tmp/d/file", "old").await.unwrap();
    assert_eq!(errno(session.write("/tmp/d/file", vec![1; 4 << 20]).await), libc::ENOSPC);
    assert_eq!(errno(session.write("/tmp/d/new", vec![1; 4 << 20]).await), libc::ENOSPC);
    let big = world.at("big");
    fs::write(&big, vec![1; 4 << 20]).unwrap();
    assert_eq!(errno(session.copy_in(&big, "/tmp/d/file").await), libc::ENOSPC);
    assert_eq!(session.read("/tmp/d/file").await.unwrap(), b"old");
    assert_eq!(session.list("/tmp/d").await.unwrap().len(), 1);
    assert_eq!(names(world.path()), ["big"]);
}
