//! Many connections at once: all are served, or wait without using CPU time, and no descriptor leaks.

use kennel_helper::plan::entries;
use tokio::task::JoinSet;

use super::*;

/// Limits the descriptors and connections of a bridge.
fn room_for(plan: &mut BridgePlan, files: u64, connections: u32) {
    let mut walls = crate::plan::Section::default();
    for (index, entry) in (0..).zip(entries(&plan.walls.bytes)) {
        let protection = plan.walls.step(index).expect("there").protection;
        walls.push(
            protection,
            &match entry.expect("whole").step {
                Step::Limit { resource, .. } if resource == libc::RLIMIT_NOFILE => {
                    Step::Limit { resource, soft: files, hard: files }
                }
                step => step,
            },
        );
    }
    plan.walls = walls;
    plan.connections = connections;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_at_once_are_served_beside_a_bulk_stream() {
    const CLIENTS: u32 = 2000;
    let mut world = World::new().await;
    world.echo();
    let (mut bulk_in, mut bulk_out) = world.client().await.into_split();
    let bulk = [
        tokio::spawn(async move { while bulk_out.write_all(&[1; 1 << 16]).await.is_ok() {} }),
        tokio::spawn(
            async move { while bulk_in.read(&mut [0; 1 << 16]).await.is_ok_and(|count| count > 0) {} },
        ),
    ];
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(soon(world.client()).await);
    }
    let mut all = JoinSet::new();
    for (number, mut client) in (0..CLIENTS).zip(clients) {
        all.spawn(async move {
            for round in 0..3 {
                echoes(&mut client, format!("{number} {round}").as_bytes()).await;
            }
            client
        });
    }
    let clients = soon(all.join_all()).await;
    drop(clients);
    for task in bulk {
        task.abort();
    }
    let mut last = world.client().await;
    echoes(&mut last, b"again").await;
}

#[tokio::test]
async fn full_backlog_of_the_proxy_keeps_clients_waiting_without_a_spin() {
    let mut world = World::with(|_| {}, 1).await;
    let mut clients = Vec::new();
    for number in 0..40u8 {
        let mut client = world.client().await;
        exchange(&mut client, &[number]).await;
        clients.push(client);
    }
    let before = world.ticks();
    sleep(Duration::from_secs(1)).await;
    assert!(world.ticks() - before <= 10, "{} ticks in a second", world.ticks() - before);
    world.echo();
    for (number, mut client) in (0..).zip(clients) {
        assert_eq!(soon(client.read_u8()).await.expect("answers"), number);
    }
}

#[tokio::test]
async fn who_finds_no_room_waits_until_somebody_is_done() {
    // First fewer descriptors than promised connections, so that the kernel refuses; then fewer connections.
    for (files, connections) in [(30, 1000), (1000, 5)] {
        let mut world = World::with(|plan| room_for(plan, files, connections), 1024).await;
        world.echo();
        let mut clients = Vec::new();
        for _ in 0..60 {
            clients.push(world.client().await);
        }
        let before = world.ticks();
        sleep(Duration::from_millis(500)).await;
        assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
        for (number, mut client) in (0u8..).zip(clients) {
            echoes(&mut client, &[number]).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_left_of_connections_that_ended() {
    let world = World::with(|plan| room_for(plan, 100, 4), 1024).await;
    for round in 0..1000 {
        let (mut client, mut proxy) = world.pair().await;
        exchange(&mut client, &[1; 100]).await;
        match round % 3 {
            0 => soon(proxy.read_exact(&mut [0; 100])).await.map(drop).expect("arrives"),
            1 => client.set_zero_linger().expect("set"),
            _ => {}
        }
    }
    world.assert_alive().await;
    if nix::unistd::geteuid().is_root() {
        soon(async {
            while world.files() > FILES_OF_NONE {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn receiver_that_takes_nothing_holds_up_nobody_else() {
    let world = World::new().await;
    let mut stuck = Vec::new();
    for _ in 0..50 {
        let (client, proxy) = world.pair().await;
        while timeout(Duration::from_millis(5), client.writable()).await.is_ok() {
            let _ = client.try_write(&[1; 1 << 16]);
        }
        stuck.push((client, proxy));
    }
    let before = world.ticks();
    world.assert_alive().await;
    sleep(Duration::from_millis(500)).await;
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    let (client, mut proxy) = stuck.pop().expect("fifty");
    drop(client);
    soon(proxy.read_to_end(&mut Vec::new())).await.expect("all that was sent");
}
