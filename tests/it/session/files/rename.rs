//! Files are moved with the rights of a command, and never out of the view. `protected` has the paths that
//! nobody may move.

use std::{fs, os::unix::fs::symlink};

use kennel::files::FileKind;

use super::{errno, names, shell};
use crate::support::World;

#[tokio::test]
async fn files_directories_and_links_are_moved_and_replace_files() {
    let world = World::new();
    let session = world.session().await;
    session.mkdir("d").await.unwrap();
    session.write("d/file", "x").await.unwrap();
    session.write("old", "old").await.unwrap();
    symlink("old", world.at("link")).unwrap();
    session.rename("d/file", "old").await.unwrap();
    assert_eq!(session.read("old").await.unwrap(), b"x");
    session.rename("link", "d/link").await.unwrap();
    assert_eq!(fs::read_link(world.at("d/link")).unwrap().as_os_str(), "old", "the link itself");
    session.rename("d", world.at("e")).await.unwrap();
    assert_eq!(names(world.path()), ["e", "old"]);
    assert_eq!(shell(&session, "ls e").await, "link\n", "commands see it");
}

#[tokio::test]
async fn what_rename_refuses_is_an_error_and_changes_nothing() {
    let world = World::new();
    let session = world.session().await;
    session.mkdir("d").await.unwrap();
    session.write("d/x", "x").await.unwrap();
    session.mkdir("e").await.unwrap();
    for (from, to, expected) in [
        ("none", "new", libc::ENOENT),
        ("d", "none/new", libc::ENOENT),
        ("", "new", libc::ENOENT),
        ("e", "d", libc::ENOTEMPTY),
        ("d", "d/inner", libc::EINVAL),
        ("d/x", "e", libc::EISDIR),
        ("/", "new", libc::EBUSY),
        ("d", "..", libc::EEXIST),
        ("/usr/bin/env", "env", libc::EXDEV),
        ("d/x", "/usr/bin/x", libc::EXDEV),
        ("/etc/hosts", "hosts", libc::EXDEV),
        ("d/x", "/etc/hosts", libc::EXDEV),
    ] {
        assert_eq!(errno(session.rename(from, to).await), expected, "{from} {to}");
    }
    assert_eq!(names(world.path()), ["d", "e"]);
    assert_eq!(names(&world.at("d")), ["x"]);
}

#[tokio::test]
async fn links_lead_nowhere_outside() {
    let world = World::new();
    let outside = World::new();
    fs::write(outside.at("secret"), "x").unwrap();
    let session = world.session().await;
    symlink(outside.path(), world.at("out")).unwrap();
    assert_eq!(errno(session.rename("out/secret", "mine").await), libc::ENOENT);
    session.write("file", "x").await.unwrap();
    assert_eq!(errno(session.rename("file", "out/new").await), libc::ENOENT);
    assert_eq!(names(outside.path()), ["secret"]);
}

#[tokio::test]
async fn details_are_those_of_a_link_itself() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "12345").await.unwrap();
    symlink("file", world.at("link")).unwrap();
    let link = session.details("link").await.unwrap();
    assert_eq!((link.info.kind, link.points_to.as_deref()), (FileKind::Link, Some("file".as_ref())));
    let file = session.details(world.at("file")).await.unwrap();
    assert_eq!((file.info.size, file.points_to), (5, None));
    assert_eq!(file.uid, nix::unistd::getuid().as_raw());
    let all = session.list_details(".").await.unwrap();
    assert_eq!(all.iter().map(|entry| entry.name.to_str().unwrap()).collect::<Vec<_>>(), ["file", "link"]);
    assert_eq!(all[1], link);
    assert!(session.details("/").await.unwrap().info.is_dir());
    assert_eq!(errno(session.details("none").await), libc::ENOENT);
    assert_eq!(errno(session.list_details("file").await), libc::ENOTDIR);
}
