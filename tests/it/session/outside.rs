//! Changes outside while a session lives: its walls still hold, and the user's files stay.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use kennel::{Isolation, Mount, Session, TmpLife};

use super::{git, in_time, ready, said, shell};
use crate::support::{World, has, patient, require, workspace};

async fn refused(session: &Session, script: &str) {
    let out = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.outcome.status.success() && text.contains("Read-only file system"), "{script}: {text}");
}

#[tokio::test]
async fn git_files_stay_protected_after_git_replaced_them_outside() {
    require!(has("git"), "git");
    let world = World::new();
    git(world.path(), &["init", "-q"]);
    let session = world.session().await;
    refused(&session, "echo x >> .git/config").await;
    for name in ["one", "two"] {
        git(world.path(), &["config", "user.name", name]);
        refused(&session, "echo x >> .git/config").await;
        refused(&session, "echo x > .git/hooks/pre-commit").await;
    }
    fs::rename(world.at(".git/hooks"), world.at(".git/hooks.old")).unwrap();
    fs::create_dir(world.at(".git/hooks")).unwrap();
    refused(&session, "echo x > .git/hooks/pre-commit").await;
    shell(&session, "git config user.name && echo ok > file && git add file").await;
}

#[tokio::test]
async fn a_mask_stays_when_its_file_is_replaced_outside() {
    let world = World::new();
    let file = world.at(".env");
    fs::write(&file, "SECRET=1").unwrap();
    fs::create_dir(world.at("keys")).unwrap();
    fs::write(world.at("keys/one"), "SECRET=2").unwrap();
    let policy = world.policy().mask(&file).mask(world.at("keys"));
    let session = Session::prepare(&policy).await.unwrap();
    for round in 0..3 {
        assert_eq!(shell(&session, "cat .env; ls keys").await, "", "{round}");
        fs::write(world.at("new"), format!("SECRET={round}")).unwrap();
        fs::rename(world.at("new"), &file).unwrap();
        fs::rename(world.at("keys"), world.at(format!("keys{round}"))).unwrap();
        fs::create_dir(world.at("keys")).unwrap();
        fs::write(world.at("keys/one"), "SECRET=3").unwrap();
    }
    assert_eq!(shell(&session, "cat .env; ls keys").await, "");
}

/// Its source cannot be mounted again from inside, so nothing runs without it.
#[tokio::test]
async fn a_grant_whose_mount_point_was_replaced_is_an_error() {
    let (world, other) = (World::new(), workspace());
    fs::create_dir(world.at("data")).unwrap();
    let mount = Mount::ReadOnly { source: other.path().to_owned(), target: Some(world.at("data")) };
    let session = Session::prepare(&world.policy().mount(mount)).await.unwrap();
    shell(&session, "true").await;
    fs::rename(world.at("data"), world.at("old")).unwrap();
    fs::create_dir(world.at("data")).unwrap();
    let error = in_time(session.command("true").output()).await.unwrap_err();
    assert!(error.chain().contains("again, which was replaced outside"), "{}", error.chain());
}

#[tokio::test]
async fn a_repository_made_outside_between_commands_is_the_user_s() {
    require!(has("git"), "git");
    let world = World::new();
    let session = world.session().await;
    shell(&session, "true").await;
    git(world.path(), &["init", "-q"]);
    let hook = world.at(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..2 {
        let out = in_time(session.command("true").output()).await.unwrap();
        assert!(out.outcome.denials.is_empty(), "{:?}", out.outcome.denials);
    }
    assert!(hook.exists(), "it is not removed");
    refused(&session, "echo x >> .git/hooks/pre-commit").await;
    refused(&session, "echo x >> .git/config").await;
}

#[tokio::test]
async fn a_repository_made_inside_is_reported_once_and_protected_then() {
    require!(has("git"), "git");
    let world = World::new();
    let session = world.session().await;
    let made = in_time(session.command("git").args(["init", "-q"]).output()).await.unwrap();
    assert!(made.outcome.status.success() && !made.outcome.denials.is_empty(), "{:?}", made.outcome.denials);
    let next = in_time(session.command("true").output()).await.unwrap();
    assert!(next.outcome.denials.is_empty(), "{:?}", next.outcome.denials);
    refused(&session, "echo x >> .git/config").await;
}

/// Nobody waits for the end of what runs beside it.
#[tokio::test]
async fn a_repository_made_beside_a_running_command_is_reported_once_and_protected_then() {
    require!(has("git"), "git");
    for isolation in [Isolation::Command, Isolation::Session] {
        let world = World::new();
        let session = Session::prepare(&world.policy().isolation(isolation)).await.unwrap();
        let mut running = ready(session.command("sh").args(["-c", "echo ready; exec sleep 600"]), 1).await;
        let made = in_time(session.command("git").args(["init", "-q"]).output()).await.unwrap();
        assert!(
            made.outcome.status.success() && made.outcome.denials.len() == 1,
            "{:?}",
            made.outcome.denials
        );
        for _ in 0..3 {
            let next = in_time(session.command("true").output()).await.unwrap();
            assert!(next.outcome.denials.is_empty(), "{:?}", next.outcome.denials);
        }
        refused(&session, "echo x >> .git/config").await;
        // What was not there is not there yet.
        let more =
            session.command("sh").args(["-c", "echo x > .git/config.worktree"]).output().await.unwrap();
        assert_eq!(
            (more.outcome.denials.len(), world.at(".git/config.worktree").exists()),
            (1, false),
            "{more:?}"
        );
        running.kill().await.unwrap();
        refused(&session, "echo x >> .git/config").await;
        // Without a command that runs, what appears is the user's.
        git(world.path(), &["config", "user.name", "me"]);
        fs::create_dir_all(world.at(".git/hooks")).unwrap();
        fs::write(world.at(".git/hooks/pre-commit"), "").unwrap();
        let next = in_time(session.command("true").output()).await.unwrap();
        assert!(next.outcome.denials.is_empty(), "{:?}", next.outcome.denials);
        assert!(world.at(".git/hooks/pre-commit").exists());
    }
}

/// If commands share private directories, none can move another's grants.
#[tokio::test]
async fn the_way_to_a_grant_in_a_shared_place_cannot_be_moved() {
    let (world, other) = (World::new(), workspace());
    fs::write(other.path().join("file"), "secret").unwrap();
    let target = Path::new("/tmp/way/to/data");
    let mount = Mount::ReadWrite { source: other.path().to_owned(), target: Some(target.to_owned()) };
    let policy = world.policy().mount(mount).tmp(TmpLife::Session);
    let session = Session::prepare(&policy).await.unwrap();
    let script = "mv /tmp/way /tmp/gone 2>&1; mv /tmp/way/to /tmp/way/gone 2>&1; rm -rf /tmp/way 2>/dev/null; ls /tmp/way/to";
    let said_so = shell(&session, script).await;
    assert!(said_so.matches("busy").count() == 2 && said_so.ends_with("data\n"), "{said_so}");
    let hidden = said(session.command("sh").args(["-c", "ls /tmp/way/to/data"]).hide(target)).await;
    assert_eq!(hidden, "");
    shell(&session, "echo ok > /tmp/way/beside && test -e /tmp/way/beside").await;
    assert_eq!(shell(&session, "cat /tmp/way/beside").await, "ok\n", "the place is shared and writable");
}

#[tokio::test]
async fn output_ends_with_its_command_whoever_holds_the_pipe() {
    let world = World::new();
    let session = world.session().await;
    let begun = Instant::now();
    let mut command = session.command("sh");
    command.args(["-c", "sleep 60 & echo said"]).background(true);
    let out = in_time(command.output()).await.unwrap();
    assert_eq!(out.stdout, b"said\n");
    assert!(begun.elapsed() < patient(Duration::from_secs(5)), "{:?}", begun.elapsed());
}

#[test]
fn a_wall_that_was_skipped_is_off_in_the_report_of_the_session() {
    require!(has("unshare"), "unshare of util-linux");
    super::in_a_user_namespace(
        "outside::a_wall_that_was_skipped_is_off_in_the_report_of_the_session",
        "echo 0 > /proc/sys/user/max_net_namespaces; echo 0 > /proc/sys/user/max_ipc_namespaces",
        async || {
            let world = World::new();
            let optional = kennel::Requirement::IfAvailable;
            let policy = world
                .policy()
                .require(kennel::report::Protection::NetworkNamespace, optional)
                .require(kennel::report::Protection::IpcNamespace, optional);
            let session = Session::prepare(&policy).await.unwrap();
            let out = in_time(session.command("true").output()).await.unwrap();
            let state = |enforcement: &kennel::report::Enforcement, protection| {
                enforcement.get(protection).map(|entry| entry.state)
            };
            let off = Some(kennel::report::State::Off);
            assert_eq!(state(&out.outcome.enforcement, kennel::report::Protection::NetworkNamespace), off);
            assert_eq!(state(&out.outcome.enforcement, kennel::report::Protection::IpcNamespace), off);
            assert_eq!(state(&session.enforcement(), kennel::report::Protection::NetworkNamespace), off);
        },
    );
}

#[tokio::test]
async fn a_second_name_of_a_protected_file_is_reported() {
    require!(has("git"), "git");
    let world = World::new();
    git(world.path(), &["init", "-q"]);
    let session = world.session().await;
    let state = |enforcement: &kennel::report::Enforcement| {
        enforcement.get(kennel::report::Protection::ProtectedPaths).map(|entry| entry.state)
    };
    assert_eq!(state(&session.enforcement()), Some(kennel::report::State::Enforced));
    git(world.path(), &["config", "a.b", "c"]);
    fs::hard_link(world.at(".git/config"), world.at("copy")).unwrap();
    let out = in_time(session.command("true").output()).await.unwrap();
    assert_eq!(state(&out.outcome.enforcement), Some(kennel::report::State::Degraded));
    assert_eq!(state(&session.enforcement()), Some(kennel::report::State::Degraded));
}

/// Then there is no mount to restore, and workers have no steps of their own.
#[tokio::test]
async fn a_repository_that_comes_and_goes_outside_is_no_problem() {
    let world = World::new();
    let session = world.session().await;
    for _ in 0..2 {
        fs::create_dir_all(world.at(".git/hooks")).unwrap();
        refused(&session, "echo x > .git/hooks/pre-commit").await;
        fs::remove_dir_all(world.at(".git")).unwrap();
        shell(&session, "true").await;
    }
}

/// Workers wait for their commands: a file that appeared meanwhile was there before the command.
#[tokio::test]
async fn files_made_before_a_command_are_moved_aside_after_it() {
    let world = World::new();
    let session = world.session().await;
    shell(&session, "true").await;
    fs::create_dir(world.at("old")).unwrap();
    fs::write(world.at("old/f"), "keep").unwrap();
    shell(&session, "mkdir .git; mv old .git/commondir").await;
    let kept = world.at(".git/commondir.refused-by-kennel.0/f");
    assert_eq!(fs::read_to_string(kept).expect("what was there before"), "keep");
    assert!(!world.at(".git/commondir").exists());
    // An entry without data is removed.
    shell(&session, "mkdir .git/commondir").await;
    assert!(!world.at(".git/commondir").exists());
    assert_eq!(fs::read_dir(world.at(".git")).unwrap().count(), 1);
}
