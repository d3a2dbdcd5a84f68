//! What a router adds: to a request, to the life of a sandbox, and in memory for each open stream.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;

use crate::client::Client;
use crate::parts::Times;
use crate::{Server, processor_time};

/// Streams that only are open.
const STREAMS: usize = 4000;

/// A router before one server.
struct Router {
    process: Child,
    address: String,
}

impl Router {
    fn before(server: &Server) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
        command.args(["route", "--listen", "127.0.0.1:0", "--workers"]);
        command.arg(format!("http://{}", server.address));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let address = first.trim().rsplit_once("//").unwrap().1.to_owned();
        Self { process, address }
    }

    /// Resident memory that is its own, in bytes.
    fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) async fn route() {
    let server = Server::start("connections = 20000\ntemplate.base.limits.pids = 20000");
    let router = Router::before(&server);
    let mut direct = Client::connect(&server.address, &server.key).await;
    let mut routed = Client::connect(&router.address, &server.key).await;
    let made = direct.create().await;
    let [mut health, mut health_routed, mut run, mut run_routed] = [(); 4].map(|()| Times::default());
    let used = processor_time(router.process.id());
    for round in 0..2020 {
        for (client, health, run) in
            [(&mut direct, &mut health, &mut run), (&mut routed, &mut health_routed, &mut run_routed)]
        {
            let begun = Instant::now();
            client.health(&made).await;
            let of_health = begun.elapsed();
            let begun = Instant::now();
            if round % 4 == 0 {
                client.run(&made, "true").await;
            }
            if round >= 20 {
                health.add(of_health);
                (round % 4 == 0).then(|| run.add(begun.elapsed()));
            }
        }
    }
    let used = processor_time(router.process.id()) - used;
    health.print("health of the sandbox");
    health_routed.print("the same through the router");
    run.print("bash -c true");
    run_routed.print("the same through the router");
    let added = |with: &Times, without: &Times| (with.percentile(50) - without.percentile(50)) * 1000.0;
    println!("the router adds to a request, p50: {:.0} µs", added(&health_routed, &health));
    println!("and to a command with its stream: {:.0} µs", added(&run_routed, &run));
    println!("its processor time for a request: {:.0} µs", used.as_secs_f64() * 1e6 / f64::from(2020 + 505));

    // One command, of which all are streams: its number is 1.
    let mut of_command = Client::connect(&server.address, &server.key).await;
    let made = of_command.create().await;
    let output = of_command.stream(&made, "sleep 600").await;
    let before = router.memory();
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut client = Client::connect(&router.address, &server.key).await;
        open.push((client.attach(&made, 1).await, client));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each = router.memory().saturating_sub(before) as f64 / STREAMS as f64 / 1024.0;
    println!("{STREAMS} open streams through the router: {each:.1} KiB of its memory each");
    drop((open, output));
    first_output().await;
}

/// From the request for a sandbox to the first output of its first command: in a loop, or ten a second with
/// some prepared.
async fn first_output() {
    for (config, pause) in [("", Duration::ZERO), ("template.base.ready = 4", Duration::from_millis(90))] {
        println!("{}", if config.is_empty() { "nothing prepared" } else { "4 prepared, ten a second" });
        let server = Server::start(config);
        let router = Router::before(&server);
        let mut direct = Client::connect(&server.address, &server.key).await;
        let mut routed = Client::connect(&router.address, &server.key).await;
        for words in [&["/bin/bash", "-l", "-c", "echo 1"][..], &["/bin/echo", "1"]] {
            let [mut first, mut first_routed] = [(); 2].map(|()| Times::default());
            for round in 0..120 {
                for (client, first) in [(&mut direct, &mut first), (&mut routed, &mut first_routed)] {
                    tokio::time::sleep(pause).await;
                    let begun = Instant::now();
                    let made = client.create().await;
                    let rest = client.first_output(&made, words).await;
                    let time = begun.elapsed();
                    rest.collect().await.unwrap();
                    client.kill(&made).await;
                    (round >= 20).then(|| first.add(time));
                }
            }
            first.print(&format!("create to the first output of {}", words[0]));
            first_routed.print("the same through the router");
        }
    }
}
