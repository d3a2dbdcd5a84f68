//! Dropped futures and handles leave no command and no sandbox.

use std::time::Duration;

use kennel_client::Stdio;
use tokio::time::timeout;

use crate::server::{TestServer, runs, wait_until};

const MOMENT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_dropped_output_kills_the_command() {
    let server = TestServer::start("");
    let session = server.session().await;
    let long = tokio::spawn(session.command("sh").args(["-c", "sleep 4001 & sleep 4001"]).output());
    wait_until("it runs", || async { runs(&session, "4001").await }).await;
    long.abort();
    wait_until("it is gone", || async { !runs(&session, "4001").await }).await;
}

#[tokio::test]
async fn a_dropped_child_is_killed_unless_it_is_to_stay() {
    let server = TestServer::start("");
    let session = server.session().await;
    let child = session.command("sleep").arg("4002").stdout(Stdio::piped()).spawn().await.unwrap();
    assert!(runs(&session, "4002").await);
    drop(child);
    wait_until("it is gone", || async { !runs(&session, "4002").await }).await;
    drop(session.command("sleep").arg("4003").kill_on_drop(false).spawn().await.unwrap());
    tokio::time::sleep(MOMENT).await;
    assert!(runs(&session, "4003").await);
}

#[tokio::test]
async fn a_start_that_is_dropped_at_any_moment_leaves_no_command() {
    let server = TestServer::start("");
    let session = server.session().await;
    for microseconds in (0..8000).step_by(250) {
        let mut command = session.command("sleep");
        let start = command.arg("4004").spawn();
        let _ = timeout(Duration::from_micros(microseconds), start).await;
    }
    wait_until("they are gone", || async { !runs(&session, "4004").await }).await;
}

#[tokio::test]
async fn a_creation_that_is_dropped_at_any_moment_leaves_no_sandbox() {
    let server = TestServer::start("");
    for milliseconds in 0..30 {
        let creation = server.client().sandbox().create();
        let _ = timeout(Duration::from_millis(milliseconds), creation).await;
    }
    wait_until("they are gone", || async { server.sandboxes() == 0 }).await;
}

#[tokio::test]
async fn the_last_handle_ends_the_session_unless_it_is_left() {
    let server = TestServer::start("");
    let session = server.session().await;
    let other = session.clone();
    drop(session);
    tokio::time::sleep(MOMENT).await;
    assert!(other.command("true").status().await.unwrap().status.success());
    drop(other);
    wait_until("it has ended", || async { server.sandboxes() == 0 }).await;
    let id = server.session().await.leave();
    tokio::time::sleep(MOMENT).await;
    let again = server.client().attach(&id).await.unwrap();
    assert!(again.command("true").status().await.unwrap().status.success());
    drop(again);
    tokio::time::sleep(MOMENT).await;
    server.client().attach(&id).await.unwrap().end().await.unwrap();
    wait_until("it has ended", || async { server.sandboxes() == 0 }).await;
}

#[test]
fn handles_that_are_dropped_outside_of_the_runtime_end_what_they_stand_for() {
    let server = TestServer::start("");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (session, child) = runtime.block_on(async {
        let session = server.session().await;
        let child = session.command("sleep").arg("4005").spawn().await.unwrap();
        (session, child)
    });
    drop(child);
    runtime.block_on(wait_until("it is gone", || async { !runs(&session, "4005").await }));
    drop(session);
    runtime.block_on(wait_until("it has ended", || async { server.sandboxes() == 0 }));
}
