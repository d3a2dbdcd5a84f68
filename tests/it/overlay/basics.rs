//! Writes, removals and renames are visible inside at once, and outside only after a commit.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use kennel::{
    Error, Policy, Profile, Session, Stdio,
    files::FileKind,
    overlay::{ChangeKind, OverlayError},
};
use tokio::io::AsyncReadExt;

use super::{changes, commit, is_without_temporaries, require_overlay, session, shell, workspace};
use crate::{
    session::tree::{descendants, lives},
    support::is_alone,
};

#[tokio::test]
async fn changes_are_seen_inside_and_not_outside_until_they_are_committed() {
    require_overlay!();
    let dir = workspace();
    fs::write(dir.path().join("old"), "old").unwrap();
    fs::write(dir.path().join("gone"), "gone").unwrap();
    let session = session(dir.path()).await;
    shell(&session, "echo more >> old; rm gone; echo new > new").await;
    assert_eq!(
        shell(&session, "cat old new; ls").await,
        "oldmore\nnew\nnew\nold\n",
        "the next command sees it"
    );
    assert_eq!(fs::read(dir.path().join("old")).unwrap(), b"old");
    assert!(dir.path().join("gone").exists() && !dir.path().join("new").exists());
    let listed = session.changes().await.unwrap();
    let listed: Vec<_> =
        listed.iter().map(|change| (change.kind, change.path.to_str().unwrap(), change.file)).collect();
    let file = FileKind::File;
    let expected = [
        (ChangeKind::Deleted, "gone", file),
        (ChangeKind::Added, "new", file),
        (ChangeKind::Modified, "old", file),
    ];
    assert_eq!(listed, expected);
    assert_eq!(commit(&session).await, ["D gone", "A new", "M old"]);
    assert_eq!(fs::read(dir.path().join("old")).unwrap(), b"oldmore\n");
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"new\n");
    assert!(!dir.path().join("gone").exists());
    assert!(changes(&session).await.is_empty() && commit(&session).await.is_empty(), "nothing is left to do");
    assert!(is_without_temporaries(dir.path()));
}

#[tokio::test]
async fn discarded_changes_leave_nothing() {
    require_overlay!();
    let dir = workspace();
    fs::write(dir.path().join("old"), "old").unwrap();
    let session = session(dir.path()).await;
    shell(&session, "echo x > old; mkdir d; echo y > d/y").await;
    session.discard().await.unwrap();
    assert_eq!(fs::read(dir.path().join("old")).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(matches!(session.changes().await, Err(Error::Overlay(OverlayError::None))));
    assert!(matches!(session.commit().await, Err(Error::Overlay(OverlayError::None))));
    assert!(session.has_ended());
}

#[tokio::test]
async fn a_session_without_an_overlay_has_no_changes() {
    let dir = workspace();
    let session = Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path())).await.unwrap();
    assert!(matches!(session.changes().await, Err(Error::Overlay(OverlayError::None))));
    assert!(matches!(session.discard().await, Err(Error::Overlay(OverlayError::None))));
    assert!(!session.has_ended());
}

#[tokio::test]
async fn modes_links_attributes_times_and_sizes_are_carried_over() {
    require_overlay!();
    let dir = workspace();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("script"), "x").unwrap();
    fs::set_permissions(at("script"), fs::Permissions::from_mode(0o644)).unwrap();
    symlink("script", at("link")).unwrap();
    let session = session(dir.path()).await;
    let script = "chmod 751 script; rm link; ln -s /nowhere/at/all link; mkdir -m 700 d; echo a > d/a; \
                  chmod 400 d/a; touch -d 2001-02-03T04:05:06Z d/a; chmod 550 d; : > empty; \
                  truncate -s 3G sparse; printf end >> sparse";
    shell(&session, script).await;
    assert_eq!(commit(&session).await, ["A d/", "A d/a", "A empty", "M link", "M script", "A sparse"]);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("script"), mode("d"), mode("d/a")], [0o751, 0o550, 0o400]);
    assert_eq!(fs::read_link(at("link")).unwrap().to_str().unwrap(), "/nowhere/at/all");
    assert_eq!(fs::metadata(at("d/a")).unwrap().mtime(), 981_173_106);
    assert_eq!(fs::metadata(at("empty")).unwrap().len(), 0);
    let sparse = fs::metadata(at("sparse")).unwrap();
    assert_eq!(sparse.len(), (3 << 30) + 3);
    assert!(sparse.blocks() < 1000, "{} blocks", sparse.blocks());
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Nobody can find the entries of a directory that its owner may not search. So the script closes it last:
/// the names of the others sort after it.
#[tokio::test]
async fn deletions_in_closed_directories_are_committed() {
    require_overlay!();
    for closed in [0o600, 0o400, 0] {
        let dir = workspace();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("n/m")).unwrap();
        ["n/f", "n/m/f", "n/m/kept", "z"].iter().for_each(|name| fs::write(at(name), "old").unwrap());
        let session = session(dir.path()).await;
        let script = format!("rm n/f n/m/f; chmod {closed:o} n/m n; echo x > y; echo x > z");
        shell(&session, &script).await;
        assert_eq!(commit(&session).await, ["M n/", "D n/f", "M n/m/", "D n/m/f", "A y", "M z"]);
        assert_eq!(fs::metadata(at("n")).unwrap().mode() & 0o7777, closed);
        assert_eq!(commit(&session).await, [""; 0], "all of it is done");
        let script = format!("chmod 700 n n/m; rm z n/m/kept; echo x > n/m/new; chmod {closed:o} n/m n");
        shell(&session, &script).await;
        assert_eq!(commit(&session).await, ["D n/m/kept", "A n/m/new", "D z"]);
        for name in ["n", "n/m"] {
            assert_eq!(fs::metadata(at(name)).unwrap().mode() & 0o7777, closed, "{name}");
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert!(!at("n/f").exists() && !at("n/m/f").exists() && at("n/m/new").exists(), "{closed:o}");
    }
}

#[tokio::test]
async fn directories_keep_their_sticky_bit() {
    require_overlay!();
    let dir = workspace();
    let at = |name: &str| dir.path().join(name);
    for (name, mode) in [("lost", 0o1777), ("got", 0o777), ("kept", 0o1777)] {
        fs::create_dir(at(name)).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let session = session(dir.path()).await;
    let script =
        "chmod 777 lost; chmod 1777 got; echo x > kept/f; mkdir -m 1777 new; echo x > file; chmod 1644 file";
    shell(&session, script).await;
    assert_eq!(commit(&session).await, ["A file", "M got/", "A kept/f", "M lost/", "A new/"]);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o7777;
    assert_eq!(["lost", "got", "kept", "new"].map(mode), [0o777, 0o1777, 0o1777, 0o1777]);
    assert_eq!(mode("file"), 0o644, "that of a file means nothing");
}

#[tokio::test]
async fn directories_are_renamed_replaced_and_become_files() {
    require_overlay!();
    let dir = workspace();
    for name in ["moved/in", "replaced/in/in", "becomes-file/x"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    for name in ["moved/in/a", "replaced/old", "replaced/in/in/old", "becomes-file/x/y", "becomes-dir"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let session = session(dir.path()).await;
    // The kernel answers EXDEV to the rename of a directory of the workspace, and mv copies it.
    let script = "mv moved elsewhere; rm -r replaced; mkdir -p replaced/in/in; echo n > replaced/new; \
                  rm -r becomes-file; echo f > becomes-file; rm becomes-dir; mkdir becomes-dir; echo d > becomes-dir/d";
    shell(&session, script).await;
    assert_eq!(shell(&session, "find replaced -type f").await, "replaced/new\n", "nothing below is visible");
    let done = commit(&session).await;
    for line in [
        "D moved/",
        "A elsewhere/in/a",
        "D replaced/old",
        "D replaced/in/in/old",
        "A replaced/new",
        "M becomes-file",
        "M becomes-dir/",
    ] {
        assert!(done.iter().any(|done| done == line), "{line}: {done:?}");
    }
    assert!(!dir.path().join("moved").exists() && !dir.path().join("replaced/old").exists());
    assert_eq!(fs::read_dir(dir.path().join("replaced/in/in")).unwrap().count(), 0, "nor deeper");
    assert_eq!(fs::read(dir.path().join("elsewhere/in/a")).unwrap(), b"moved/in/a");
    assert_eq!(fs::read(dir.path().join("becomes-file")).unwrap(), b"f\n");
    assert_eq!(fs::read(dir.path().join("becomes-dir/d")).unwrap(), b"d\n");
    assert!(changes(&session).await.is_empty(), "{:?}", changes(&session).await);
    assert!(is_without_temporaries(dir.path()));
}

#[tokio::test]
async fn commits_follow_each_other() {
    require_overlay!();
    let dir = workspace();
    fs::create_dir(dir.path().join("old")).unwrap();
    let session = session(dir.path()).await;
    shell(&session, "mkdir -p n/m; echo 1 > n/f; echo 1 > n/m/g; echo 1 > old/h; echo 1 > top").await;
    commit(&session).await;
    shell(&session, "echo 2 > n/f; rm n/m/g; rm old/h; echo 2 >> top; echo 3 > n/new").await;
    assert_eq!(changes(&session).await, ["M n/f", "D n/m/g", "A n/new", "D old/h", "M top"]);
    commit(&session).await;
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).ok();
    assert_eq!(
        [read("n/f"), read("n/m/g"), read("n/new"), read("old/h"), read("top")],
        [Some("2\n".into()), None, Some("3\n".into()), None, Some("1\n2\n".into())]
    );
    shell(&session, "rm -r n old top").await;
    assert_eq!(commit(&session).await, ["D n/", "D old/", "D top"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    shell(&session, "mkdir n; echo again > n/f").await;
    commit(&session).await;
    assert_eq!(read("n/f"), Some("again\n".into()));
}

#[tokio::test]
async fn nothing_is_committed_while_a_command_runs_and_nothing_starts_meanwhile() {
    require_overlay!();
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut child =
        session.command("sh").args(["-c", "echo x > x; cat"]).stdin(Stdio::piped()).spawn().await.unwrap();
    let running = session.commit().await;
    assert!(matches!(running, Err(Error::Overlay(OverlayError::Running))), "{running:?}");
    drop(child.stdin.take());
    child.wait().await.unwrap();
    assert_eq!(commit(&session).await, ["A x"]);
    shell(&session, "cat x").await;
}

/// A process with much memory takes time to go.
#[tokio::test]
async fn a_commit_waits_until_killed_processes_are_gone() {
    require_overlay!();
    let test = "overlay::basics::a_commit_waits_until_killed_processes_are_gone";
    if !is_alone(test, "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let session = session(dir.path()).await;
    let script = "x=$(head -c 80000000 /dev/zero | tr '\\0' x); echo ready; read -r line";
    let mut command = session.command("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().await.unwrap();
    let mut said = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut said).await.unwrap();
    let resident = |pid: u32| fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = |pid| resident(pid).split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let large: Vec<u32> =
        descendants(std::process::id()).into_iter().filter(|&pid| pages(pid) > 15_000).collect();
    assert!(!large.is_empty());
    drop(child);
    assert!(commit(&session).await.is_empty());
    assert!(!large.into_iter().any(lives), "it is there still");
}

#[tokio::test]
async fn changes_outlive_the_processes_of_the_session() {
    require_overlay!();
    let dir = workspace();
    let session = session(dir.path()).await;
    shell(&session, "echo x > x").await;
    session.shutdown().await;
    assert_eq!(changes(&session).await, ["A x"]);
    assert_eq!(commit(&session).await, ["A x"]);
    assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"x\n");
}

#[tokio::test]
async fn calls_for_files_see_the_merged_tree_and_change_nothing_else() {
    require_overlay!();
    let dir = workspace();
    fs::write(dir.path().join("f"), "old").unwrap();
    let session = session(dir.path()).await;
    shell(&session, "echo inside > f").await;
    assert_eq!(session.read("f").await.unwrap(), b"inside\n");
    session.write("g", "written").await.unwrap();
    assert_eq!(shell(&session, "cat g").await, "written");
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"old");
    assert!(!dir.path().join("g").exists());
    assert_eq!(commit(&session).await, ["M f", "A g"]);
}

#[tokio::test]
async fn a_sandbox_has_an_overlay_for_each_command_and_drops_it() {
    if !super::in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    fs::write(dir.path().join("f"), "old").unwrap();
    let policy = super::policy(dir.path()).overlay(kennel::Overlay::default());
    let sandbox = kennel::Sandbox::new(&policy).unwrap();
    for _ in 0..2 {
        let out = sandbox.command("sh").args(["-c", "cat f; echo new > f; cat f"]).output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "oldnew\n");
    }
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"old");
}

#[tokio::test]
async fn a_full_overlay_is_an_error_of_the_command() {
    if !super::in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let overlay = kennel::Overlay { size: Some(kennel::Size::from_bytes(1 << 20)), ..Default::default() };
    let session = Session::prepare(&super::policy(dir.path()).overlay(overlay)).await.unwrap();
    let script = "dd if=/dev/zero of=big bs=64k count=64 2>&1 | grep -o 'No space left'; rm big; echo x > x";
    assert_eq!(shell(&session, script).await, "No space left\n");
    assert_eq!(commit(&session).await, ["A x"]);
}
