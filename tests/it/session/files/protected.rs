//! Protected paths: these calls do not make, change or remove files that programs outside trust.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use kennel::Session;

use super::{errno, in_time, names, shell, workspace};
use crate::{
    session::git,
    support::{TempDir, World, has, require},
};

/// A workspace with a repository that has a hook and a config, but no `commondir`.
fn repository() -> TempDir {
    let dir = workspace();
    fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
    fs::write(dir.path().join(".git/hooks/pre-push"), "old").unwrap();
    fs::write(dir.path().join(".git/config"), "[a]\n").unwrap();
    dir
}

/// Every call that could create something at `path`.
async fn refused(session: &Session, host: &Path, path: &str) {
    assert_eq!(errno(session.write(path, "x").await), libc::EROFS, "write {path}");
    assert_eq!(errno(session.open_write(path).await), libc::EROFS, "open {path}");
    assert_eq!(errno(session.copy_in(host, path).await), libc::EROFS, "copy to {path}");
}

#[tokio::test]
async fn protected_files_are_not_changed_and_stay_protected() {
    let (world, other) = (World::of(repository()), workspace());
    let host = other.path().join("host");
    fs::write(&host, "x").unwrap();
    symlink(".git/config", world.at("link")).unwrap();
    symlink(".git", world.at("way")).unwrap();
    let session = world.session().await;
    let ways =
        [".git/config", "link", "way/config", "way/../.git/config", ".git/hooks/pre-push", "way/hooks/new"];
    for path in ways {
        refused(&session, &host, path).await;
    }
    assert_eq!(errno(session.remove(".git/config").await), libc::EROFS);
    assert_eq!(errno(session.remove(".git/hooks/pre-push").await), libc::EROFS);
    assert_eq!(errno(session.remove(".git/hooks").await), libc::EROFS);
    assert_eq!(errno(session.mkdir(".git/hooks/d").await), libc::EROFS);
    assert_eq!(errno(session.remove(".git").await), libc::EBUSY);
    let still = "echo x >> .git/config || echo x > .git/hooks/x || echo so";
    assert_eq!(shell(&session, still).await, "so\n", "commands are kept from it as before");
    assert_eq!(session.read(".git/config").await.unwrap(), b"[a]\n");
    session.write(".git/description", "allowed").await.unwrap();
    assert_eq!(names(&world.at(".git")), ["config", "description", "hooks"]);
    assert_eq!(names(&world.at(".git/hooks")), ["pre-push"]);
}

#[tokio::test]
async fn absent_protected_paths_are_not_made() {
    let (world, other) = (World::new(), workspace());
    let host = other.path().join("host");
    fs::write(&host, "x").unwrap();
    fs::create_dir(world.at(".git")).unwrap();
    fs::create_dir(world.at("sub")).unwrap();
    symlink(".git", world.at("way")).unwrap();
    symlink(".git/commondir", world.at("link")).unwrap();
    let session = world.session().await;
    shell(&session, "ln -s ../link sub/link; ln -s $PWD/.git sub/way").await;
    let ways =
        [".git/commondir", "way/commondir", "link", "sub/link", "sub/way/commondir", "sub/../way/./config"];
    for path in ways {
        refused(&session, &host, path).await;
    }
    for path in [".git/hooks", "way/hooks", "sub/way/hooks", ".git/commondir"] {
        assert_eq!(errno(session.mkdir(path).await), libc::EROFS, "{path}");
    }
    assert_eq!(errno(session.write(".git/hooks/pre-push", "x").await), libc::ENOENT);
    session.write(".git/description", "x").await.unwrap();
    assert_eq!(names(&world.at(".git")), ["description"]);
    // None of it was taken for the user's: a file that a command makes there is moved aside.
    shell(&session, "echo x > .git/commondir").await;
    assert_eq!(names(&world.at(".git")), ["commondir.refused-by-kennel.0", "description"]);
}

#[tokio::test]
async fn these_calls_give_a_new_repository_no_hooks() {
    let world = World::new();
    let session = world.session().await;
    assert_eq!(errno(session.write(".git", "gitdir: /elsewhere").await), libc::EROFS);
    session.mkdir(".git").await.unwrap();
    for path in [".git/config", ".git/commondir", ".git/hooks"] {
        assert_eq!(errno(session.write(path, "x").await), libc::EROFS, "{path}");
    }
    assert_eq!(errno(session.mkdir(".git/hooks").await), libc::EROFS);
    session.write(".git/HEAD", "x").await.unwrap();
    assert_eq!(names(&world.at(".git")), ["HEAD"]);
}

#[tokio::test]
async fn protected_paths_of_the_policy_are_kept() {
    let world = World::new();
    let policy = world.policy().protect("ci/deploy/key").protect("Makefile");
    let session = Session::prepare(&policy).await.unwrap();
    assert_eq!(errno(session.write("Makefile", "x").await), libc::EROFS);
    assert_eq!(errno(session.mkdir("Makefile").await), libc::EROFS);
    assert_eq!(errno(session.write("ci", "x").await), libc::EROFS, "a file on the way");
    session.mkdir("ci").await.unwrap();
    session.write("ci/other", "x").await.unwrap();
    assert_eq!(errno(session.write("ci/deploy", "x").await), libc::EROFS);
    session.mkdir("ci/deploy").await.unwrap();
    assert_eq!(errno(session.write("ci/deploy/key", "x").await), libc::EROFS);
    assert_eq!(errno(session.mkdir("ci/deploy/key").await), libc::EROFS);
    assert_eq!(
        errno(session.remove("ci/deploy").await),
        libc::EBUSY,
        "it stays where it is, as for commands"
    );
    assert_eq!(names(&world.at("ci")), ["deploy", "other"]);
    assert!(names(&world.at("ci/deploy")).is_empty());
    assert_eq!(names(world.path()), ["ci"]);
}

/// Kennel moves it aside when the command ends, but a file that these calls put there could arrive later.
#[tokio::test]
async fn nothing_is_put_into_a_protected_path_that_a_running_command_made() {
    let world = World::new();
    fs::create_dir(world.at(".git")).unwrap();
    let session = world.session().await;
    let script = "mkdir -p .git/hooks/deep/er; until [ -e stop ]; do sleep 0.01; done";
    let mut child = session.command("sh").args(["-c", script]).spawn().await.unwrap();
    while !world.at(".git/hooks/deep/er").exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for path in [".git/hooks/pre-push", ".git/hooks/deep/er/x", ".git/hooks/deep/x"] {
        assert_eq!(errno(session.write(path, "x").await), libc::EROFS, "{path}");
        assert_eq!(errno(session.mkdir(path).await), libc::EROFS, "{path}");
    }
    session.write("stop", "").await.unwrap();
    in_time(child.wait()).await.unwrap();
    assert_eq!(names(&world.at(".git")), ["hooks.refused-by-kennel.0"]);
    assert_eq!(names(&world.at(".git/hooks.refused-by-kennel.0/deep")), ["er"]);
    assert!(names(&world.at(".git/hooks.refused-by-kennel.0/deep/er")).is_empty());
}

#[tokio::test]
async fn a_protected_link_is_not_exchanged() {
    let world = World::new();
    fs::create_dir_all(world.at(".git")).unwrap();
    fs::create_dir(world.at("hooks")).unwrap();
    symlink("../hooks", world.at(".git/hooks")).unwrap();
    let session = world.session().await;
    assert_eq!(errno(session.remove(".git/hooks").await), libc::EROFS);
    assert_eq!(errno(session.write("hooks/pre-push", "x").await), libc::EROFS);
    assert_eq!(errno(session.write(".git/hooks/pre-push", "x").await), libc::EROFS);
    assert_eq!(fs::read_link(world.at(".git/hooks")).unwrap(), Path::new("../hooks"));
}

/// A program that replaces a file outside takes its mount away, in every view that was made before.
#[tokio::test]
async fn a_file_that_git_replaced_outside_is_still_protected() {
    require!(has("git"), "git");
    let world = World::new();
    git(world.path(), &["init", "-q"]);
    let session = world.session().await;
    assert_eq!(errno(session.write(".git/config", "x").await), libc::EROFS);
    for name in ["one", "two"] {
        git(world.path(), &["config", "user.name", name]);
        assert_eq!(errno(session.write(".git/config", "x").await), libc::EROFS, "{name}");
        assert_eq!(errno(session.write(".git/hooks/pre-commit", "x").await), libc::EROFS, "{name}");
        let config = session.read(".git/config").await.unwrap();
        assert!(String::from_utf8(config).unwrap().contains(name));
    }
}

/// No process keeps the view of an earlier call alive.
#[tokio::test]
async fn walls_hold_when_every_process_of_the_session_is_gone() {
    let world = World::of(repository());
    let session = world.session().await;
    let mut writers = Vec::new();
    for _ in 0..3 {
        writers.push(session.open_write(".git/description").await.unwrap());
    }
    session.shutdown().await;
    for writer in writers {
        writer.commit().await.unwrap();
    }
    assert!(matches!(session.write(".git/config", "x").await, Err(kennel::Error::SessionEnded)));
    assert_eq!(fs::read(world.at(".git/config")).unwrap(), b"[a]\n");
}

#[tokio::test]
async fn no_protected_path_is_moved_away_or_replaced() {
    let world = World::of(repository());
    let session = world.session().await;
    session.write("hook", "x").await.unwrap();
    let moves = [
        (".git/config", "config"),
        (".git/hooks", "h"),
        (".git/hooks/pre-push", "h"),
        (".git", "other"),
        ("hook", ".git/hooks/pre-push"),
        ("hook", ".git/hooks/new"),
        ("hook", ".git/config"),
        ("hook", ".git/commondir"),
    ];
    for (from, to) in moves {
        let refused = errno(session.rename(from, to).await);
        // A wall is a mount, and nothing moves from one mount to another.
        assert!(matches!(refused, libc::EROFS | libc::EBUSY | libc::EXDEV), "{from} {to}: {refused}");
    }
    assert_eq!(fs::read(world.at(".git/hooks/pre-push")).unwrap(), b"old");
    assert_eq!(fs::read(world.at(".git/config")).unwrap(), b"[a]\n");
    assert_eq!(names(&world.at(".git")), ["config", "hooks"]);
}

#[tokio::test]
async fn a_moved_directory_brings_nothing_to_a_protected_path() {
    let world = World::of(workspace());
    let session = world.session().await;
    session.mkdir("g").await.unwrap();
    session.mkdir("g/hooks").await.unwrap();
    session.write("g/hooks/pre-push", "x").await.unwrap();
    // Whatever the answer is, no hook is where git would run it.
    let _ = session.rename("g", ".git").await;
    assert!(!world.at(".git/hooks/pre-push").exists());
    session.write("after", "x").await.unwrap();
    assert!(!world.at(".git/hooks/pre-push").exists());
}
