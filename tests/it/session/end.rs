//! A session ends by order or with its last handle, and everything of it ends too.

use std::{thread, time::Duration};

use kennel::{Error, Session, Stdio, report::Protection};
use nix::unistd::{Uid, setresuid};
use tokio::{runtime::Builder, task::yield_now, time::sleep};

use super::{
    alone, eventually, in_time, policy, ready, session, shell,
    tree::{children, descendants, lives, workers, zygote},
};
use crate::support::{HEARTBEAT, has, is_alone, is_silent, only_as_root, require, until, workspace};

fn own() -> u32 {
    std::process::id()
}

#[test]
fn everything_is_gone_when_the_last_handle_is_dropped() {
    alone("end::everything_is_gone_when_the_last_handle_is_dropped", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        let clone = session.clone();
        let heart = format!("(setsid sh -c '{HEARTBEAT}') & echo ready; {HEARTBEAT}");
        let mut child = ready(session.command("sh").args(["-c", &heart]), 1).await;
        drop(session);
        shell(&clone, "echo a clone is the same session").await;
        eventually("a worker that waits", || descendants(own()).len() > 6).await;
        let below = descendants(own());
        drop(clone);
        let error = in_time(child.wait()).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
        eventually("all are gone", || below.iter().all(|&pid| !lives(pid))).await;
        eventually("no zombie is left", || children(own()).is_empty()).await;
        assert!(is_silent(dir.path()));
    });
}

#[test]
fn shutdown_returns_when_everything_is_gone() {
    alone("end::shutdown_returns_when_everything_is_gone", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        let script = format!("trap '' TERM; echo ready; {HEARTBEAT}");
        let mut child = ready(session.command("sh").args(["-c", &script]), 1).await;
        let mut left = session.command("sh");
        left.args(["-c", "sleep 60 & true"]).background(true).stdin(Stdio::null());
        assert!(
            in_time(left.stdout(Stdio::null()).stderr(Stdio::null()).status())
                .await
                .unwrap()
                .status
                .success()
        );
        let below = descendants(own());
        in_time(session.shutdown()).await;
        let alive: Vec<u32> = below.into_iter().filter(|&pid| lives(pid)).collect();
        assert!(alive.is_empty(), "{alive:?}");
        let error = in_time(child.wait()).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
        in_time(session.shutdown()).await;
        in_time(session.clone().shutdown()).await;
    });
}

#[tokio::test]
async fn a_command_after_the_end_says_that_the_session_has_ended() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut before = session.command("true");
    in_time(session.shutdown()).await;
    for _ in 0..3 {
        for command in [&mut before, &mut session.command("true")] {
            for hurry in [false, true] {
                let error = in_time(command.fail_fast(hurry).output()).await.unwrap_err();
                let ended = matches!(error, Error::SessionEnded);
                assert!(ended, "in a hurry: {hurry}: {error:?}");
                assert_eq!(error.remedy(), Some("prepare a new session".into()));
            }
        }
    }
    let error = in_time(session.command("true").read_only(dir.path()).output()).await.unwrap_err();
    assert!(matches!(error, Error::SessionEnded), "{error:?}");
    let stats = session.stats();
    assert_eq!((stats.ready, stats.running, stats.served), (0, 0, 0));
}

#[tokio::test]
async fn commands_that_run_end_with_the_session() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let mut command = session.command("sleep");
        command.arg("60");
        all.spawn(async move { command.output().await });
    }
    eventually("they run", || session.stats().running == 10).await;
    in_time(session.shutdown()).await;
    while let Some(ended) = in_time(all.join_next()).await {
        let error = ended.unwrap().unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
    }
    assert_eq!(session.stats().running, 0);
}

#[test]
fn a_command_does_not_keep_its_session_alive() {
    alone("end::a_command_does_not_keep_its_session_alive", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        let mut command = session.command("true");
        let zygote = zygote();
        drop(session);
        eventually("the zygote is gone", || !lives(zygote)).await;
        let error = in_time(command.output()).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
        drop(command);
        eventually("no zombie is left", || children(own()).is_empty()).await;
    });
}

/// A program that dropped its privileges may not send signals any more.
#[test]
fn shutdown_ends_everything_after_a_change_of_ids() {
    only_as_root!();
    alone("end::shutdown_ends_everything_after_a_change_of_ids", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
        let below = descendants(own());
        let (root, nobody) = (Uid::from_raw(0), Uid::from_raw(65534));
        setresuid(nobody, nobody, root).unwrap();
        in_time(session.shutdown()).await;
        assert!(below.iter().all(|&pid| !lives(pid)), "the child is not dropped yet");
        setresuid(root, root, root).unwrap();
        let error = in_time(child.wait()).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded | Error::Lost), "{error:?}");
    });
}

/// std behaves like this for a child that was waited for.
#[test]
fn shutdown_leaves_no_zombie() {
    alone("end::shutdown_leaves_no_zombie", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        in_time(session.shutdown()).await;
        assert!(children(own()).is_empty(), "although a handle is there still");
        drop(session);
    });
}

#[test]
fn a_session_outlives_the_thread_and_the_runtime_that_prepared_it() {
    alone("end::a_session_outlives_the_thread_and_the_runtime_that_prepared_it", async || {
        let dir = workspace();
        let path = dir.path().to_owned();
        let prepare = move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = session(&path).await;
                shell(&session, "true").await;
                session
            })
        };
        let session = thread::spawn(prepare).join().unwrap();
        sleep(Duration::from_millis(50)).await;
        for _ in 0..5 {
            shell(&session, "true").await;
        }
    });
}

#[test]
fn a_session_dropped_outside_of_a_runtime_is_gone() {
    if !is_alone("session::end::a_session_dropped_outside_of_a_runtime_is_gone", "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let dropped_first = one.block_on(session(dir.path()));
    let dropped_later = other.block_on(session(dir.path()));
    let below = descendants(own());
    drop(dropped_first);
    drop(other);
    drop(dropped_later);
    until("all are gone", || below.iter().all(|&pid| !lives(pid)));
    until("no zombie is left", || children(own()).is_empty());
}

#[test]
fn futures_dropped_at_any_point_leave_nothing() {
    alone("end::futures_dropped_at_any_point_leave_nothing", async || {
        let dir = workspace();
        let session = session(dir.path()).await;
        for round in 0..60u64 {
            let wait = Duration::from_micros(round * round * 3);
            let mut command = session.command("sh");
            command.args(["-c", &format!("(setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}")]).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            if round % 4 == 0 {
                command.read_only(dir.path());
            }
            if round % 2 == 0 {
                assert!(tokio::time::timeout(wait, command.output()).await.is_err(), "it does not end");
            } else {
                let _ = tokio::time::timeout(wait, command.spawn()).await;
            }
            // Before the first poll, and after it.
            drop(command.spawn());
            tokio::select! { biased; _ = command.output() => {}, () = yield_now() => {} }
        }
        eventually("all stop beating", || is_silent(dir.path())).await;
        assert_eq!(session.stats().running, 0);
        shell(&session, "true").await;
        // The zygote, and two waiting workers, each an init and a payload.
        eventually("as at the start", || (workers().len(), descendants(own()).len()) == (2, 5)).await;
    });
}

#[test]
fn a_session_whose_preparation_is_dropped_leaves_nothing() {
    alone("end::a_session_whose_preparation_is_dropped_leaves_nothing", async || {
        let dir = workspace();
        let policy = policy(dir.path());
        for round in 0..40u64 {
            let wait = Duration::from_micros(round * 100);
            let _ = tokio::time::timeout(wait, Session::prepare(&policy)).await;
        }
        eventually("nothing is left", || children(own()).is_empty()).await;
    });
}

#[tokio::test]
async fn a_failed_preparation_says_why() {
    let error = Session::prepare(&policy("/absent".as_ref())).await.unwrap_err();
    assert!(matches!(&error, Error::Grant { what: "workspace", .. }), "{error:?}");
    let dir = workspace();
    let error = Session::prepare(&policy(dir.path()).tmpfs("relative", None)).await.unwrap_err();
    assert!(matches!(&error, Error::Policy(_)), "{error:?}");
}

/// The kernel refuses before the plan arrives. The name of the refused namespace must not get lost.
#[test]
fn a_refused_namespace_is_named() {
    require!(has("unshare"), "unshare of util-linux");
    let test = "session::end::a_refused_namespace_is_named";
    // Inside, the link in /proc cannot be followed.
    let exe = std::env::current_exe().unwrap();
    let limit = "echo 0 > /proc/sys/user/max_net_namespaces; exec \"$@\"";
    let enter = format!("exec unshare --user --map-root-user sh -c '{limit}' sh {} \"$@\"", exe.display());
    if !is_alone(test, &format!("shift; {enter}")) {
        return;
    }
    let dir = workspace();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        for _ in 0..20 {
            let error = in_time(Session::prepare(&policy(dir.path()))).await.unwrap_err();
            let Error::Step { protection, source, .. } = &error else { panic!("{}", error.chain()) };
            assert_eq!(
                (*protection, source.raw_os_error()),
                (Protection::NetworkNamespace, Some(libc::ENOSPC))
            );
        }
        eventually("nothing is left", || children(own()).is_empty()).await;
    });
}

/// If a background command creates a protected path, Kennel removes it at the end of the session.
#[tokio::test]
async fn protected_paths_that_a_background_command_makes_are_removed_at_the_end() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut command = session.command("sh");
    let script = "(until [ -e go ]; do sleep 0.01; done; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; touch done) &";
    command
        .args(["-c", script])
        .background(true)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    assert!(in_time(command.status()).await.unwrap().status.success());
    std::fs::write(dir.path().join("go"), "").unwrap();
    eventually("it is done", || dir.path().join("done").exists()).await;
    in_time(session.shutdown()).await;
    let hook = dir.path().join(".git/hooks/pre-commit");
    assert!(!hook.exists(), "when shutdown returns, the files may be used");
    drop((session, command));
    eventually("it is undone", || !hook.exists()).await;
}

#[tokio::test]
async fn what_runs_at_the_end_of_a_session_may_remove_its_locks() {
    let lock = "trap 'rm lock; exit' TERM; touch lock; while :; do sleep 0.01; done";
    for isolation in [kennel::Isolation::Command, kennel::Isolation::Session] {
        let dir = workspace();
        let policy = policy(dir.path()).isolation(isolation);
        let session = Session::prepare(&policy).await.unwrap();
        let left = format!("({lock}) > /dev/null 2>&1 & until [ -e lock ]; do sleep 0.01; done");
        let mut command = session.command("sh");
        command.args(["-c", &left]).background(true).stdin(Stdio::null());
        assert!(in_time(command.status()).await.unwrap().status.success());
        in_time(session.shutdown()).await;
        assert!(!dir.path().join("lock").exists(), "{isolation}");
    }
}
