//! Timeouts, signals, kills and drops of one command; the session and its other commands go on.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use kennel::{
    Command, Ended, Limits, Session, Signal, Stdio,
    report::{Class, Limit},
};
use tokio::time::{sleep, timeout};

use super::{eventually, in_time, ready, shell};
use crate::support::{HEARTBEAT, World, beats, has, is_silent, patient, require};

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
    let world = World::new();
    let session = world.session().await;
    let start = Instant::now();
    let outcome =
        in_time(heart(&session).timeout(patient(Duration::from_millis(300))).status()).await.unwrap();
    let at_end = beats(world.path());
    assert_eq!(
        (outcome.exit_code(), outcome.ended, outcome.limit),
        (124, Ended::TimedOut, Some(Limit::WallTime))
    );
    assert_eq!(outcome.failure().unwrap().class, Class::Timeout);
    assert!(start.elapsed() < patient(Duration::from_secs(3)) && at_end > 0);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(beats(world.path()), at_end, "dead when it returns");
    shell(&session, "true").await;
}

#[tokio::test]
async fn the_policy_s_timeout_is_the_upper_bound() {
    let world = World::new();
    let session = Session::prepare(&world.policy().timeout(Duration::from_millis(300))).await.unwrap();
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
    let world = World::new();
    let session = world.session().await;
    for micros in [0, 1, 50, 200, 500, 1000, 2000, 5000] {
        let span = Duration::from_micros(micros);
        let outcome = in_time(session.command("sleep").arg("60").timeout(span).status()).await.unwrap();
        assert_eq!(outcome.ended, Ended::TimedOut, "{span:?}");
    }
    shell(&session, "true").await;
}

#[tokio::test]
async fn signals_reach_the_command_and_no_other() {
    let world = World::new();
    let session = world.session().await;
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut one = ready(session.command("sh").args(["-c", script]), 1).await;
    let mut other = ready(session.command("sh").args(["-c", script]), 1).await;
    one.signal(Signal::TERM).unwrap();
    assert_eq!(in_time(one.wait()).await.unwrap().status.code(), Some(9));
    assert!(timeout(Duration::from_millis(100), other.wait()).await.is_err(), "it runs on");
    one.signal(Signal::TERM).unwrap();
    other.signal(Signal::TERM).unwrap();
    assert_eq!(in_time(other.wait()).await.unwrap().status.code(), Some(9));
}

#[tokio::test]
async fn a_stopped_command_can_go_on_or_be_killed() {
    let world = World::new();
    let session = world.session().await;
    let mut child = in_time(heart(&session).spawn()).await.unwrap();
    beating(world.path()).await;
    child.signal(Signal::STOP).unwrap();
    eventually("a stop", || is_silent(world.path())).await;
    child.signal(Signal::CONT).unwrap();
    beating(world.path()).await;
    child.signal(Signal::STOP).unwrap();
    let outcome = in_time(child.kill()).await.unwrap();
    assert_eq!((outcome.ended, outcome.status.signal()), (Ended::Killed, Some(9)));
    assert_eq!(outcome.failure().unwrap().class, Class::Cancelled);
    assert!(is_silent(world.path()));
    shell(&session, "true").await;
}

#[tokio::test]
async fn a_dropped_child_is_killed_and_its_neighbour_is_not() {
    let world = World::new();
    let session = world.session().await;
    let mut other = ready(session.command("sh").args(["-c", "echo ready; sleep 1; exit 7"]), 1).await;
    let child = in_time(heart(&session).spawn()).await.unwrap();
    beating(world.path()).await;
    drop(child);
    eventually("it stops beating", || is_silent(world.path())).await;
    assert_eq!(in_time(other.wait()).await.unwrap().status.code(), Some(7));
    assert_eq!(session.stats().running, 0);
}

#[tokio::test]
async fn kill_on_drop_false_lets_a_command_finish() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "sleep 0.2; touch finished; exec sleep 0.1"]).kill_on_drop(false);
    drop(in_time(command.spawn()).await.unwrap());
    assert_eq!(session.stats().running, 1);
    eventually("it finishes", || world.at("finished").exists()).await;
    eventually("it ends", || session.stats().running == 0).await;
}

#[tokio::test]
async fn kill_on_drop_false_keeps_the_timeout_and_ends_with_the_session() {
    let world = World::new();
    let session = world.session().await;
    let mut command = heart(&session);
    command.kill_on_drop(false).timeout(patient(Duration::from_millis(300)));
    drop(in_time(command.spawn()).await.unwrap());
    beating(world.path()).await;
    eventually("its time is up", || is_silent(world.path())).await;
    drop(in_time(heart(&session).kill_on_drop(false).spawn()).await.unwrap());
    beating(world.path()).await;
    drop(session);
    eventually("the session's end", || is_silent(world.path())).await;
}

/// A stop that its parent sees, because the command asked to be traced, is not an end.
#[tokio::test]
async fn a_command_that_stops_for_its_tracer_has_not_ended() {
    require!(has("python3"), "python3");
    let world = World::new();
    let session = world.session().await;
    let script = "import ctypes,os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 10)";
    let mut command = session.command("python3");
    let out = in_time(command.args(["-c", script]).timeout(patient(Duration::from_millis(700))).output())
        .await
        .unwrap();
    assert_eq!(
        (out.outcome.ended, out.outcome.exit_code()),
        (Ended::TimedOut, 124),
        "{:?}",
        out.outcome.status
    );
}

#[tokio::test]
async fn a_second_wait_returns_the_same() {
    let world = World::new();
    let session = world.session().await;
    let mut child = ready(session.command("sh").args(["-c", "echo ready; exit 3"]), 1).await;
    let outcome = in_time(child.wait()).await.unwrap();
    assert_eq!(outcome.status.code(), Some(3));
    assert_eq!(in_time(child.wait()).await.unwrap(), outcome);
    child.signal(Signal::TERM).unwrap();
    assert_eq!(in_time(child.kill()).await.unwrap(), outcome);
    assert_eq!(in_time(child.wait_with_output()).await.unwrap().outcome, outcome);
}

#[tokio::test]
async fn every_number_of_a_signal_is_one() {
    let world = World::new();
    let session = world.session().await;
    let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
    for number in [i32::MIN, -1, 0, 65, 9999, i32::MAX] {
        assert_eq!(Signal::new(number), None, "{number}");
    }
    child.signal(Signal::new(libc::SIGRTMAX()).unwrap()).unwrap();
    assert_eq!(in_time(child.wait()).await.unwrap().status.signal(), Some(libc::SIGRTMAX()));
}
