//! Measures a command in a session: against a bare spawn and bubblewrap, alone and with all processors busy.
//! Also measures preparing a session, and whether the amount of other work matters. Everything is measured
//! for both isolations, in turn with the bare spawn that it is compared with: on a shared machine only ratios
//! are meaningful.
//!
//! `cargo bench --bench session [PAIRS]`; `ONLY=…` picks one of latency, throughput, memory, scale;
//! `ISOLATION=…` picks one of command, session.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

mod memory;
mod peers;
mod scale;

use std::{
    env,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kennel::{Isolation, Policy, Profile, Session};
use peers::{BWRAP, TRUE};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Long enough to tear a session down.
const CALM: Duration = Duration::from_millis(5);

/// How long to measure each throughput.
const SATURATED: Duration = Duration::from_secs(3);

/// Commands at once, if the machine must be busy.
const AT_ONCE: usize = 8;

fn main() {
    let pairs = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1000);
    let wanted = env::var("ONLY").ok();
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    let isolation = env::var("ISOLATION").ok();
    let all = [Isolation::Command, Isolation::Session];
    for isolation in all.into_iter().filter(|it| isolation.as_deref().is_none_or(|name| name == it.as_str()))
    {
        let bench = Bench::new(isolation);
        if scale::is_inner() {
            return scale::inner(&bench, pairs);
        }
        println!("\n## isolation = \"{isolation}\"\n");
        if is_wanted("latency") {
            bench.latency(pairs);
        }
        if is_wanted("throughput") {
            bench.throughput();
        }
        if is_wanted("memory") {
            memory::print(&bench);
        }
        if is_wanted("scale") {
            scale::print(&bench, pairs);
        }
    }
}

struct Bench {
    runtime: Runtime,
    policy: Policy,
    session: Session,
    _workspace: tempfile::TempDir,
}

impl Bench {
    fn new(isolation: Isolation) -> Self {
        let workspace = tempfile::tempdir().expect("a temporary directory");
        let policy = Policy::profile(Profile::NoNetwork, workspace.path()).isolation(isolation);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let builder = Session::builder(&policy).ready_workers(ready());
        let session = runtime.block_on(builder.prepare()).expect("a session");
        Self { runtime, policy, session, _workspace: workspace }
    }

    fn latency(&self, pairs: usize) {
        println!("| what | median µs | p10 to p90 | bare spawn, median µs | ratio |");
        println!("| --- | ---: | ---: | ---: | ---: |");
        pair(pairs, || self.exec(&self.session)).row("warm exec");
        // Wait until the other processor has torn the last session down.
        let calm = || thread::sleep(CALM);
        calm_pair(pairs / 3, calm, || self.exec(&self.session)).row("warm exec, after a pause");
        pair(pairs / 3, || self.prepare(2)).row("Session::prepare");
        calm_pair(pairs / 3, calm, || self.prepare(2)).row("Session::prepare, after a pause");
        calm_pair(pairs / 3, calm, || self.prepare(0)).row("the same, no worker");
    }

    fn exec(&self, session: &Session) {
        let run = async { session.command(TRUE).stdin(kennel::Stdio::null()).status().await };
        let outcome = self.runtime.block_on(run).expect("a session that lives");
        assert!(outcome.status.success(), "{:?}", outcome.status);
    }

    fn prepare(&self, ready: usize) -> Session {
        let builder = Session::builder(&self.policy).ready_workers(ready);
        self.runtime.block_on(builder.prepare()).expect("a session")
    }

    /// Starts per second with all processors busy: bare, in a session, under bubblewrap.
    fn throughput(&self) {
        let bare = per_second(spawn);
        let ours = self.runtime.block_on(async {
            let begun = Instant::now();
            let mut running = JoinSet::new();
            let mut done = 0u32;
            loop {
                while running.len() < AT_ONCE && begun.elapsed() < SATURATED {
                    let session = self.session.clone();
                    running.spawn(async move {
                        session.command(TRUE).stdin(kennel::Stdio::null()).status().await
                    });
                }
                let Some(ended) = running.join_next().await else { break };
                assert!(ended.expect("no panic").expect("an outcome").status.success());
                done += 1;
            }
            f64::from(done) / begun.elapsed().as_secs_f64()
        });
        println!("\n| {AT_ONCE} at once | per second | to bare |\n| --- | ---: | ---: |");
        println!("| bare spawn | {bare:.0} | 1.00 |\n| warm exec | {ours:.0} | {:.2} |", ours / bare);
        if Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_ok() {
            let bwrap = per_second(|| run("bwrap", BWRAP));
            println!("| bwrap | {bwrap:.0} | {:.2} |", bwrap / bare);
            println!("\nwarm exec to bwrap: {:.1}", ours / bwrap);
        }
    }
}

/// Samples of something and of the bare spawns between them, sorted.
struct Pairs {
    ours: Vec<Duration>,
    bare: Vec<Duration>,
}

/// Measures `what` in turn with a bare spawn.
fn pair<T>(pairs: usize, what: impl Fn() -> T) -> Pairs {
    calm_pair(pairs, || {}, what)
}

/// The same, with a step before each sample.
fn calm_pair<T>(pairs: usize, before: impl Fn(), what: impl Fn() -> T) -> Pairs {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    (0..pairs / 10 + 1).for_each(|_| drop(what()));
    for _ in 0..pairs {
        before();
        bare.push(timed(spawn));
        before();
        ours.push(timed(&what));
    }
    ours.sort();
    bare.sort();
    Pairs { ours, bare }
}

impl Pairs {
    fn row(&self, name: &str) {
        let [low, median, high] = [10, 50, 90].map(|part| part_of(&self.ours, part));
        let bare = part_of(&self.bare, 50);
        println!("| {name} | {median:.0} | {low:.0} to {high:.0} | {bare:.0} | {:.2} |", median / bare);
    }
}

/// A percentile, in microseconds.
fn part_of(sorted: &[Duration], part: usize) -> f64 {
    sorted[(sorted.len() - 1) * part / 100].as_secs_f64() * 1e6
}

/// Workers to keep ready; `READY=…` changes the number.
fn ready() -> usize {
    env::var("READY").ok().and_then(|ready| ready.parse().ok()).unwrap_or(AT_ONCE)
}

/// Measures how long `what` takes, without dropping its result.
fn timed<T>(what: impl Fn() -> T) -> Duration {
    let begun = Instant::now();
    let made = what();
    let took = begun.elapsed();
    drop(made);
    took
}

fn spawn() {
    run(TRUE, &[]);
}

fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    // Cargo sets this variable, and every dynamically linked program would search there.
    command.args(arguments).stdin(Stdio::null()).env_remove("LD_LIBRARY_PATH");
    let status = command.status().expect("a program");
    assert!(status.success(), "{program}: {status}");
}

fn per_second(what: impl Fn() + Sync) -> f64 {
    let begun = Instant::now();
    let count: u32 = thread::scope(|scope| {
        let work = || {
            let mut count = 0;
            while begun.elapsed() < SATURATED {
                what();
                count += 1;
            }
            count
        };
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    f64::from(count) / begun.elapsed().as_secs_f64()
}
