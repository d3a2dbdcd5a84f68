//! What is measured.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::routing::post;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use kennel::{Git, Isolation, Mount, Policy, Profile, Session, TmpLife};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::Server;
use crate::client::{Client, Made};
use crate::route::route;

/// Bytes of a large file, and of one piece of it.
const FILE: usize = 256 << 20;
const PIECE: usize = 256 << 10;

/// Sandboxes that only are there.
const IDLE: usize = 2000;

/// Streams that only are open.
const STREAMS: usize = 5000;

/// One table.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Latency,
    Life,
    Run,
    Idle,
    Files,
    Busy,
    Streams,
    Route,
    #[cfg(feature = "nats")]
    Queue,
}

pub(crate) const ALL: &[(&str, Part)] = &[
    ("latency", Part::Latency),
    ("life", Part::Life),
    ("run", Part::Run),
    ("idle", Part::Idle),
    ("files", Part::Files),
    ("busy", Part::Busy),
    ("streams", Part::Streams),
    ("route", Part::Route),
    #[cfg(feature = "nats")]
    ("queue", Part::Queue),
];

impl Part {
    pub(crate) async fn run(self) {
        match self {
            Self::Latency => latency().await,
            Self::Life => life().await,
            Self::Run => run().await,
            Self::Idle => idle().await,
            Self::Files => files().await,
            Self::Busy => busy().await,
            Self::Streams => streams().await,
            Self::Route => route().await,
            #[cfg(feature = "nats")]
            Self::Queue => crate::queue::measure().await,
        }
    }
}

/// Times of one thing, in milliseconds.
#[derive(Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1000.0);
    }

    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
    }

    pub(crate) fn print(&self, name: &str) {
        let [low, middle, high, last] = [25, 50, 75, 99].map(|percent| self.percentile(percent));
        println!("{name:46} p50 {middle:8.3} ms   (p25 {low:.3}, p75 {high:.3}, p99 {last:.3})");
    }
}

/// The session that a sandbox of the usual template has.
async fn session(home: &Path) -> Session {
    let mut policy = Policy::profile(Profile::RepoWrite, home);
    policy = policy.mount(Mount::ReadWrite { source: home.to_owned(), target: Some("/home/user".into()) });
    policy = policy.cwd("/home/user").isolation(Isolation::Session).tmp(TmpLife::Session).git(Git::Trust);
    Session::builder(&policy.set_env("HOME", "/home/user")).ready_workers(1).prepare().await.unwrap()
}

async fn latency() {
    const PAIRS: usize = 500;
    let server = Server::start("");
    let home = tempfile::tempdir().unwrap();
    let session = session(home.path()).await;
    let mut client = Client::connect(&server.address, &server.key).await;
    let made = client.create().await;
    let (mut inside, mut over, mut health) = (Times::default(), Times::default(), Times::default());
    for round in 0..PAIRS + 20 {
        let begun = Instant::now();
        session.command("bash").args(["-c", "true"]).output().await.unwrap();
        let of_session = begun.elapsed();
        let begun = Instant::now();
        client.run(&made, "true").await;
        let of_server = begun.elapsed();
        let begun = Instant::now();
        client.health(&made).await;
        let of_health = begun.elapsed();
        if round >= 20 {
            inside.add(of_session);
            over.add(of_server);
            health.add(of_health);
        }
    }
    inside.print("bash -c true in a session in process");
    over.print("the same through the server");
    health.print("health of the sandbox through the server");
    let ratio = (over.percentile(50) - health.percentile(50)) / inside.percentile(50);
    println!("through the server less health, to in process: {ratio:.2}");
    client.kill(&made).await;
    sdk(&server, &inside);
}

/// E2B's own client, where an interpreter has it.
fn sdk(server: &Server, inside: &Times) {
    let Some(python) = std::env::var_os("E2B_PYTHON") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/server/sdk.py");
    let url = format!("http://{}", server.address);
    let mut command = Command::new(python);
    command.arg(script).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url).env("E2B_API_KEY", &server.key);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let net =
        text.lines().find_map(|line| line.strip_prefix("net ")).and_then(|number| number.parse::<f64>().ok());
    if let Some(net) = net {
        println!("E2B's client, command less is_running, to in process: {:.2}", net / inside.percentile(50));
    }
}

async fn life() {
    for config in ["", "template.base.ready = 16"] {
        println!("{}", if config.is_empty() { "nothing prepared" } else { "16 prepared" });
        let server = Server::start(config);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut client = Client::connect(&server.address, &server.key).await;
        let (mut whole, mut creation, mut end) = (Times::default(), Times::default(), Times::default());
        let mut inside = Times::default();
        for round in 0..220 {
            let home = tempfile::tempdir().unwrap();
            let begun = Instant::now();
            let prepared = session(home.path()).await;
            inside.add(begun.elapsed());
            // Until all of it is gone, as after an end.
            drop(prepared);
            tokio::time::sleep(Duration::from_millis(10)).await;
            let begun = Instant::now();
            let made = client.create().await;
            let created = begun.elapsed();
            client.run(&made, "true").await;
            let ran = begun.elapsed();
            client.kill(&made).await;
            if round >= 20 {
                whole.add(begun.elapsed());
                creation.add(created);
                end.add(begun.elapsed() - ran);
            }
        }
        inside.print("Session::prepare in process");
        creation.print("create");
        end.print("kill");
        whole.print("create, first command, kill");
        let rate = at_once(&server, 16, 40).await;
        println!("16 at once: {rate:.0} a second");
    }
}

/// Whole lives a second, of so many clients.
async fn at_once(server: &Server, clients: usize, lives: usize) -> f64 {
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (address, key) = (server.address.clone(), server.key.clone());
        all.spawn(async move {
            let mut client = Client::connect(&address, &key).await;
            for _ in 0..lives {
                let made = client.create().await;
                client.run(&made, "true").await;
                client.kill(&made).await;
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    (clients * lives) as f64 / begun.elapsed().as_secs_f64()
}

/// Requests of `/v1/run` a second.
pub(crate) async fn runs(server: &Server, clients: usize, each: usize) -> f64 {
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (address, key) = (server.address.clone(), server.key.clone());
        all.spawn(async move {
            let mut client = Client::connect(&address, &key).await;
            for _ in 0..each {
                client.run_once(&["true"]).await;
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    (clients * each) as f64 / begun.elapsed().as_secs_f64()
}

/// Commands with a sandbox of their own: by one request each, and by sessions in process.
async fn run() {
    const AT_ONCE: usize = 16;
    const EACH: usize = 40;
    let server = Server::start("");
    for round in 0..3 {
        let begun = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..AT_ONCE {
            all.spawn(async {
                for _ in 0..EACH {
                    let home = tempfile::tempdir().unwrap();
                    let session = session(home.path()).await;
                    session.command("true").output().await.unwrap();
                }
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
        let inside = (AT_ONCE * EACH) as f64 / begun.elapsed().as_secs_f64();
        let over = runs(&server, AT_ONCE, EACH).await;
        println!(
            "{round}: /v1/run {over:.0} a second; sessions in process {inside:.0}; {:.2}",
            over / inside
        );
    }
}

/// What takes memory on the whole machine: all of it first, then the kernel's parts, and anonymous and shared
/// pages of programs.
const MEMORY: [&str; 7] = ["in use", "Slab", "PageTables", "KernelStack", "Percpu", "AnonPages", "Shmem"];

/// Bytes of each.
fn memory() -> [u64; MEMORY.len()] {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    MEMORY.map(|name| match name {
        "in use" => line("MemTotal") - line("MemAvailable"),
        name => line(name),
    })
}

async fn commands(client: &mut Client, made: &Made) -> Times {
    let mut times = Times::default();
    for _ in 0..200 {
        let begun = Instant::now();
        client.run(made, "true").await;
        times.add(begun.elapsed());
    }
    times
}

async fn idle() {
    let server = Server::start("sandboxes = 3000");
    let mut client = Client::connect(&server.address, &server.key).await;
    let made = client.create().await;
    let alone = commands(&mut client, &made).await;
    let before = memory();
    let mut all = Vec::new();
    for _ in 0..IDLE {
        all.push(client.create().await);
    }
    // Until those that nobody uses have no ready worker.
    tokio::time::sleep(Duration::from_secs(10)).await;
    println!("{IDLE} idle sandboxes, KiB each:");
    for ((name, after), before) in MEMORY.iter().zip(memory()).zip(before) {
        println!("  {name:12} {:6.1}", (after as f64 - before as f64) / IDLE as f64 / 1024.0);
    }
    // The server closes a connection that nobody uses.
    let mut client = Client::connect(&server.address, &server.key).await;
    let beside = commands(&mut client, &made).await;
    alone.print("a command beside no other sandbox");
    beside.print("a command beside all of them");
    println!("beside them, to alone: {:.2}", beside.percentile(50) / alone.percentile(50));
    for made in all {
        client.kill(&made).await;
    }
}

fn pieces() -> Body {
    let piece = Bytes::from(vec![b'x'; PIECE]);
    Body::from_stream(stream::iter((0..FILE / PIECE).map(move |_| Ok::<_, std::io::Error>(piece.clone()))))
}

async fn files() {
    let server = Server::start("");
    let bare = bare().await;
    let mut client = Client::connect(&server.address, &server.key).await;
    let mut plain = Client::connect(&bare, "").await;
    let made = client.create().await;
    let nobody = Made { id: String::new(), token: String::new() };
    let mut times = [(); 4].map(|()| Times::default());
    for _ in 0..7 {
        let mut timed = [Duration::ZERO; 4];
        let begun = Instant::now();
        client.upload(&made, pieces()).await;
        timed[0] = begun.elapsed();
        let begun = Instant::now();
        plain.upload(&nobody, pieces()).await;
        timed[1] = begun.elapsed();
        let begun = Instant::now();
        assert_eq!(client.download(&made).await, FILE);
        timed[2] = begun.elapsed();
        let begun = Instant::now();
        assert_eq!(plain.download(&nobody).await, FILE);
        timed[3] = begun.elapsed();
        times.iter_mut().zip(timed).for_each(|(times, time)| times.add(time));
    }
    let names = [
        "up through the server",
        "up to a bare server",
        "down through the server",
        "down from a bare server",
    ];
    times.iter().zip(names).for_each(|(times, name)| times.print(&format!("256 MiB {name}")));
    let rate = |ours: usize| times[ours + 1].percentile(50) / times[ours].percentile(50);
    println!("rate to a bare server: up {:.2}, down {:.2}", rate(0), rate(2));
    client.kill(&made).await;
}

/// A server that only copies to a file, and from it.
async fn bare() -> String {
    async fn up(request: Request) -> &'static str {
        let path = place();
        let mut file = tokio::fs::File::create(path).await.unwrap();
        let mut pieces = request.into_body().into_data_stream();
        while let Some(piece) = pieces.next().await {
            file.write_all(&piece.unwrap()).await.unwrap();
        }
        file.flush().await.unwrap();
        "{}"
    }
    async fn down() -> Body {
        let file = tokio::fs::File::open(place()).await.unwrap();
        Body::from_stream(stream::unfold(file, |mut file| async {
            let mut piece = bytes::BytesMut::with_capacity(PIECE);
            let count = tokio::io::AsyncReadExt::read_buf(&mut file, &mut piece).await.unwrap();
            (count > 0).then(|| (Ok::<_, std::io::Error>(piece.freeze()), file))
        }))
    }
    fn place() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("kennel-bench-bare-{}", std::process::id()))
    }
    let routes = Router::new().route("/files", post(up).get(down)).layer(DefaultBodyLimit::disable());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Threads of its own, as the server has.
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = listener.into_std().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, routes).await.unwrap();
        });
    });
    address
}

async fn busy() {
    const SPINNING: usize = 64;
    let server = Server::start("");
    let mut client = Client::connect(&server.address, &server.key).await;
    let made = client.create().await;
    let mut streams = Vec::new();
    for _ in 0..SPINNING {
        let mut of_stream = Client::connect(&server.address, &server.key).await;
        streams.push((of_stream.stream(&made, "while :; do :; done").await, of_stream));
    }
    let mut times = Times::default();
    for _ in 0..500 {
        let begun = Instant::now();
        assert_eq!(client.get("/healthz").await, 200);
        times.add(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.print("/healthz while 64 commands spin");
    client.kill(&made).await;
}

/// Resident memory of its processes that is theirs alone, in bytes.
fn own_memory(server: &Server) -> u64 {
    let of = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    server.processes().into_iter().map(of).sum()
}

async fn streams() {
    let server = Server::start("connections = 20000\ntemplate.base.limits.pids = 20000");
    let mut client = Client::connect(&server.address, &server.key).await;
    let made = client.create().await;
    // One command, of which all are streams: what it writes goes to each.
    let mut of_command = Client::connect(&server.address, &server.key).await;
    let first = of_command.stream(&made, "sleep 600").await;
    let before = own_memory(&server);
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut client = Client::connect(&server.address, &server.key).await;
        open.push((client.attach(&made, 1).await, client));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each = own_memory(&server).saturating_sub(before) / STREAMS as u64;
    println!("{STREAMS} open streams: {:.1} KiB each, of front and host", each as f64 / 1024.0);
    drop((open, first));
    client.kill(&made).await;
}
