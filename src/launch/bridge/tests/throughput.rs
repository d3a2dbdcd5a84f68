//! A measurement of the throughput.

use std::io;
use std::io::Write;
use std::time::Instant;

use super::*;

/// `cargo test --release --lib bridge::tests::throughput -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for an idle machine and an optimized build"]
async fn throughput_beside_direct_loopback() {
    const SIZE: usize = 2 << 30;
    let world = World::new().await;
    let mut ratios = Vec::new();
    for _ in 0..7 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("its address");
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let direct = timed(server.expect("accepts").0, client.expect("connects"), SIZE).await;
        let (client, proxy) = world.pair().await;
        let bridged = timed(proxy, client, SIZE).await;
        let (client, proxy) = world.pair().await;
        let upwards = timed(client, proxy, SIZE).await;
        ratios.push((direct / bridged, direct / upwards, direct));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (down, up, direct) in ratios {
        let rate = 2.0 / direct;
        writeln!(io::stderr(), "down {down:.2} up {up:.2} of direct loopback at {rate:.2} GiB/s")
            .expect("said");
    }
}

/// Seconds for `size` bytes.
async fn timed<W, R>(mut from: W, mut to: R, size: usize) -> f64
where
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
    R: tokio::io::AsyncRead + Unpin + Send + 'static,
{
    let begun = Instant::now();
    let sending = tokio::spawn(async move {
        let block = vec![0; 1 << 18];
        for _ in 0..size >> 18 {
            from.write_all(&block).await.expect("takes it");
        }
        from.shutdown().await.expect("ends");
    });
    let (mut buffer, mut count) = (vec![0; 1 << 18], 0);
    while let Ok(came @ 1..) = to.read(&mut buffer).await {
        count += came;
    }
    assert_eq!(count, size);
    sending.await.expect("no panic");
    begun.elapsed().as_secs_f64()
}
