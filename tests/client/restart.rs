//! The server dies and comes back.

use std::time::{Duration, Instant};

use kennel_client::{Error, Stdio};
use tokio::io::AsyncReadExt;

use crate::server::{TestServer, runs, wait_until};

/// Kills the front, and lets the client find that idle connections are closed. A request that goes out at the
/// same moment may have been read: that is an error.
async fn kill(server: &mut TestServer) {
    server.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_front_that_dies_in_the_middle_of_a_command_gives_an_error_and_no_status() {
    let mut server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    let mut child =
        command.args(["-c", "echo begun; exec sleep 4100"]).stdout(Stdio::piped()).spawn().await.unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut begun = [0; 6];
    stdout.read_exact(&mut begun).await.unwrap();
    server.kill();
    let error = child.wait().await.unwrap_err();
    assert!(matches!(error, Error::Cut { .. }), "{error:?}");
    assert!(child.wait().await.is_err(), "again");
    assert_eq!(stdout.read(&mut begun).await.unwrap(), 0);
    server.start_again();
    wait_until("its host serves", || async { session.command("true").status().await.is_ok() }).await;
    assert!(runs(&session, "4100").await, "nobody has killed it");
    drop(child);
    wait_until("it is gone", || async { !runs(&session, "4100").await }).await;
}

#[tokio::test]
async fn a_command_whose_front_dies_is_killed_when_there_is_another_one() {
    let mut server = TestServer::start("");
    let session = server.client().patience(Duration::from_secs(20)).sandbox().create().await.unwrap();
    let running = tokio::spawn(session.command("sleep").arg("4101").output());
    wait_until("it runs", || async { runs(&session, "4101").await }).await;
    server.kill();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Cut { .. }), "{error:?}");
    server.start_again();
    wait_until("it is gone", || async { !runs(&session, "4101").await }).await;
}

#[tokio::test]
async fn what_was_not_sent_is_tried_until_the_server_is_back() {
    let mut server = TestServer::start("");
    let session = server.client().patience(Duration::from_secs(20)).sandbox().create().await.unwrap();
    session.write("kept", b"1").await.unwrap();
    kill(&mut server).await;
    let waiting = session.command("cat").arg("kept").output();
    let waiting = tokio::spawn(waiting);
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.start_again();
    assert_eq!(waiting.await.unwrap().unwrap().stdout, b"1");
    assert_eq!(session.read("kept").await.unwrap(), b"1");
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_in_time() {
    let mut server = TestServer::start("");
    let session = server.session().await;
    kill(&mut server).await;
    let begun = Instant::now();
    let error = session.command("true").status().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!((Duration::from_millis(300)..Duration::from_secs(5)).contains(&begun.elapsed()));
    server.start_again();
}
