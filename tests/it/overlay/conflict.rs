//! Other programs change the workspace while a session has changes of it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use nix::time::{ClockId, clock_gettime};

use super::{CONFLICT, commit, is_without_temporaries, refusals, require_overlay, session, shell, workspace};
use crate::support::{TempDir, access_list, filled};

fn read(path: &Path, name: &str) -> String {
    fs::read_to_string(path.join(name)).unwrap_or_else(|error| error.kind().to_string())
}

/// A workspace with files of one name each in them.
fn with_files(names: &[&str]) -> TempDir {
    filled(workspace(), names, |name| name)
}

#[tokio::test]
async fn changes_of_others_are_kept_file_by_file_and_the_rest_is_applied() {
    require_overlay!();
    let dir = with_files(&["edited", "replaced", "deleted", "modes", "mine"]);
    let at = |name: &str| dir.path().join(name);
    let session = session(dir.path()).await;
    shell(
        &session,
        "for f in edited replaced deleted modes mine; do echo inside >> $f; done; echo inside > both",
    )
    .await;
    fs::write(at("edited"), "outside").unwrap();
    fs::write(at("new"), "outside").unwrap();
    fs::rename(at("new"), at("replaced")).unwrap();
    fs::remove_file(at("deleted")).unwrap();
    fs::set_permissions(at("modes"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(at("both"), "outside").unwrap();
    let refused = refusals(&session).await;
    let expected = ["M both", "A deleted", "M edited", "M modes", "M replaced"];
    assert_eq!(refused, expected.map(|change| format!("{change}: {CONFLICT}")));
    assert_eq!(read(dir.path(), "edited"), "outside");
    assert_eq!(read(dir.path(), "replaced"), "outside");
    assert_eq!(read(dir.path(), "both"), "outside");
    assert_eq!(read(dir.path(), "modes"), "modes");
    assert!(!at("deleted").exists());
    assert_eq!(read(dir.path(), "mine"), "mineinside\n", "this one nobody else touched");
    assert!(is_without_temporaries(dir.path()));
    assert_eq!(refusals(&session).await.len(), expected.len(), "refused changes are kept");
}

#[tokio::test]
async fn files_that_others_changed_are_not_deleted() {
    require_overlay!();
    let dir = with_files(&["f", "d/a", "d/deep/b", "whole/c"]);
    let session = session(dir.path()).await;
    shell(&session, "rm -r f d whole").await;
    fs::write(dir.path().join("f"), "outside").unwrap();
    fs::write(dir.path().join("d/deep/b"), "outside").unwrap();
    assert_eq!(refusals(&session).await, [format!("D d/: {CONFLICT}"), format!("D f: {CONFLICT}")]);
    assert_eq!((read(dir.path(), "f"), read(dir.path(), "d/deep/b")), ("outside".into(), "outside".into()));
    assert_eq!(read(dir.path(), "d/a"), "d/a", "the directory is as it was");
    assert!(!dir.path().join("whole").exists());
    assert!(is_without_temporaries(dir.path()));
}

#[tokio::test]
async fn files_that_others_added_to_a_deleted_directory_are_kept() {
    require_overlay!();
    let dir = with_files(&["d/a"]);
    let session = session(dir.path()).await;
    shell(&session, "rm -r d; mkdir d; echo x > d/mine").await;
    fs::write(dir.path().join("d/theirs"), "outside").unwrap();
    assert_eq!(refusals(&session).await, [format!("D d/theirs: {CONFLICT}")]);
    assert_eq!((read(dir.path(), "d/theirs"), read(dir.path(), "d/mine")), ("outside".into(), "x\n".into()));
    assert!(!dir.path().join("d/a").exists());
}

#[tokio::test]
async fn a_directory_that_others_moved_into_a_deleted_one_is_kept() {
    require_overlay!();
    for below in ["build", "build/deep"] {
        let dir = with_files(&["build/o", "build/deep/o", "notes/old", "notes/draft"]);
        let moved = dir.path().join(below).join("notes");
        let session = session(dir.path()).await;
        shell(&session, "rm -r build").await;
        fs::rename(dir.path().join("notes"), &moved).unwrap();
        // From now on it looks like a directory that lost an entry.
        fs::remove_file(moved.join("draft")).unwrap();
        assert_eq!(refusals(&session).await, [format!("D build/: {CONFLICT}")]);
        assert_eq!(read(&moved, "old"), "notes/old");
        assert_eq!(read(dir.path(), "build/o"), "build/o");
    }
}

#[tokio::test]
async fn a_commit_in_a_directory_does_not_prevent_its_deletion() {
    require_overlay!();
    let dir = with_files(&["d/a", "d/b", "d/deep/c", "d/deep/e", "d/theirs"]);
    let session = session(dir.path()).await;
    shell(&session, "rm d/a d/deep/c; echo x > d/new; mkdir d/n; echo x > d/n/f; echo x > d/b").await;
    fs::write(dir.path().join("d/theirs"), "outside").unwrap();
    shell(&session, "rm d/theirs").await;
    assert_eq!(refusals(&session).await, [format!("D d/theirs: {CONFLICT}")]);
    fs::remove_file(dir.path().join("d/theirs")).unwrap();
    shell(&session, "rm -r d/n d/deep").await;
    assert_eq!(commit(&session).await, ["D d/deep/", "D d/n/"]);
    shell(&session, "mkdir n; echo x > n/f; chmod 500 n").await;
    assert_eq!(commit(&session).await, ["A n/", "A n/f"]);
    shell(&session, "chmod 700 n; rm -r n").await;
    assert_eq!(commit(&session).await, ["D n/"]);
}

#[tokio::test]
async fn a_moved_file_is_not_lost_if_its_new_name_is_refused() {
    require_overlay!();
    for (moves, refused) in [
        ("mv notes final", format!("M final: {CONFLICT}")),
        ("mv d e", format!("M e/: {CONFLICT}")),
        ("mkdir .git; mv notes .git/commondir", "A .git/commondir: it is protected".to_owned()),
    ] {
        let dir = with_files(&["notes", "d/f"]);
        fs::create_dir(dir.path().join(".git")).unwrap();
        let session = session(dir.path()).await;
        shell(&session, &format!("{moves}; echo x > new")).await;
        fs::write(dir.path().join("final"), "theirs").unwrap();
        fs::write(dir.path().join("e"), "theirs").unwrap();
        let told = refusals(&session).await;
        assert!(told.contains(&refused), "{told:?}");
        let withheld =
            |line: &&String| line.starts_with("D ") && line.contains("something else was not committed");
        assert_eq!(told.iter().filter(withheld).count(), 1, "{told:?}");
        assert_eq!((read(dir.path(), "notes"), read(dir.path(), "d/f")), ("notes".into(), "d/f".into()));
        assert_eq!(read(dir.path(), "new"), "x\n");
    }
}

#[tokio::test]
async fn directories_that_others_removed_are_not_made_again() {
    require_overlay!();
    let dir = with_files(&["d/f", "e/f", "l/f", "other/f"]);
    let victim = workspace();
    fs::write(victim.path().join("f"), "victim").unwrap();
    let session = session(dir.path()).await;
    shell(&session, "for d in d e l; do echo inside >> $d/f; echo new > $d/new; done").await;
    fs::remove_dir_all(dir.path().join("d")).unwrap();
    fs::rename(dir.path().join("e"), dir.path().join("away")).unwrap();
    fs::rename(dir.path().join("other"), dir.path().join("e")).unwrap();
    fs::remove_dir_all(dir.path().join("l")).unwrap();
    std::os::unix::fs::symlink(victim.path(), dir.path().join("l")).unwrap();
    let refused = refusals(&session).await;
    assert!(refused.iter().all(|line| line.ends_with(CONFLICT)), "{refused:?}");
    for path in ["d/f", "e/f", "e/new", "l/f", "l/new"] {
        assert!(refused.iter().any(|line| line.contains(&format!(" {path}:"))), "{path}: {refused:?}");
    }
    assert!(!dir.path().join("d").exists());
    assert_eq!((read(dir.path(), "e/f"), read(dir.path(), "away/f")), ("other/f".into(), "e/f".into()));
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 1, "nothing was written through the link");
    assert_eq!(read(victim.path(), "f"), "victim");
}

#[tokio::test]
async fn neighbours_of_changed_files_are_no_conflict() {
    require_overlay!();
    let dir = with_files(&["d/mine", "d/theirs", "d/gone"]);
    let session = session(dir.path()).await;
    shell(&session, "echo inside >> d/mine; echo inside > d/new; rm d/gone").await;
    fs::write(dir.path().join("d/theirs"), "outside").unwrap();
    fs::write(dir.path().join("d/added"), "outside").unwrap();
    assert_eq!(commit(&session).await, ["D d/gone", "M d/mine", "A d/new"]);
    assert_eq!(read(dir.path(), "d/added"), "outside");
}

#[tokio::test]
async fn a_second_commit_overwrites_only_its_own_files() {
    require_overlay!();
    let dir = with_files(&["a", "b"]);
    let session = session(dir.path()).await;
    shell(&session, "echo 1 >> a; echo 1 >> b; mkdir n; echo 1 > n/c").await;
    commit(&session).await;
    fs::write(dir.path().join("b"), "outside").unwrap();
    fs::write(dir.path().join("n/theirs"), "outside").unwrap();
    shell(&session, "echo 2 >> a; echo 2 >> b; echo 2 >> n/c").await;
    assert_eq!(refusals(&session).await, [format!("M b: {CONFLICT}")]);
    assert_eq!((read(dir.path(), "a"), read(dir.path(), "b")), ("a1\n2\n".into(), "outside".into()));
    assert_eq!((read(dir.path(), "n/c"), read(dir.path(), "n/theirs")), ("1\n2\n".into(), "outside".into()));
}

#[tokio::test]
async fn files_written_right_before_the_session_are_no_conflict() {
    require_overlay!();
    for _ in 0..10 {
        let dir = with_files(&["f"]);
        fs::write(dir.path().join("f"), "just now").unwrap();
        let session = session(dir.path()).await;
        shell(&session, "echo x >> f").await;
        assert_eq!(commit(&session).await, ["M f"]);
    }
}

/// If the clock of files ticks exactly at a whole second, such a time looks like one of a file system that
/// stores only seconds.
#[tokio::test]
async fn files_made_at_a_whole_second_are_no_conflict() {
    require_overlay!();
    let second = || clock_gettime(ClockId::CLOCK_REALTIME_COARSE).unwrap().tv_sec();
    for _ in 0..3 {
        let begun = second();
        while second() == begun {}
        let dir = with_files(&["f"]);
        let session = session(dir.path()).await;
        shell(&session, "echo x >> f").await;
        assert_eq!(commit(&session).await, ["M f"]);
    }
}

#[tokio::test]
async fn a_change_right_after_the_session_began_is_a_conflict() {
    require_overlay!();
    for _ in 0..10 {
        let dir = with_files(&["f"]);
        let session = session(dir.path()).await;
        fs::write(dir.path().join("f"), "outside").unwrap();
        shell(&session, "echo inside > f").await;
        assert_eq!(refusals(&session).await, [format!("M f: {CONFLICT}")]);
    }
}

/// The same if nothing was applied: a refused directory was moved away and back for a look at its contents.
#[tokio::test]
async fn a_change_right_after_a_refusal_is_a_conflict() {
    require_overlay!();
    for _ in 0..10 {
        let dir = with_files(&["d/deep/a"]);
        let session = session(dir.path()).await;
        shell(&session, "rm -r d").await;
        fs::write(dir.path().join("d/deep/theirs"), "outside").unwrap();
        assert_eq!(refusals(&session).await, [format!("D d/: {CONFLICT}")]);
        let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).unwrap();
        let left = fs::metadata(dir.path()).unwrap();
        assert!((now.tv_sec(), now.tv_nsec()) > (left.ctime(), left.ctime_nsec()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_stays_in_the_workspace_whatever_is_swapped_meanwhile() {
    require_overlay!();
    let (dir, victim) = (workspace(), workspace());
    fs::write(victim.path().join("f"), "victim").unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    std::os::unix::fs::symlink(victim.path(), dir.path().join("link")).unwrap();
    let session = session(dir.path()).await;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (base, stopped) = (dir.path().to_owned(), std::sync::Arc::clone(&stop));
    let exchange = std::thread::spawn(move || {
        let (d, link, aside) = (base.join("d"), base.join("link"), base.join("aside"));
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            for (from, to) in [(&d, &aside), (&link, &d), (&d, &link), (&aside, &d)] {
                let _ = fs::rename(from, to);
            }
        }
    });
    for round in 0..20 {
        // At times `d` is a link to a directory that the command does not see.
        let changes =
            format!("mkdir -p d; echo {round} > d/f; echo {round} > d/new{round}; rm -rf d/gone; : > d/gone");
        shell(&session, &format!("({changes}) 2> /dev/null; true")).await;
        for _ in 0..5 {
            session.commit().await.unwrap();
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    exchange.join().unwrap();
    assert_eq!(read(victim.path(), "f"), "victim");
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 1, "nothing came through the link");
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_finishes() {
    require_overlay!();
    let dir = workspace();
    let session = session(dir.path()).await;
    shell(&session, "for i in 1 2 3 4 5 6 7 8 9; do echo x > f$i; done").await;
    let dropped = tokio::time::timeout(std::time::Duration::from_millis(1), session.commit()).await;
    drop(dropped);
    // A commit that continues delays the second one, and commands.
    crate::support::until("it is done", || {
        fs::read_dir(dir.path()).unwrap().count() == 9 || fs::read_dir(dir.path()).unwrap().count() == 0
    });
    loop {
        match session.commit().await {
            Err(kennel::Error::Overlay(kennel::overlay::OverlayError::Running)) => {}
            committed => break assert!(committed.unwrap().refused.is_empty()),
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 9);
    assert!(is_without_temporaries(dir.path()));
    shell(&session, "cat f1").await;
}

/// The result of a script in a workspace of one mebibyte. `$0` is the command line, `$@` asks for an overlay.
fn on_a_small_disk(script: &str) -> std::process::Output {
    let dir = workspace();
    let script = format!("mount -t tmpfs -o size=1m tmpfs \"$1\" && cd \"$1\" || exit 9; shift; {script}");
    std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .arg(crate::support::kennel_path())
        .arg(dir.path())
        .args(super::flags())
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_refuses_what_does_not_fit_and_keeps_the_rest() {
    if !super::available() {
        return super::refused::is_refused_in_memory();
    }
    crate::support::only_as_root!();
    crate::support::require!(crate::support::has("unshare"), "unshare");
    let script = r#"echo old > a && echo old > big || exit 9
        "$0" run --quiet "$@" --commit -- sh -c 'echo new > a; head -c 3000000 /dev/zero > big; echo new > z'
        echo "status $?"; cat a big z; ls -A"#;
    let output = on_a_small_disk(script);
    assert_eq!(crate::support::stdout(&output), "status 125\nnew\nold\nnew\na\nbig\nz", "{output:?}");
    let said = crate::support::stderr(&output);
    assert_eq!(said, "kennel: not committed: M big: No space left on device");
}

#[test]
fn a_moved_file_is_not_lost_if_the_disk_is_full() {
    if !super::available() {
        return super::refused::is_refused_in_memory();
    }
    crate::support::only_as_root!();
    crate::support::require!(crate::support::has("unshare"), "unshare");
    let script = r#"head -c 700000 /dev/zero > movie || exit 9
        echo old > gone
        "$0" run --quiet "$@" --commit -- sh -c 'mv movie film; rm gone; echo new > a'
        echo "status $?"; wc -c < movie; ls -A"#;
    let output = on_a_small_disk(script);
    assert_eq!(crate::support::stdout(&output), "status 125\n700000\na\ngone\nmovie", "{output:?}");
    let refused = ["A film", "D gone", "D movie"];
    let lines = refused.map(|change| format!("kennel: not committed: {change}: No space left on device"));
    assert_eq!(crate::support::stderr(&output), lines.join("\n"));
}

#[tokio::test]
async fn a_directory_that_others_closed_meanwhile_stays_closed() {
    require_overlay!();
    let dir = with_files(&["keys/old"]);
    let at = |name: &str| dir.path().join(name);
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(at("keys"), mode(0o755)).unwrap();
    let session = session(dir.path()).await;
    shell(&session, "echo inside > keys/new").await;
    fs::set_permissions(at("keys"), mode(0o700)).unwrap();
    fs::write(at("keys/theirs"), "outside").unwrap();
    assert_eq!(refusals(&session).await, [format!("M keys/: {CONFLICT}")]);
    let permissions =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(at("keys")).unwrap().permissions());
    assert_eq!(permissions & 0o777, 0o700);
    assert_eq!(read(dir.path(), "keys/new"), "inside\n", "its contents are no conflict");
}

#[tokio::test]
async fn the_access_list_of_a_directory_opens_no_file() {
    require_overlay!();
    let dir = with_files(&["d/f"]);
    let at = |name: &str| dir.path().join(name);
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(at("d/f"), mode(0o640)).unwrap();
    let list = access_list(nix::unistd::geteuid().as_raw());
    if xattr::set(at("d"), "system.posix_acl_default", &list).is_err() {
        return assert!(xattr::set(at("d"), "system.posix_acl_access", &list).is_err(), "it has lists");
    }
    let session = session(dir.path()).await;
    shell(&session, "echo inside > d/f").await;
    assert_eq!(commit(&session).await, ["M d/f"]);
    assert_eq!(read(dir.path(), "d/f"), "inside\n");
    assert_eq!(xattr::get(at("d/f"), "system.posix_acl_access").unwrap(), None);
}
