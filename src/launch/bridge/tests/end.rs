//! How a bridge ends: dropped, finished, without its parent, or killed.

use std::io;

use super::*;

#[tokio::test]
async fn bridge_that_is_let_go_is_gone_with_its_connections() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    let (pid, address) = (world.pid(), world.address);
    let World { bridge, proxy: _proxy, dir: _dir, .. } = world;
    drop(bridge);
    soon(async {
        while nix::sys::signal::kill(pid, None).is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    let error = soon(client.read(&mut [0; 8])).await.expect_err("an incomplete stream");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    TcpStream::connect(address).await.expect_err("nobody listens");
}

/// A connection with `count` sent bytes and a closed client.
async fn sent_and_left(world: &World, count: usize) -> UnixStream {
    let (client, proxy) = world.pair().await;
    soon(send_pattern(client, count)).await;
    proxy
}

#[tokio::test]
async fn bridge_that_finishes_passes_on_what_was_sent() {
    const SIZE: usize = 1_000_000;
    let world = World::with(|plan| plan.connections = 3, 1024).await;
    let mut first = sent_and_left(&world, SIZE).await;
    let second = sent_and_left(&world, SIZE).await;
    let third = world.pair().await;
    // The bridge has no room for these yet.
    for number in 0..100u8 {
        exchange(&mut world.client().await, &[number]).await;
    }
    drop(third.0);
    world.bridge.finish();
    assert_eq!(soon(receive_pattern(&mut first)).await, SIZE);
    assert_eq!(soon(receive_pattern(second)).await, SIZE);
    for expected in 0..100 {
        let mut said = Vec::new();
        soon(world.accepted().await.read_to_end(&mut said)).await.expect("reads to the end");
        assert_eq!(said, [expected]);
    }
    // Although `first` never closes its side.
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
    assert!(world.bridge.is_finishing());
}

#[tokio::test]
async fn bridge_without_connections_finishes_at_once() {
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    drop((client, proxy));
    world.bridge.finish();
    world.bridge.finish();
    assert!(matches!(timeout(Duration::from_secs(1), world.bridge.ended()).await, Ok(Error::Lost)));
}

#[tokio::test]
async fn bridge_that_finishes_waits_for_a_proxy_that_does_not_read() {
    let world = World::new().await;
    let proxy = sent_and_left(&world, 1_000_000).await;
    world.bridge.finish();
    let before = world.ticks();
    assert!(timeout(Duration::from_millis(500), world.bridge.ended()).await.is_err());
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    assert_eq!(soon(receive_pattern(proxy)).await, 1_000_000);
    soon(world.bridge.ended()).await;
}

#[tokio::test]
async fn bridge_ends_by_itself_with_the_control_socket() {
    let world = World::new().await;
    let pid = world.pid();
    let control = world.bridge.init.socket().as_raw_fd();
    nix::sys::socket::shutdown(control, nix::sys::socket::Shutdown::Write).expect("as if closed");
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
    world.bridge.gone().await;
    assert!(nix::sys::signal::kill(pid, None).is_err());
}

#[tokio::test]
async fn bridge_that_was_killed_says_so() {
    let world = World::new().await;
    nix::sys::signal::kill(world.pid(), nix::sys::signal::Signal::SIGKILL).expect("ours");
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
}
