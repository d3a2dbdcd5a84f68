//! An attribute is a change: modification time, mode, user attributes, access lists.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

use super::{changes, commit, overlaid, place::require_kept, require_overlay, shell};
use crate::support::{access_list, has, require, stderr};

const ACCESS: &str = "system.posix_acl_access";

/// 2001-02-03T04:05:06Z
const OLD: i64 = 981_173_106;

fn modified(path: &Path) -> i64 {
    fs::metadata(path).unwrap().mtime()
}

#[tokio::test]
async fn opening_a_file_is_no_change() {
    require_overlay!();
    let world = overlaid();
    fs::create_dir(world.at("d")).unwrap();
    fs::write(world.at("d/f"), "same").unwrap();
    let session = world.session().await;
    shell(&session, ": >> d/f; echo x > d/x; rm d/x; chmod 700 d; chmod 755 d; chmod 600 d/f; chmod 644 d/f")
        .await;
    assert!(changes(&session).await.is_empty(), "{:?}", changes(&session).await);
}

#[tokio::test]
async fn touching_a_file_is_a_change() {
    require_overlay!();
    let world = overlaid();
    let at = |name: &str| world.at(name);
    for name in ["touched", "rewritten", "untouched"] {
        fs::write(at(name), "same").unwrap();
    }
    let before = modified(&at("untouched"));
    let session = world.session().await;
    shell(&session, "touch -d 2001-02-03T04:05:06Z touched; sleep 0.05; printf same > rewritten").await;
    assert_eq!(
        shell(&session, "stat -c %Y touched").await.trim(),
        OLD.to_string(),
        "the next command sees it"
    );
    assert_eq!(commit(&session).await, ["M rewritten", "M touched"]);
    assert_eq!((modified(&at("touched")), modified(&at("untouched"))), (OLD, before));
    assert_eq!(fs::read(at("touched")).unwrap(), b"same");
    assert!(changes(&session).await.is_empty(), "{:?}", changes(&session).await);
}

#[tokio::test]
async fn who_touches_a_file_outside_meanwhile_is_in_no_conflict() {
    require_overlay!();
    let world = overlaid();
    let at = |name: &str| world.at(name);
    fs::write(at("f"), "same").unwrap();
    let session = world.session().await;
    shell(&session, "touch -d 2001-02-03T04:05:06Z f").await;
    let theirs = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    fs::File::options().write(true).open(at("f")).unwrap().set_modified(theirs).unwrap();
    assert!(commit(&session).await.is_empty());
    assert_eq!(modified(&at("f")), 1_234_567_890, "the other time stays");
}

#[tokio::test]
async fn an_access_list_that_a_command_sets_or_removes_is_a_change() {
    require_overlay!();
    require!(has("python3"), "python3");
    let world = overlaid();
    let at = |name: &str| world.at(name);
    for name in ["f", "kept"] {
        fs::write(at(name), "text").unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    let list = access_list(nix::unistd::geteuid().as_raw());
    if xattr::set(at("kept"), ACCESS, &list).is_err() {
        return;
    }
    let list_of = |name: &str| xattr::get(at(name), ACCESS).unwrap();
    let session = world.session().await;
    let python = |call: &str| format!("python3 -c \"import os; {call}\"");
    let set = python(&format!("os.setxattr('f', '{ACCESS}', bytes({list:?}))"));
    shell(&session, &format!("{set}; echo more >> kept")).await;
    assert_eq!(commit(&session).await, ["M f", "M kept"]);
    assert_eq!((list_of("f"), list_of("kept")), (Some(list.clone()), Some(list.clone())));
    assert_eq!(fs::read(at("f")).unwrap(), b"text");
    shell(&session, &python(&format!("os.removexattr('f', '{ACCESS}')"))).await;
    assert_eq!(commit(&session).await, ["M f"]);
    assert_eq!(list_of("f"), None);
    // A file in place of another: the one that was there had a list.
    shell(&session, "echo new > new; mv new kept").await;
    assert_eq!(commit(&session).await, ["M kept"]);
    let entries = |list: &[u8]| list.chunks(8).map(|entry| entry.first().copied()).collect::<Vec<_>>();
    assert_eq!(
        list_of("kept").map(|now| entries(&now)),
        Some(entries(&list)),
        "its rights are those of the mode"
    );
}

#[test]
fn a_stamp_is_known_to_later_commands_and_committed() {
    let kept = require_kept!();
    kept.write("stamp", "s\n");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(kept.dir.path().join("stamp")).unwrap().set_modified(old).unwrap();
    assert_eq!(kept.run(&[], "touch -d 2001-02-03T04:05:06Z stamp"), "M stamp");
    assert_eq!(kept.run(&[], &format!("test $(stat -c %Y stamp) = {OLD}")), "M stamp");
    assert!(kept.succeeds(&["diff"]).contains("Only times or attributes of a/stamp and b/stamp differ"));
    assert_eq!(kept.succeeds(&["commit"]), "M stamp\n1 change committed");
    assert_eq!(modified(&kept.dir.path().join("stamp")), OLD);
    assert_eq!(kept.run(&[], ": >> stamp"), "");
}

#[test]
fn a_directory_that_an_overlay_cannot_rename_is_explained() {
    let kept = require_kept!();
    require!(has("python3"), "python3");
    fs::create_dir(kept.dir.path().join("d")).unwrap();
    let run = |call: &str| {
        let script = format!("import os; {call}");
        stderr(&kept.output(&["run", "--explain", "--overlay", "--discard", "--", "python3", "-c", &script]))
    };
    let said = run("os.rename('d', 'e')");
    assert!(said.contains("/d: an overlay renames no directory that was there before"), "{said}");
    assert_eq!(run("os.mkdir('n'); os.rename('n', 'e')"), "", "a new one it renames");
}
