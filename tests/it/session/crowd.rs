//! Many commands at once, and callers that do not want to wait.

use std::time::{Duration, Instant};

use kennel::{Error, Isolation, Session};
use tokio::{task::JoinSet, time::timeout};

use super::{PATIENCE, eventually, in_time, ready, said, shell};
use crate::support::{World, patient};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_commands_at_once_all_succeed() {
    let world = World::new();
    let session = world.session().await;
    let mut all = JoinSet::new();
    for number in 0..200u8 {
        let mut command = session.command("sh");
        command.args(["-c", &format!("echo {number}; exit {number}")]);
        all.spawn(async move { (number, command.output().await) });
    }
    let ended = timeout(patient(PATIENCE * 3), async {
        while let Some(ended) = all.join_next().await {
            let (number, out) = ended.unwrap();
            let out = out.unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
            assert_eq!((out.outcome.exit_code(), out.stdout), (number, format!("{number}\n").into_bytes()));
        }
    });
    ended.await.expect("it hangs");
    let stats = session.stats();
    assert_eq!((stats.running, stats.served), (0, 200));
}

#[tokio::test]
async fn commands_run_side_by_side() {
    let world = World::new();
    let session = world.session().await;
    let start = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..20 {
        let mut command = session.command("sleep");
        command.arg("0.5");
        all.spawn(async move { command.status().await.unwrap().status });
    }
    while let Some(ended) = in_time(all.join_next()).await {
        assert!(ended.unwrap().success());
    }
    assert!(start.elapsed() < patient(Duration::from_secs(5)), "{:?}", start.elapsed());
}

#[tokio::test]
async fn commands_see_the_changes_of_earlier_commands() {
    let world = World::new();
    let session = world.session().await;
    for number in 0..30 {
        shell(
            &session,
            &format!("[ \"$(tail -n1 log 2>/dev/null)\" = \"$1{}\" ]; echo {number} >> log", number - 1),
        )
        .await;
    }
    let log = std::fs::read_to_string(world.at("log")).unwrap();
    assert!(log.lines().map(|line| line.parse::<i32>().unwrap()).eq(0..30));
}

#[tokio::test]
async fn without_ready_workers_each_command_waits_for_its_own() {
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
    for number in 0..10 {
        assert_eq!(session.stats().ready, 0);
        assert_eq!(shell(&session, &format!("echo {number}")).await, format!("{number}\n"));
    }
}

#[tokio::test]
async fn a_caller_that_does_not_wait_learns_that_no_worker_is_ready() {
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
    for _ in 0..3 {
        let error = in_time(session.command("true").fail_fast(true).output()).await.unwrap_err();
        assert!(matches!(error, Error::Busy), "{error:?}");
        assert!(error.remedy().is_some());
        shell(&session, "true").await;
    }
    let stats = session.stats();
    assert_eq!((stats.running, stats.served), (0, 3));
}

#[tokio::test]
async fn a_caller_that_does_not_wait_gets_a_ready_worker() {
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(1).prepare().await.unwrap();
    for number in 0..5 {
        eventually("a ready worker", || session.stats().ready == 1).await;
        let mut command = session.command("echo");
        assert_eq!(said(command.arg(number.to_string()).fail_fast(true)).await, format!("{number}\n"));
    }
}

#[tokio::test]
async fn ready_workers_can_be_ended_and_come_back() {
    for isolation in [Isolation::Command, Isolation::Session] {
        let world = World::new();
        let policy = world.policy().isolation(isolation);
        let session = Session::builder(&policy).ready_workers(1).prepare().await.unwrap();
        eventually("a ready worker", || session.stats().ready == 1).await;
        session.end_ready_workers();
        assert_eq!(session.stats().ready, 0);
        let error = in_time(session.command("true").fail_fast(true).output()).await.unwrap_err();
        assert!(matches!(error, Error::Busy), "{error:?}");
        eventually("a worker for the next one", || session.stats().ready == 1).await;
        session.end_ready_workers();
        assert_eq!(shell(&session, "echo here").await, "here\n");
        eventually("a ready worker again", || session.stats().ready == 1).await;
    }
}

#[tokio::test]
async fn a_busy_answer_ends_soon() {
    let world = World::new();
    let session = world.session().await;
    let mut running = Vec::new();
    let mut busy = 0;
    let start = Instant::now();
    while running.len() < 20 {
        let mut command = session.command("sh");
        command.args(["-c", "echo ready; sleep 60"]).fail_fast(true);
        command.stdin(kennel::Stdio::null()).stdout(kennel::Stdio::null());
        match in_time(command.spawn()).await {
            Ok(child) => running.push(child),
            Err(Error::Busy) => {
                busy += 1;
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{}", error.chain()),
        }
        assert!(
            start.elapsed() < patient(PATIENCE),
            "never ready again: {} run, {busy} times busy",
            running.len()
        );
    }
    assert_eq!(session.stats().running, 20);
}

#[tokio::test]
async fn many_ready_workers_serve_a_burst() {
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(30).prepare().await.unwrap();
    eventually("thirty ready", || session.stats().ready == 30).await;
    let mut running = Vec::new();
    for _ in 0..30 {
        running.push(ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await);
    }
    drop(running);
    eventually("none runs", || session.stats().running == 0).await;
    eventually("thirty ready again", || session.stats().ready == 30).await;
}

/// Waiting workers are no processes of the command: they do not use up its limit.
#[tokio::test]
async fn a_limit_of_processes_leaves_room_for_the_workers_that_wait() {
    let world = World::new();
    let mut policy = world.policy();
    policy.limits.pids = Some(20);
    // Before Linux 6.14, nothing holds it for root.
    let policy = policy.require(kennel::report::Protection::Pids, kennel::Requirement::IfAvailable);
    let session = Session::builder(&policy).ready_workers(40).prepare().await.unwrap();
    eventually("forty ready", || session.stats().ready >= 39).await;
    assert_eq!(shell(&session, "echo x | cat | cat").await, "x\n");
}
