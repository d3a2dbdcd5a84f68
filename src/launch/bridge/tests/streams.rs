//! One connection: its bytes, and how each end learns that the other is gone.

use std::io;

use nix::sys::socket::{ControlMessage, MsgFlags, send, sendmsg};

use super::*;

#[tokio::test]
async fn what_a_client_says_arrives_and_is_answered() {
    let mut world = World::new().await;
    world.echo();
    for said in [&b"x"[..], b"hello", &[7; 100_000]] {
        echoes(&mut world.client().await, said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_passes_whole_in_both_directions_at_once() {
    const SIZE: usize = 64 << 20;
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    let ((client_in, client_out), (proxy_in, proxy_out)) = (client.into_split(), proxy.into_split());
    let sending =
        [tokio::spawn(send_pattern(client_out, SIZE)), tokio::spawn(send_pattern(proxy_out, SIZE - 1))];
    let received = [tokio::spawn(receive_pattern(proxy_in)), tokio::spawn(receive_pattern(client_in))];
    for (received, expected) in received.into_iter().zip([SIZE, SIZE - 1]) {
        assert_eq!(soon(received).await.expect("no panic"), expected);
    }
    for sending in sending {
        soon(sending).await.expect("no panic");
    }
}

#[tokio::test]
async fn client_that_has_said_all_still_hears_the_answer() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    exchange(&mut client, b"question").await;
    client.shutdown().await.expect("half closes");
    let mut said = Vec::new();
    soon(proxy.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"question");
    proxy.write_all(b"answer").await.expect("takes it");
    drop(proxy);
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"answer");
}

#[tokio::test]
async fn proxy_that_has_said_all_still_hears_the_client() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    proxy.write_all(b"first").await.expect("takes it");
    proxy.shutdown().await.expect("half closes");
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"first");
    exchange(&mut client, b"then").await;
    drop(client);
    let mut said = Vec::new();
    soon(proxy.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"then");
}

#[tokio::test]
async fn refused_connection_is_reset_and_nothing_else() {
    let mut world = World::new().await;
    let (mut open, mut proxy) = world.pair().await;
    drop(world.proxy.take());
    for _ in 0..3 {
        // The reset may arrive before connect(2) returns.
        let refused = async { TcpStream::connect(world.address).await?.read(&mut [0; 8]).await };
        let error = soon(refused).await.expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    exchange(&mut open, b"still").await;
    soon(proxy.read_exact(&mut [0; 5])).await.expect("arrives");
    assert!(timeout(Duration::from_millis(50), world.bridge.ended()).await.is_err());
}

#[tokio::test]
async fn proxy_that_dies_takes_its_connection_and_no_other() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    proxy.write_all(b"half of").await.expect("takes it");
    // Unread data turns the close into a reset.
    exchange(&mut client, &[1; 1 << 16]).await;
    proxy.readable().await.expect("arrives");
    drop(proxy);
    let mut said = Vec::new();
    if let Err(error) = soon(client.read_to_end(&mut said)).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    assert_eq!(said, b"half of");
    world.assert_alive().await;
}

#[tokio::test]
async fn client_that_dies_is_told_to_the_proxy() {
    let world = World::new().await;
    let (client, mut proxy) = world.pair().await;
    client.set_zero_linger().expect("set");
    drop(client);
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    // The same with a client that closed its sending side before.
    let (mut client, mut proxy) = world.pair().await;
    client.shutdown().await.expect("half closes");
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    client.set_zero_linger().expect("set");
    drop(client);
    let error = soon(async {
        loop {
            if let Err(error) = proxy.write_all(&[0; 1 << 16]).await {
                return error;
            }
        }
    });
    assert_eq!(error.await.kind(), io::ErrorKind::BrokenPipe);
    world.assert_alive().await;
}

#[tokio::test]
async fn proxy_that_is_gone_ends_a_silent_client() {
    let world = World::new().await;
    let (mut client, proxy) = world.pair().await;
    drop(proxy);
    assert_eq!(soon(client.read(&mut [0; 8])).await.expect("the end"), 0);
    // Both directions are closed: nothing receives this.
    let error = soon(async {
        loop {
            if let Err(error) = client.write_all(&[0; 1 << 10]).await {
                return error;
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(matches!(error.await.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
}

#[tokio::test]
async fn urgent_bytes_and_descriptors_end_one_connection_at_most() {
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB).expect("sent");
    let _ = send(proxy.as_raw_fd(), b"!", MsgFlags::MSG_OOB);
    let numbers = [0; 10];
    let rights = [ControlMessage::ScmRights(&numbers)];
    sendmsg::<()>(proxy.as_raw_fd(), &[io::IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
        .expect("sent");
    sleep(Duration::from_millis(50)).await;
    let before = world.ticks();
    sleep(Duration::from_millis(500)).await;
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    world.assert_alive().await;
}
