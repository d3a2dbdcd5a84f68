//! Measures the cost of the proxy: bulk transfer, connecting, many tunnels at once, and preparing a session
//! with a proxy. Each is measured in turn with the same work without a proxy: on a shared machine only ratios
//! are meaningful. This program is also the server and the client.
//!
//! `cargo bench --bench proxy [ROUNDS]`; `ONLY=…` picks one of bulk, connect, tunnels, prepare.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "proxy/client.rs"]
mod client;
#[path = "proxy/server.rs"]
mod server;

use std::{
    env, fs,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use kennel::{Network, NetworkMode, Policy, Profile, Session};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// Bytes of one download.
const BULK: u64 = 1 << 30;

/// Tunnels open at the same time.
const TUNNELS: u32 = 2000;

/// Connections in one round.
const CONNECTS: usize = 300;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [role, way, at, count] = arguments.as_slice()
        && role == "client"
    {
        return client::run(way, at, count.parse().expect("a number"));
    }
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(9);
    let wanted = env::var("ONLY").ok();
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    raise_descriptors();
    let bench = Bench::new();
    if is_wanted("bulk") {
        bench.bulk(rounds);
    }
    if is_wanted("connect") {
        bench.connect(rounds);
    }
    if is_wanted("tunnels") {
        bench.tunnels();
    }
    if is_wanted("prepare") {
        bench.prepare(rounds * 30);
    }
}

/// Each tunnel takes two descriptors of the proxy and one of the server; both are in this process.
fn raise_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(1 << 16), hard).expect("up to the hard limit");
}

struct Bench {
    runtime: Runtime,
    server: SocketAddr,
    /// The benchmark's own proxy, for the bridge.
    foreign: PathBuf,
    workspace: tempfile::TempDir,
    _elsewhere: tempfile::TempDir,
    myself: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let workspace = tempfile::tempdir().expect("a temporary directory");
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let foreign = elsewhere.path().join("proxy.sock");
        server::foreign(&foreign);
        Self {
            runtime: Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"),
            server: server::start(),
            foreign,
            workspace,
            _elsewhere: elsewhere,
            myself: env::current_exe().expect("this program"),
        }
    }

    fn policy(&self) -> Policy {
        Policy::profile(Profile::RepoWrite, self.workspace.path()).read_only(&self.myself)
    }

    fn with_proxy(&self) -> Policy {
        self.policy().allow(self.server.to_string())
    }

    fn with_bridge(&self) -> Policy {
        let proxy = Some(kennel::ForeignProxy { unix: self.foreign.clone() });
        let network = Network { mode: Some(NetworkMode::Proxy), proxy, ..Network::default() };
        Policy { network, ..self.policy() }
    }

    fn session(&self, policy: &Policy) -> Session {
        self.runtime.block_on(Session::prepare(policy)).expect("a session")
    }

    /// The client without a sandbox.
    fn bare(&self, count: u64) -> Vec<u64> {
        let mut command = Command::new(&self.myself);
        command.args(["client", "direct", &self.server.to_string(), &count.to_string()]);
        numbers(&command.env_remove("LD_LIBRARY_PATH").output().expect("the client").stdout)
    }

    /// The client in a session, through its proxy.
    fn inside(&self, session: &Session, count: u64) -> Vec<u64> {
        let mut command = session.command(&self.myself);
        command.args(["client", "proxy", &self.server.to_string(), &count.to_string()]);
        let output = self.runtime.block_on(command.output()).expect("the client");
        assert!(output.outcome.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        numbers(&output.stdout)
    }

    fn bulk(&self, rounds: usize) {
        let (proxy, bridge) = (self.session(&self.with_proxy()), self.session(&self.with_bridge()));
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            times[0].push(self.bare(BULK)[1]);
            times[1].push(self.inside(&proxy, BULK)[1]);
            times[2].push(self.inside(&bridge, BULK)[1]);
        }
        let [direct, proxied, bridged] = times.map(median);
        println!("download of 1 GiB over loopback, medians of {rounds}:");
        for (name, time) in
            [("direct", direct), ("through the proxy", proxied), ("through the bridge", bridged)]
        {
            let speed = BULK as f64 / time as f64 / 1000.0;
            println!("  {name:<20} {speed:>7.2} GB/s   {:.2} of direct", direct as f64 / time as f64);
        }
    }

    fn connect(&self, rounds: usize) {
        let proxy = self.session(&self.with_proxy());
        let bridge = self.session(&self.with_bridge());
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for _ in 0..CONNECTS / 100 {
                times[0].extend(self.connects("direct", None));
                times[1].extend(self.connects("proxy", Some(&proxy)));
                times[2].extend(self.connects("proxy", Some(&bridge)));
            }
        }
        let [direct, proxied, bridged] = times.map(median);
        println!("connecting, and the first byte; medians:");
        for (name, time) in [("direct", direct), ("by CONNECT", proxied), ("by the bridge", bridged)] {
            println!("  {name:<20} {time:>6} µs   direct × {:.2}", time as f64 / direct as f64);
        }
        println!("  wanted: 2 × direct + 300 µs = {} µs", 2 * direct + 300);
    }

    /// Opens a hundred connections in turn: microseconds of each.
    fn connects(&self, way: &str, session: Option<&Session>) -> Vec<u64> {
        let arguments =
            ["client".to_owned(), format!("{way}-connects"), self.server.to_string(), "100".to_owned()];
        match session {
            Some(session) => {
                let mut command = session.command(&self.myself);
                numbers(&self.runtime.block_on(command.args(arguments).output()).expect("the client").stdout)
            }
            None => numbers(&Command::new(&self.myself).args(arguments).output().expect("the client").stdout),
        }
    }

    fn tunnels(&self) {
        let before = resident();
        let mut policy = self.with_proxy();
        policy.network.limits.connections = Some(TUNNELS + 10);
        policy.limits.open_files = Some(1 << 14);
        let session = self.session(&policy);
        let mut command = session.command(&self.myself);
        command.args(["client", "tunnels", &self.server.to_string(), &TUNNELS.to_string()]);
        let begun = Instant::now();
        let mut child =
            self.runtime.block_on(command.stdout(kennel::Stdio::piped()).spawn()).expect("the client");
        let mut line = Vec::new();
        let mut stdout = child.stdout.take().expect("a pipe");
        self.runtime.block_on(async {
            use tokio::io::AsyncReadExt;
            // All tunnels are open, and each has received its byte.
            let mut byte = [0];
            while stdout.read(&mut byte).await.expect("a pipe") == 1 && byte[0] != b'\n' {
                line.push(byte[0]);
            }
        });
        let slowest = numbers(&line);
        let grown = resident().saturating_sub(before);
        println!("{TUNNELS} tunnels at once:");
        println!("  open after {:.2?}, slowest round trip {} µs", begun.elapsed(), slowest[0]);
        // This process also runs the server's threads, so this is an upper bound.
        println!(
            "  {:.1} KiB each in this process, proxy and server together",
            grown as f64 / f64::from(TUNNELS)
        );
        self.runtime.block_on(child.kill()).expect("the end");
    }

    fn prepare(&self, pairs: usize) {
        let policies = [self.policy(), self.with_proxy()];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..pairs {
            for (policy, times) in policies.iter().zip(&mut times) {
                let begun = Instant::now();
                let session = self.session(policy);
                times.push(micros(begun.elapsed()));
                self.runtime.block_on(session.shutdown());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let [plain, proxied] = times.map(median);
        println!("Session::prepare, medians of {pairs}: {plain} µs, with a proxy {proxied} µs");
        let sessions = policies.map(|policy| self.session(&policy));
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..pairs * 5 {
            for (session, times) in sessions.iter().zip(&mut times) {
                let begun = Instant::now();
                self.runtime.block_on(session.command("/bin/true").status()).expect("true");
                times.push(micros(begun.elapsed()));
                // Wait until the next worker is ready.
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        let [plain, proxied] = times.map(median);
        println!("warm exec, medians of {}: {plain} µs, with a proxy {proxied} µs", pairs * 5);
    }
}

/// Resident memory of this process in kilobytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

fn numbers(text: &[u8]) -> Vec<u64> {
    String::from_utf8_lossy(text).split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("not that long")
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
