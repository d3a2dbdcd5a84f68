//! Storms of processes in a session whose commands share them: each process forks the next one and ends, so
//! that nobody finds them one after the other. Each storm here is bounded: some dozen chains, which end by
//! themselves.

use std::{fs, path::Path, time::Duration};

use kennel::{Ended, Error, Limits, Session, Signal, report::Wording};
use tokio::time::timeout;

use super::super::{attempt, in_time, ready, shell};
use super::{are_gone_or_told, are_gone_soon, into_timeout, processes, shared};
use crate::{
    plan::limits::has_pid_max,
    support::{World, eventually, is_root},
};

/// How long a storm lasts if nobody ends it, in seconds.
const LIFE: u64 = 60;

fn storm(session: &Session, workspace: &Path, more: &str) -> kennel::Command {
    attempt(session, &format!("storm 60 {LIFE} {}/storm {more}", workspace.display()))
}

/// Nothing of the storm runs: nothing writes, and no process is left but `others`.
async fn is_over(session: &Session, workspace: &Path, others: &[&str]) {
    let length = || fs::metadata(workspace.join("storm")).expect("it began").len();
    let before = length();
    assert!(before > 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(length(), before, "nothing writes after the report");
    assert_eq!(processes(session).await, others);
}

#[tokio::test]
async fn a_storm_has_ended_when_the_timeout_is_reported() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    shell(&session, "sleep 1000 > /dev/null 2>&1 &").await;
    for more in ["", "cont"] {
        let command = || storm(&session, world.path(), more);
        let out = into_timeout(&world.at("storm"), Duration::from_secs(1), command).await;
        are_gone_or_told(&session, &out).await;
        // Whoever answers SIGSTOP by SIGCONT may cost the others their lives.
        match processes(&session).await.as_slice() {
            [] if more == "cont" => is_over(&session, world.path(), &[]).await,
            _ => is_over(&session, world.path(), &["sleep 1000"]).await,
        }
    }
    // What was stopped meanwhile goes on.
    let states = shell(&session, "cat /proc/[0-9]*/stat | grep -c ') T '; true").await;
    assert_eq!(states, "0\n");
}

/// Processes that live for some microseconds are gone when somebody who has just listed them looks at them.
/// Here their worker is killed, so there is one look for them, and no second kill.
#[tokio::test]
async fn a_chain_too_fast_for_any_look_has_ended_when_the_error_is_there() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    for round in 0..40 {
        let chain = format!("/payload chain {} {LIFE} storm", 1 + round % 2);
        let script =
            format!("rm -f storm; {chain} & until [ -s storm ]; do sleep 0.01; done; kill -9 $PPID; wait");
        let lost = in_time(session.command("sh").args(["-c", &script]).output()).await;
        match lost {
            Err(Error::Lost) => {}
            Err(Error::StillRuns) => are_gone_soon(&session).await,
            other => panic!("{other:?}"),
        }
        is_over(&session, world.path(), &[]).await;
    }
}

#[tokio::test]
async fn a_fast_chain_has_ended_when_the_timeout_is_reported() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    // The kernel itself continues the last two.
    for more in ["", "timer", "parent"] {
        for chains in [1, 2] {
            let words = format!("chain {chains} {LIFE} {}/storm {more}", world.path().display());
            let command = || attempt(&session, &words);
            let out = into_timeout(&world.at("storm"), Duration::from_millis(300), command).await;
            are_gone_or_told(&session, &out).await;
            is_over(&session, world.path(), &[]).await;
        }
    }
}

/// Whoever stops others on purpose has the word: a debugger, ^Z, a user who waits for disk space.
#[tokio::test]
async fn what_others_have_stopped_stays_so_while_a_storm_ends() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    // More processes than init remembers at a time.
    let mut tree = in_time(attempt(&session, "stopped-tree 10").spawn()).await.unwrap();
    let script = "trap 'echo > went-on' CONT; kill -STOP $$";
    let mut stopped = in_time(session.command("sh").args(["-c", script]).spawn()).await.unwrap();
    // A storm may leave others no process to fork.
    let script = "trap 'echo > was-stopped' CONT; mkfifo pipe; exec 3<>pipe; echo ready; \
        while :; do read line <&3; done";
    let mut running = ready(session.command("sh").args(["-c", script]), 1).await;
    let mut command = session.command("sleep");
    command.arg("1000");
    let mut with_terminal = in_time(command.terminal(24, 80).spawn()).await.unwrap();
    let mut stops = with_terminal.stops();
    let are_stopped = || async {
        shell(&session, "cat /proc/[0-9]*/stat | grep -c ') T '; true").await.trim().parse::<u32>().unwrap()
    };
    while are_stopped().await < 1025 {}

    let exists = |name: &str| world.at(name).exists();
    let file = world.at("storm");
    let storms = async {
        // A busy machine slows a storm, and then it ends without a stop.
        for _ in 0..20 {
            let mut storm = in_time(storm(&session, world.path(), "").spawn()).await.unwrap();
            eventually("it is a storm", || fs::metadata(&file).is_ok_and(|file| file.len() > 2000)).await;
            in_time(storm.kill()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(are_stopped().await, 1025);
            if exists("was-stopped") {
                return;
            }
            fs::remove_file(&file).unwrap();
        }
        panic!("nothing was stopped");
    };
    tokio::select! {
        () = storms => {}
        end = with_terminal.wait() => panic!("{end:?}"),
    }
    assert!(timeout(Duration::ZERO, stops.next()).await.is_err(), "no stop is reported");
    assert!(!exists("went-on"));
    for child in [&mut tree, &mut running, &mut with_terminal] {
        in_time(child.kill()).await.unwrap();
    }
    stopped.signal(Signal::CONT).unwrap();
    in_time(stopped.wait()).await.unwrap();
    assert!(exists("went-on"));
}

#[tokio::test]
async fn a_busy_neighbour_is_not_stopped_for_each_kill() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let script = "trap 'echo x >> stops' CONT; echo ready; while :; do (:); (: & :) & wait; done";
    let mut busy = ready(session.command("sh").args(["-c", script]), 1).await;
    let script = "i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done; wait";
    for _ in 0..30 {
        let mut command = session.command("sh");
        command.args(["-c", script]).timeout(Duration::from_millis(50));
        let out = in_time(command.output()).await.unwrap();
        assert_eq!(out.outcome.ended, Ended::TimedOut);
    }
    let stops = fs::read(world.at("stops")).map_or(0, |stops| stops.len() / 2);
    // On a busy machine, init may be interrupted in the middle of its looks.
    assert!(stops < 15, "{stops} of 30");
    in_time(busy.kill()).await.unwrap();
}

#[tokio::test]
async fn a_storm_that_kills_its_own_worker_has_ended_when_the_error_is_there() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    for _ in 0..3 {
        let lost = in_time(storm(&session, world.path(), "kill").output()).await;
        assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
        is_over(&session, world.path(), &[]).await;
    }
}

#[tokio::test]
async fn a_storm_ends_with_its_client() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let child = storm(&session, world.path(), "").spawn().await.unwrap();
    let file = world.at("storm");
    eventually("the storm has begun", || fs::metadata(&file).is_ok_and(|file| file.len() > 0)).await;
    drop(child);
    eventually("a moment without a beat", || {
        let length = || fs::metadata(&file).map_or(0, |file| file.len());
        let before = length();
        std::thread::sleep(Duration::from_millis(50));
        length() == before
    })
    .await;
    for _ in 0..100 {
        if processes(&session).await.is_empty() {
            return;
        }
    }
    panic!("{:?}", processes(&session).await);
}

/// A shell survives what its snippet did, or ends with it. Either way the caller learns what still runs.
#[tokio::test]
async fn what_an_interrupted_snippet_leaves_running_is_said() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let shell = session.shell();
    in_time(shell.run("sleep 1001 & true")).await.unwrap();
    let snippet = "setsid sleep 1002 > /dev/null 2>&1 & sleep 1003";
    let out = in_time(shell.snippet(snippet).timeout(Duration::from_millis(500)).output()).await.unwrap();
    assert_eq!(out.outcome.ended, Ended::TimedOut);
    let said: Vec<String> =
        out.outcome.enforcement.notes().iter().map(|note| note.line(Wording::default())).collect();
    let expected = "shell: 1 process that the interrupted snippet started still runs";
    assert!(said.iter().any(|line| line.contains(expected)), "{said:?}");
    let out =
        in_time(shell.snippet("sleep 1003").timeout(Duration::from_millis(500)).output()).await.unwrap();
    assert_eq!(out.outcome.ended, Ended::TimedOut);
    let is_about = |note: &kennel::report::Note| note.subject == "shell";
    assert!(!out.outcome.enforcement.notes().iter().any(is_about), "earlier jobs are no news: {out:?}");
    in_time(shell.end()).await;
    assert_eq!(processes(&session).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_storm_of_a_snippet_is_said_and_ends_with_its_shell() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    for attempt in ["storm 60", "chain 1", "chain 2"] {
        let shell = session.shell();
        let snippet = format!("/payload {attempt} {LIFE} {}/storm", world.path().display());
        let out = in_time(shell.snippet(snippet).timeout(Duration::from_secs(1)).output()).await.unwrap();
        assert_eq!(out.outcome.ended, Ended::TimedOut);
        let is_said = out.outcome.enforcement.notes().iter().any(|note| note.text.contains("still run"));
        if !is_said && !out.has_ended {
            let length = fs::metadata(world.at("storm")).unwrap().len();
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(fs::metadata(world.at("storm")).unwrap().len(), length, "{attempt}: {out:?}");
        }
        in_time(shell.end()).await;
        is_over(&session, world.path(), &[]).await;
    }
}

#[tokio::test]
async fn a_session_without_a_limit_has_a_high_one() {
    let world = World::new();
    let default = Limits::SESSION_PIDS;
    let session = shared(world.with_payload()).await;
    if !is_root() {
        let line = shell(&session, "grep '^Max processes' /proc/self/limits").await;
        let said: u64 = line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).expect("a number");
        assert!((default..default + 100).contains(&said), "{said}");
    }
    // Root's is one of the pid namespace around that of the commands.
    if !is_root() || has_pid_max() {
        let state = session.enforcement().get(kennel::report::Protection::Pids).cloned().expect("an entry");
        assert!(state.detail.starts_with("8192 by default: "), "{state:?}");
    }
    let apart = world.probing().await;
    assert!(apart.enforcement().get(kennel::report::Protection::Pids).is_none());
}
