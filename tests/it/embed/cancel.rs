//! The caller drops anything at any time: no process, descriptor or zombie is left.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use kennel::{Command, Ended, Error, Policy, Profile, Sandbox, Signal, Stdio, report::Class};

use super::{beating, sandbox, silent};
use crate::support::{BEATEN, HEARTBEAT, beats, is_alone, own_children, patient, until, workspace};

fn heart(workspace: &std::path::Path) -> Command {
    let mut command = sandbox(workspace).command("sh");
    command.args(["-c", &format!("trap '' TERM INT HUP; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[tokio::test]
async fn dropped_child_is_killed() {
    let dir = workspace();
    let child = heart(dir.path()).spawn().await.unwrap();
    beating(dir.path()).await;
    drop(child);
    silent(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_child_is_killed_on_many_threads() {
    let dir = workspace();
    let child = heart(dir.path()).spawn().await.unwrap();
    beating(dir.path()).await;
    drop(child);
    silent(dir.path()).await;
}

#[test]
fn child_dropped_outside_of_the_runtime_is_killed() {
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(async {
        let child = heart(dir.path()).spawn().await.unwrap();
        beating(dir.path()).await;
        child
    });
    drop(child);
    assert!(crate::support::is_silent(dir.path()));
    let child = runtime.block_on(async { heart(dir.path()).spawn().await.unwrap() });
    drop(runtime);
    drop(child);
    crate::support::until("it stops beating", || crate::support::is_silent(dir.path()));
}

#[test]
fn end_of_the_runtime_ends_its_commands() {
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut child = heart(dir.path()).spawn().await.unwrap();
        tokio::spawn(async move { child.wait().await });
        heart(dir.path()).kill_on_drop(false).spawn().await.unwrap();
        beating(dir.path()).await;
    });
    drop(runtime);
    crate::support::until("they stop beating", || crate::support::is_silent(dir.path()));
}

#[tokio::test]
async fn cancelled_futures_leave_no_process() {
    let dir = workspace();
    for millis in [0u64, 1, 2, 4, 8, 16, 32, 64] {
        let wait = Duration::from_millis(millis);
        let mut command = heart(dir.path());
        assert!(tokio::time::timeout(wait, command.status()).await.is_err());
        let mut command = heart(dir.path());
        assert!(tokio::time::timeout(wait, command.output()).await.is_err());
        let mut command = heart(dir.path());
        assert!(tokio::time::timeout(wait, command.output_with_input(b"x")).await.is_err());
        let mut command = heart(dir.path());
        if let Ok(child) = tokio::time::timeout(wait, command.spawn()).await {
            assert!(tokio::time::timeout(wait, child.unwrap().wait_with_output()).await.is_err());
        }
    }
    silent(dir.path()).await;
}

#[tokio::test]
async fn kill_ends_everything_and_says_so() {
    let dir = workspace();
    let mut child = heart(dir.path()).spawn().await.unwrap();
    beating(dir.path()).await;
    let start = Instant::now();
    let outcome = child.kill().await.unwrap();
    let at_end = beats(dir.path());
    assert!(start.elapsed() < patient(Duration::from_secs(2)));
    assert_eq!((outcome.ended, outcome.status.signal()), (Ended::Killed, Some(9)));
    assert_eq!(outcome.failure().unwrap().class, Class::Cancelled);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(beats(dir.path()), at_end, "dead when kill returns");
}

#[tokio::test]
async fn kill_ends_a_stopped_command() {
    let dir = workspace();
    let mut child = heart(dir.path()).spawn().await.unwrap();
    beating(dir.path()).await;
    child.signal(Signal::STOP).unwrap();
    silent(dir.path()).await;
    assert_eq!(child.kill().await.unwrap().ended, Ended::Killed);
}

#[tokio::test]
async fn signals_reach_the_command() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    command.args(["-c", "trap 'exit 9' TERM; touch ready; while :; do sleep 0.02; done"]);
    let mut child = command.spawn().await.unwrap();
    while !dir.path().join("ready").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.signal(Signal::TERM).unwrap();
    assert_eq!(child.wait().await.unwrap().status.code(), Some(9));
    child.signal(Signal::TERM).unwrap();
    child.start_kill().unwrap();
}

#[tokio::test]
async fn kill_on_drop_false_lets_it_finish() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    let child = command.args(["-c", "sleep 0.3; touch finished"]).kill_on_drop(false).spawn().await.unwrap();
    drop(child);
    for _ in 0..200 {
        if dir.path().join("finished").exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it was killed");
}

#[tokio::test]
async fn kill_on_drop_false_keeps_the_timeout() {
    let dir = workspace();
    let mut command = heart(dir.path());
    let child =
        command.kill_on_drop(false).timeout(patient(Duration::from_millis(300))).spawn().await.unwrap();
    drop(child);
    beating(dir.path()).await;
    silent(dir.path()).await;
}

#[tokio::test]
async fn background_processes_end_with_the_command() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    let outcome = command.args(["-c", &format!("({HEARTBEAT}) & {BEATEN}")]).status().await.unwrap();
    let at_end = beats(dir.path());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(outcome.usage.killed >= 1 && at_end > 0 && beats(dir.path()) == at_end);
}

#[test]
fn an_eager_sandbox_serves_every_command_and_leaves_nothing() {
    let test = "embed::cancel::an_eager_sandbox_serves_every_command_and_leaves_nothing";
    if !is_alone(test, "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let policy = Policy::profile(Profile::NoNetwork, dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = Sandbox::eager(&policy).unwrap();
        for number in ["one", "two", "three"] {
            let out = sandbox.command("echo").arg(number).output().await.unwrap();
            assert_eq!(out.stdout, format!("{number}\n").as_bytes());
        }
        drop(Sandbox::eager(&policy).unwrap());
        drop(Sandbox::eager(&policy).unwrap().command("true"));
        // The sandbox has started by the time it looks at the workspace.
        let error = Sandbox::eager(&Policy::profile(Profile::NoNetwork, "/absent")).unwrap_err();
        assert!(matches!(error, Error::Grant { what: "workspace", .. }), "{error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    });
    drop(runtime);
    until("nothing is left", || own_children() == 0);
}
