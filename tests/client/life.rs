//! Creation, attaching, ends, and what is left of lost sessions.

use std::time::Duration;

use kennel_client::{Error, Loss, Server};

use crate::require;
use crate::server::{TestServer, wait_until};

fn lost<T: std::fmt::Debug>(result: Result<T, Error>) -> Loss {
    match result.unwrap_err() {
        Error::SessionLost { reason } => reason,
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_session_that_a_client_ended_is_lost() {
    let server = TestServer::start("");
    let session = server.session().await;
    let other = server.client().attach(session.id()).await.unwrap();
    let running = tokio::spawn(session.command("sleep").arg("60").output());
    tokio::time::sleep(Duration::from_millis(300)).await;
    other.end().await.unwrap();
    assert_eq!(lost(running.await.unwrap()), Loss::Ended, "in the middle of a command");
    assert_eq!(lost(session.command("true").status().await), Loss::Ended);
    assert_eq!(lost(session.read("x").await), Loss::Ended);
    assert_eq!(lost(session.list(".").await), Loss::Ended);
    assert_eq!(lost(session.renew(Duration::from_secs(9)).await), Loss::Ended);
    assert_eq!(lost(server.client().attach(session.id()).await), Loss::Ended);
    session.end().await.unwrap();
}

#[tokio::test]
async fn a_session_lives_as_long_as_it_was_told() {
    let server = TestServer::start("");
    let short = server.client().sandbox().life(Duration::from_secs(1)).create().await.unwrap();
    let renewed = server.client().sandbox().life(Duration::from_secs(1)).create().await.unwrap();
    renewed.renew(Duration::from_secs(60)).await.unwrap();
    assert_eq!(lost(short.command("sleep").arg("60").output().await), Loss::Expired);
    assert_eq!(lost(short.command("true").status().await), Loss::Expired);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(renewed.command("true").status().await.unwrap().status.success());
}

#[tokio::test]
async fn a_session_whose_host_was_killed_is_lost() {
    let server = TestServer::start("");
    let session = server.session().await;
    let running = tokio::spawn(session.command("sleep").arg("60").output());
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.kill_hosts();
    assert_eq!(lost(running.await.unwrap()), Loss::Killed);
    assert_eq!(lost(session.command("true").status().await), Loss::Killed);
    wait_until("another host serves", || async {
        let made = server.client().sandbox().create().await;
        made.is_ok()
    })
    .await;
    assert_eq!(lost(session.read("x").await), Loss::Killed);
}

#[tokio::test]
async fn a_paused_session_refuses_and_its_files_come_back() {
    let server = TestServer::start("");
    let session = server.session().await;
    session.write("kept", b"1").await.unwrap();
    session.pause().await.unwrap();
    let refused = session.command("true").status().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 502, .. }), "{refused:?}");
    session.resume(Duration::from_secs(60)).await.unwrap();
    assert_eq!(session.read("kept").await.unwrap(), b"1");
}

#[tokio::test]
async fn what_the_template_or_the_key_does_not_allow_is_refused() {
    let server = TestServer::start("");
    let refused = |result: Result<_, Error>| match result.map(|_: kennel_client::Session| ()) {
        Err(Error::Refused { status, message, .. }) => (status, message),
        other => panic!("{other:?}"),
    };
    let (status, message) = refused(server.client().sandbox().template("none").create().await);
    assert_eq!((status, message.contains("\"none\"")), (404, true), "{message}");
    let long = Duration::from_secs(1 << 30);
    assert_eq!(refused(server.client().sandbox().life(long).create().await).0, 400);
    assert_eq!(refused(server.client().sandbox().allow_host("k.test").create().await).0, 400);
    assert_eq!(refused(server.client().token("wrong").sandbox().create().await).0, 401);
    let unwritable = server.client().token("a\nb").sandbox().create().await;
    assert!(matches!(unwritable, Err(Error::Invalid { .. })));
    assert_eq!(lost(server.client().attach("kennel-aaaaaaaaaaaaaaaa").await), Loss::Unknown);
    assert_eq!(lost(server.client().attach("../../healthz").await), Loss::Unknown);
}

#[tokio::test]
async fn no_network_is_none() {
    let server = TestServer::start("");
    let names = ["-c", "cat /proc/net/dev | wc -l; env | grep -c http_proxy"];
    let closed = server.client().sandbox().no_network().create().await.unwrap();
    let out = closed.command("sh").args(names).output().await.unwrap();
    assert!(out.stdout.ends_with(b"\n0\n"), "{}", String::from_utf8_lossy(&out.stdout));
}

#[tokio::test]
async fn a_creation_waits_for_room_and_no_longer_than_it_may() {
    let server = TestServer::start("sandboxes = 1\nadmit_wait = '10ms'\nqueue = 1");
    let first = server.session().await;
    let error = server.client().sandbox().create().await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 503, retry_after: Some(_), .. }), "{error:?}");
    let patient = server.client().patience(Duration::from_secs(20));
    let waiting = tokio::spawn(patient.sandbox().create());
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.end().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().command("true").status().await.is_ok());
}

#[tokio::test]
async fn a_socket_serves_as_an_address_does() {
    let server = TestServer::listening("unix:PLACE/socket", "");
    assert!(server.url.starts_with("http+unix://"), "{}", server.url);
    let session = server.session().await;
    assert_eq!(session.command("echo").arg("hi").output().await.unwrap().stdout, b"hi\n");
}

#[tokio::test]
async fn tls_is_checked() {
    let place = tempfile::tempdir().unwrap();
    let (certificate, key) = (place.path().join("c.pem"), place.path().join("k.pem"));
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args([
        "-days",
        "2",
        "-subj",
        "/CN=k.test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    let made = openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key).output();
    require!(made.is_ok(), "openssl");
    let tls = format!("tls = {{ certificate = '{}', key = '{}' }}", certificate.display(), key.display());
    let server = TestServer::start(&tls);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let refused = server.client().sandbox().create().await.unwrap_err();
    assert!(
        matches!(&refused, Error::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::InvalidData),
        "{refused:?}"
    );
    let trusting = server.client().certificates(&std::fs::read(&certificate).unwrap()).unwrap();
    let session = trusting.sandbox().create().await.unwrap();
    assert_eq!(session.command("echo").arg("hi").output().await.unwrap().stdout, b"hi\n");
    assert!(matches!(
        Server::new("https://k.test").unwrap().certificates(b"none"),
        Err(Error::Invalid { .. })
    ));
}
