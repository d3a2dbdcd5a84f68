//! Servers that commands start: the embedding program connects to them, and others where the session
//! publishes them.

use std::{fs, io::ErrorKind, net::SocketAddr, path::Path};

use kennel::{Child, Error, Isolation, NetworkMode, Policy, Profile, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{in_time, ready};
use crate::{
    network::publish::{connect, exchange, free_port, is_closed, outside},
    support::{World, eventually, is_alone, workspace},
};

/// A server of the session at this address, which listens.
async fn serve(session: &Session, address: &str, kind: &str) -> Child {
    ready(session.command("/payload").args(["serve", address, kind]), 1).await
}

/// Says hello to an echo, over the connection of the library.
async fn echoed(session: &Session, port: u16) -> std::io::Result<String> {
    let mut stream = in_time(session.connect(port)).await?;
    stream.write_all(b"hello").await?;
    stream.shutdown().await?;
    let mut heard = String::new();
    in_time(stream.read_to_string(&mut heard)).await?;
    Ok(heard)
}

/// The same, as a program of the host.
async fn echoed_at(address: SocketAddr) -> Vec<u8> {
    outside(move || exchange(connect(address), b"hello")).await
}

async fn refusal(session: &Session, port: u16) -> ErrorKind {
    in_time(session.connect(port)).await.expect_err("no connection").kind()
}

#[tokio::test]
async fn the_program_connects_to_servers_of_commands() {
    let world = World::new();
    let modes = [NetworkMode::None, NetworkMode::Proxy];
    for (mode, isolation) in
        modes.into_iter().flat_map(|mode| Isolation::ALL.map(|isolation| (mode, isolation)))
    {
        let policy = Policy { profile: Profile::RepoWrite, ..world.with_payload() };
        let session = Session::prepare(&policy.network_mode(mode).isolation(isolation)).await.unwrap();
        assert_eq!(refusal(&session, 8000).await, ErrorKind::ConnectionRefused, "{mode}: nothing listens");
        for address in ["127.0.0.1:8000", "[::1]:8001", "0.0.0.0:8002"] {
            let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
            let mut server = serve(&session, address, "echo").await;
            assert_eq!(echoed(&session, port).await.unwrap(), "hello", "{mode} {isolation} {address}");
            let published = session.publish(format!("0:{port}")).unwrap().address;
            assert_eq!(echoed_at(published).await, b"hello", "{mode} {isolation} {address}");
            server.kill().await.unwrap();
            assert_eq!(refusal(&session, port).await, ErrorKind::ConnectionRefused, "{mode} {address}");
        }
    }
}

#[tokio::test]
async fn many_connections_are_made_at_once() {
    let world = World::new();
    let session = world.probing().await;
    let _server = serve(&session, "127.0.0.1:8000", "echo").await;
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let session = session.clone();
        crowd.spawn(async move { echoed(&session, 8000).await.unwrap() });
    }
    assert_eq!(crowd.join_all().await, ["hello"; 200]);
    assert_eq!(session.published(), [], "nothing is published by that");
}

#[tokio::test]
async fn a_port_is_published_from_the_start_or_later_until_the_end() {
    let world = World::new();
    let session = Session::prepare(&world.with_payload().publish("0:8000")).await.unwrap();
    let first = session.published()[0];
    assert!(first.chosen && first.inside == 8000, "{first}");
    let server = serve(&session, "127.0.0.1:8000", "echo").await;
    assert_eq!(server.published(), [first]);
    assert_eq!(echoed_at(first.address).await, b"hello");
    let _other = serve(&session, "127.0.0.1:8001", "echo").await;
    let second = session.publish(format!("{}:8001", free_port())).unwrap();
    assert!(!second.chosen);
    assert_eq!(session.published(), [first, second]);
    assert_eq!(echoed_at(second.address).await, b"hello");
    assert_eq!(echoed_at(first.address).await, b"hello");

    let mut held = in_time(session.connect(8000)).await.unwrap();
    let mut served = outside(move || connect(first.address)).await;
    session.shutdown().await;
    assert!(is_closed(first.address) && is_closed(second.address));
    assert_eq!(in_time(held.read(&mut [0])).await.unwrap_or(0), 0, "the server is gone");
    assert_eq!(outside(move || std::io::Read::read(&mut served, &mut [0]).unwrap_or(0)).await, 0);
    assert_eq!(session.published(), []);
    assert_eq!(refusal(&session, 8000).await, ErrorKind::NotConnected);
    assert!(matches!(session.publish("0:8000"), Err(Error::SessionEnded)));
}

#[tokio::test]
async fn dropping_the_session_closes_its_ports() {
    let world = World::new();
    let session = Session::prepare(&world.policy().publish("0:8000")).await.unwrap();
    let address = session.published()[0].address;
    assert!(!is_closed(address));
    drop(session);
    assert!(is_closed(address));
}

#[tokio::test]
async fn sessions_cannot_reach_each_others_servers() {
    let world = World::new();
    let [one, other] = [(); 2].map(|()| world.with_payload());
    let (one, other) = (Session::prepare(&one).await.unwrap(), Session::prepare(&other).await.unwrap());
    let _server = serve(&one, "0.0.0.0:8000", "echo").await;
    let published = one.publish("0:8000").unwrap().address;
    assert_eq!(refusal(&other, 8000).await, ErrorKind::ConnectionRefused);
    let tried = [published.to_string(), "127.0.0.1:8000".to_owned()];
    let mut command = other.command("/payload");
    let said = in_time(command.arg("connect").args(tried).output()).await.unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&said), "ECONNREFUSED\nECONNREFUSED\n");
    assert_eq!(echoed_at(published).await, b"hello");
}

#[tokio::test]
async fn kennels_own_ports_and_the_hosts_network_are_refused() {
    let workspace = workspace();
    let policy = Policy::profile(Profile::RepoWrite, workspace.path()).allow("localhost:5432");
    let session = Session::prepare(&policy).await.unwrap();
    for port in [3128, 5432] {
        assert_eq!(refusal(&session, port).await, ErrorKind::InvalidInput, "{port}");
        let error = session.publish(format!("0:{port}")).expect_err("Kennel's own").chain();
        assert!(error.contains("let the server listen on another one"), "{error}");
    }
    let session = Session::prepare(&host(workspace.path())).await.unwrap();
    assert_eq!(refusal(&session, 8000).await, ErrorKind::Unsupported);
    let error = session.publish("0:8000").expect_err("no namespace").chain();
    assert!(error.contains("network.publish `127.0.0.1:0:8000`: with the host's network"), "{error}");
}

fn host(workspace: &Path) -> Policy {
    Policy::profile(Profile::RepoWrite, workspace).network_mode(NetworkMode::Host)
}

#[tokio::test]
async fn a_command_that_takes_every_connection_of_its_loopback_keeps_nobody_out() {
    let world = World::new();
    let session = world.probing().await;
    let _server = serve(&session, "127.0.0.1:8000", "echo").await;
    // Connects to every port of loopback again and again, also to the one that listens for a moment.
    let script = "while :; do /payload connect $(seq -f 127.0.0.1:%.0f 32768 60999 | shuf -n 4000) >/dev/null; echo ok; done";
    let mut noise = ready(session.command("sh").args(["-c", script]), 1).await;
    for _ in 0..50 {
        assert_eq!(echoed(&session, 8000).await.unwrap(), "hello");
    }
    noise.kill().await.unwrap();
}

#[tokio::test]
async fn only_a_session_that_was_connected_to_keeps_sockets_until_its_end() {
    let test = "session::ports::only_a_session_that_was_connected_to_keeps_sockets_until_its_end";
    if !is_alone(test, "exec \"$@\"") {
        return;
    }
    let sockets = || {
        let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_socket = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        };
        entries.filter(is_socket).count()
    };
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
    let before = sockets();
    for _ in 0..3 {
        assert_eq!(refusal(&session, 8000).await, ErrorKind::ConnectionRefused);
        // The two that make others.
        eventually("the worker is gone", || sockets() == before + 2).await;
    }
    session.shutdown().await;
    assert_eq!(sockets(), before);
}
