//! A pool hands out unused sessions and leaves nothing behind.

use std::time::Duration;

use kennel::{Error, Pool};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::{
    session::tree::{children, signal},
    support::{World, eventually, is_alone, policy_at, workspace},
};

/// The stdout of a script, whatever its status.
async fn said(session: &kennel::Session, script: &str) -> String {
    let out = session.command("sh").args(["-c", script]).output().await.unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A world whose commands share private directories.
fn world() -> World {
    World::new().with(|policy| policy.tmp(kennel::TmpLife::Session))
}

#[tokio::test]
async fn a_session_is_handed_out_once_and_another_takes_its_place() {
    let world = world();
    let pool = Pool::fill(&world.policy(), 2).await.unwrap();
    assert_eq!(pool.ready(), 2);
    for round in 0..5 {
        let session = pool.checkout().await.unwrap();
        assert_eq!(
            said(&session, "cat /tmp/mark; echo used > /tmp/mark; cat /tmp/mark").await,
            "used\n",
            "{round}"
        );
        assert_eq!(session.stats().served, 1, "{round}: nobody has used it before");
    }
    eventually("full again", || pool.ready() == 2).await;
}

#[tokio::test]
async fn an_empty_pool_prepares_a_session_on_request() {
    let world = world();
    let pool = Pool::fill(&world.policy(), 0).await.unwrap();
    let (one, other) = (pool.checkout().await.unwrap(), pool.checkout().await.unwrap());
    said(&one, "echo x > /tmp/x").await;
    assert_eq!(said(&other, "cat /tmp/x").await, "");
    assert_eq!(pool.ready(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_are_in_stock_can_be_had_at_once() {
    let world = world();
    let pool = Pool::fill(&world.policy(), 1).await.unwrap();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let pool = pool.clone();
        all.spawn(async move {
            let session = pool.checkout().await.unwrap();
            said(&session, "echo served").await
        });
    }
    while let Some(said) = all.join_next().await {
        assert_eq!(said.unwrap(), "served\n");
    }
    eventually("full again", || pool.ready() == 1).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(pool.ready(), 1, "no more than that");
}

#[tokio::test]
async fn a_session_that_died_in_stock_is_not_handed_out() {
    let world = world();
    let pool = Pool::fill(&world.policy(), 1).await.unwrap();
    let session = pool.checkout().await.unwrap();
    session.shutdown().await;
    assert!(session.has_ended());
    for _ in 0..3 {
        let session = pool.checkout().await.unwrap();
        assert!(!session.has_ended());
        assert_eq!(said(&session, "echo served").await, "served\n");
    }
}

#[tokio::test]
async fn a_session_that_was_killed_in_stock_is_replaced() {
    if !is_alone("session::pool::a_session_that_was_killed_in_stock_is_replaced", "exec \"$@\"") {
        return;
    }
    let world = world();
    let pool = Pool::fill(&world.policy(), 3).await.unwrap();
    signal(children(std::process::id())[1], Signal::SIGKILL);
    eventually("it is seen", || pool.ready() == 2).await;
    drop(pool.checkout().await.unwrap());
    eventually("full again", || pool.ready() == 3).await;
}

#[tokio::test]
async fn sessions_outlive_the_pool_they_came_from() {
    let world = world();
    let pool = Pool::fill(&world.policy(), 1).await.unwrap();
    let session = pool.checkout().await.unwrap();
    drop(pool);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(said(&session, "echo served").await, "served\n");
}

#[tokio::test]
async fn a_session_whose_workspace_was_replaced_is_not_handed_out() {
    let dir = workspace();
    let clone = dir.path().join("clone");
    std::fs::create_dir(&clone).unwrap();
    let pool = Pool::fill(&policy_at(&clone), 3).await.unwrap();
    std::fs::rename(&clone, dir.path().join("old")).unwrap();
    std::fs::create_dir(&clone).unwrap();
    std::fs::write(clone.join("new"), "").unwrap();
    for _ in 0..6 {
        let session = pool.checkout().await.unwrap();
        assert_eq!(said(&session, "ls").await, "new\n");
    }
    std::fs::rename(&clone, dir.path().join("gone")).unwrap();
    for _ in 0..6 {
        pool.checkout().await.unwrap_err();
    }
}

#[tokio::test]
async fn a_failed_preparation_is_an_error_of_the_request() {
    let dir = workspace();
    let gone = dir.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let pool = Pool::fill(&policy_at(&gone), 1).await.unwrap();
    std::fs::remove_dir(&gone).unwrap();
    let error = pool.checkout().await.unwrap_err();
    assert!(matches!(error, Error::Grant { what: "workspace", .. }), "{error:?}");
    let error = Pool::fill(&policy_at(&gone), 1).await.unwrap_err();
    assert!(matches!(error, Error::Grant { what: "workspace", .. }), "{error:?}");
}
