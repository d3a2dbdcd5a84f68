//! Timeouts, signals, kills and drops of one command; the session and its other commands go on.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use kennel::{
    Command, Ended, Limits, Session, Stdio,
    report::{Class, Limit},
};
use tokio::time::{sleep, timeout};

use super::{eventually, in_time, policy, ready, session, shell};
use crate::support::{HEARTBEAT, beats, has, is_silent, patient, require, workspace};

/// A command with two processes that beat and ignore signals.
fn heart(session: &Session) -> Command {
    let mut command = session.command("sh");
    command.args(["-c", &format!("trap '' TERM INT HUP; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

async fn beating(workspace: &std::path::Path) {
    let before = beats(workspace);
    eventually("a heartbeat", || beats(workspace) > before + 2).await;
}

#[tokio::test]
async fn a_timeout_ends_everything_of_its_command() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let start = Instant::now();
    let outcome =
        in_time(heart(&session).timeout(patient(Duration::from_millis(300))).status()).await.unwrap();
    let at_end = beats(dir.path());
    assert_eq!(
        (outcome.exit_code(), outcome.ended, outcome.limit),
        (124, Ended::TimedOut, Some(Limit::WallTime))
    );
    assert_eq!(outcome.failure().unwrap().class, Class::Timeout);
    assert!(start.elapsed() < patient(Duration::from_secs(3)) && at_end > 0);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(beats(dir.path()), at_end, "dead when it returns");
    shell(&session, "true").await;
}

#[tokio::test]
async fn the_policy_s_timeout_is_the_upper_bound() {
    let dir = workspace();
    let session = Session::prepare(&policy(dir.path()).timeout(Duration::from_millis(300))).await.unwrap();
    for longer in [Duration::from_secs(60), Duration::MAX] {
        let outcome = in_time(session.command("sleep").arg("60").timeout(longer).status()).await.unwrap();
        assert_eq!((outcome.exit_code(), outcome.ended), (124, Ended::TimedOut));
    }
    let limits = Limits { timeout: Some(Duration::from_millis(50).into()), ..Limits::default() };
    let outcome = in_time(session.command("sleep").arg("60").limits(limits).status()).await.unwrap();
    assert!(
        outcome.ended == Ended::TimedOut && outcome.duration < patient(Duration::from_millis(290)),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn timeouts_of_every_length_end_their_command() {
    let dir = workspace();
    let session = session(dir.path()).await;
    for micros in [0, 1, 50, 200, 500, 1000, 2000, 5000] {
        let span = Duration::from_micros(micros);
        let outcome = in_time(session.command("sleep").arg("60").timeout(span).status()).await.unwrap();
        assert_eq!(outcome.ended, Ended::TimedOut, "{span:?}");
    }
    shell(&session, "true").await;
}

#[tokio::test]
async fn output_before_a_timeout_is_kept() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut command = session.command("sh");
    command.args(["-c", "echo early; sleep 60"]).timeout(patient(Duration::from_millis(300)));
    let out = in_time(command.output()).await.unwrap();
    assert_eq!((out.ended, &*out.stdout), (Ended::TimedOut, &b"early\n"[..]));
}

#[tokio::test]
async fn signals_reach_the_command_and_no_other() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut one = ready(session.command("sh").args(["-c", script]), 1).await;
    let mut other = ready(session.command("sh").args(["-c", script]), 1).await;
    one.signal(15).unwrap();
    assert_eq!(in_time(one.wait()).await.unwrap().status.code(), Some(9));
    assert!(timeout(Duration::from_millis(100), other.wait()).await.is_err(), "it runs on");
    one.signal(15).unwrap();
    assert_eq!(other.signal(-1).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    other.signal(15).unwrap();
    assert_eq!(in_time(other.wait()).await.unwrap().status.code(), Some(9));
}

#[tokio::test]
async fn a_stopped_command_can_go_on_or_be_killed() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut child = in_time(heart(&session).spawn()).await.unwrap();
    beating(dir.path()).await;
    child.signal(19).unwrap();
    eventually("a stop", || is_silent(dir.path())).await;
    child.signal(18).unwrap();
    beating(dir.path()).await;
    child.signal(19).unwrap();
    let outcome = in_time(child.kill()).await.unwrap();
    assert_eq!((outcome.ended, outcome.status.signal()), (Ended::Killed, Some(9)));
    assert_eq!(outcome.failure().unwrap().class, Class::Cancelled);
    assert!(is_silent(dir.path()));
    shell(&session, "true").await;
}

#[tokio::test]
async fn a_dropped_child_is_killed_and_its_neighbour_is_not() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut other = ready(session.command("sh").args(["-c", "echo ready; sleep 1; exit 7"]), 1).await;
    let child = in_time(heart(&session).spawn()).await.unwrap();
    beating(dir.path()).await;
    drop(child);
    eventually("it stops beating", || is_silent(dir.path())).await;
    assert_eq!(in_time(other.wait()).await.unwrap().status.code(), Some(7));
    assert_eq!(session.stats().running, 0);
}

#[tokio::test]
async fn kill_on_drop_false_lets_a_command_finish() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut command = session.command("sh");
    command.args(["-c", "sleep 0.2; touch finished; exec sleep 0.1"]).kill_on_drop(false);
    drop(in_time(command.spawn()).await.unwrap());
    assert_eq!(session.stats().running, 1);
    eventually("it finishes", || dir.path().join("finished").exists()).await;
    eventually("it ends", || session.stats().running == 0).await;
}

#[tokio::test]
async fn kill_on_drop_false_keeps_the_timeout_and_ends_with_the_session() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut command = heart(&session);
    command.kill_on_drop(false).timeout(patient(Duration::from_millis(300)));
    drop(in_time(command.spawn()).await.unwrap());
    beating(dir.path()).await;
    eventually("its time is up", || is_silent(dir.path())).await;
    drop(in_time(heart(&session).kill_on_drop(false).spawn()).await.unwrap());
    beating(dir.path()).await;
    drop(session);
    eventually("the session's end", || is_silent(dir.path())).await;
}

#[tokio::test]
async fn wait_can_be_cancelled_and_called_again() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut child = in_time(session.command("sh").args(["-c", "sleep 0.3; exit 5"]).spawn()).await.unwrap();
    let mut rounds = 0;
    let outcome = loop {
        rounds += 1;
        if let Ok(outcome) = timeout(Duration::from_millis(20), child.wait()).await {
            break outcome.unwrap();
        }
    };
    assert!(outcome.status.code() == Some(5) && (3..100).contains(&rounds), "{rounds}: {outcome:?}");
}

/// A stop that its parent sees, because the command asked to be traced, is not an end.
#[tokio::test]
async fn a_command_that_stops_for_its_tracer_has_not_ended() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let session = session(dir.path()).await;
    let script = "import ctypes,os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 10)";
    let mut command = session.command("python3");
    let out = in_time(command.args(["-c", script]).timeout(patient(Duration::from_millis(700))).output())
        .await
        .unwrap();
    assert_eq!((out.ended, out.exit_code()), (Ended::TimedOut, 124), "{:?}", out.status);
}

#[tokio::test]
async fn a_second_wait_returns_the_same() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut child = ready(session.command("sh").args(["-c", "echo ready; exit 3"]), 1).await;
    let outcome = in_time(child.wait()).await.unwrap();
    assert_eq!(outcome.status.code(), Some(3));
    assert_eq!(in_time(child.wait()).await.unwrap(), outcome);
    child.signal(libc::SIGTERM).unwrap();
    assert_eq!(in_time(child.kill()).await.unwrap(), outcome);
    assert_eq!(in_time(child.wait_with_output()).await.unwrap().outcome, outcome);
}

#[tokio::test]
async fn invalid_signals_are_refused() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
    for number in [-1, 65, 9999, i32::MAX] {
        assert_eq!(child.signal(number).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{number}");
    }
    child.signal(libc::SIGRTMAX()).unwrap();
    assert_eq!(in_time(child.wait()).await.unwrap().status.signal(), Some(libc::SIGRTMAX()));
}
