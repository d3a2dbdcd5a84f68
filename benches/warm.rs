//! Measures commands that an interpreter becomes which has started before ([`Policy::warm`]): against a bare
//! spawn of the same program, in turn with it, and with all processors busy. Also measures what a waiting
//! interpreter takes of memory, and what `warm` costs those who do not use it.
//!
//! `cargo bench --bench warm [PAIRS]`; PYTHON names the interpreter, which should have numpy and pandas.
//! Default: `/usr/bin/python3`. What it lacks is left out.
//!
//! [`Policy::warm`]: field@kennel::Policy::warm
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use kennel::{Isolation, Policy, Profile, Session, Start};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Long enough for an interpreter to get ready, at most.
const PAUSE: Duration = Duration::from_secs(20);

/// How long to measure each throughput.
const SATURATED: Duration = Duration::from_secs(5);

/// Commands at once, if the machine must be busy.
const AT_ONCE: usize = 8;

fn main() {
    let pairs = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(40);
    let python = env::var("PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    println!("| isolation | program | warm, median ms | p10 to p90 | bare spawn, median ms | ratio |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for isolation in [Isolation::Session, Isolation::Command] {
        for modules in ["", "numpy", "pandas"] {
            if !has(&python, modules) {
                continue;
            }
            Bench::new(isolation, &python, modules).latency(pairs);
        }
    }
    println!(
        "\n| isolation | program, {AT_ONCE} at once | warm, a second | of them warm | bare, a second | ratio |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for isolation in [Isolation::Session, Isolation::Command] {
        for modules in ["", "numpy"].into_iter().filter(|modules| has(&python, modules)) {
            Bench::new(isolation, &python, modules).throughput();
        }
    }
    println!("\n| isolation | a waiting interpreter | private memory, MiB | all of it, MiB |");
    println!("| --- | --- | ---: | ---: |");
    for isolation in [Isolation::Session, Isolation::Command] {
        for modules in ["", "numpy", "pandas"].into_iter().filter(|modules| has(&python, modules)) {
            Bench::new(isolation, &python, modules).memory();
        }
    }
}

/// Whether this Python has the modules.
fn has(python: &str, modules: &str) -> bool {
    let text = if modules.is_empty() { "pass".to_owned() } else { format!("import {modules}") };
    let status = Command::new(python).args(["-c", &text]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

struct Bench {
    runtime: Runtime,
    session: Session,
    python: String,
    /// What commands run.
    text: String,
    isolation: Isolation,
    _workspace: tempfile::TempDir,
}

impl Bench {
    fn new(isolation: Isolation, python: &str, modules: &str) -> Self {
        let workspace = tempfile::tempdir().expect("a temporary directory");
        let modules: Vec<&str> = modules.split(',').filter(|module| !module.is_empty()).collect();
        let text =
            if modules.is_empty() { "pass".to_owned() } else { format!("import {}", modules.join(",")) };
        let place = Path::new(python).parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
        let policy = Policy::profile(Profile::NoNetwork, workspace.path())
            .isolation(isolation)
            .read_only(place)
            .warm(python, modules);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let session = runtime.block_on(Session::prepare(&policy)).expect("a session");
        let bench =
            Self { runtime, session, python: python.to_owned(), text, isolation, _workspace: workspace };
        bench.pause();
        bench
    }

    /// Until an interpreter waits.
    fn pause(&self) {
        let started = self.session.interpreters_started();
        self.runtime
            .block_on(async { tokio::time::timeout(PAUSE, started).await })
            .expect("it starts in time");
    }

    fn warm(&self) -> Start {
        let mut command = self.session.command(&self.python);
        command.args(["-c", &self.text]).stdin(kennel::Stdio::null());
        let outcome = self.runtime.block_on(command.status()).expect("a session that lives");
        assert!(outcome.status.success(), "{:?}", outcome.status);
        outcome.start
    }

    fn bare(&self) {
        let mut command = Command::new(&self.python);
        let status = command.args(["-c", &self.text]).stdin(Stdio::null()).status().expect("a Python");
        assert!(status.success());
    }

    fn latency(&self, pairs: usize) {
        let (mut warm, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            self.pause();
            let begun = Instant::now();
            let start = self.warm();
            warm.push(begun.elapsed());
            assert_eq!(start, Start::Warm);
            self.pause();
            let begun = Instant::now();
            self.bare();
            bare.push(begun.elapsed());
        }
        warm.sort_unstable();
        bare.sort_unstable();
        let at = |times: &[Duration], percent: usize| {
            times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3
        };
        let (median, of_bare) = (at(&warm, 50), at(&bare, 50));
        println!(
            "| {} | `{}` | {median:.2} | {:.2} to {:.2} | {of_bare:.1} | {:.3} |",
            self.isolation,
            self.text,
            at(&warm, 10),
            at(&warm, 90),
            median / of_bare,
        );
    }

    fn throughput(&self) {
        let begun = Instant::now();
        let bare = std::thread::scope(|scope| {
            let one = || {
                let mut done = 0u32;
                while begun.elapsed() < SATURATED {
                    self.bare();
                    done += 1;
                }
                done
            };
            let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).sum::<u32>()
        });
        let bare = f64::from(bare) / begun.elapsed().as_secs_f64();
        self.pause();
        let begun = Instant::now();
        let (done, warm) = self.runtime.block_on(async {
            let mut running = JoinSet::new();
            let (mut done, mut warm) = (0u32, 0u32);
            loop {
                while running.len() < AT_ONCE && begun.elapsed() < SATURATED {
                    let mut command = self.session.command(&self.python);
                    command.args(["-c", &self.text]).stdin(kennel::Stdio::null());
                    running.spawn(async move { command.status().await });
                }
                let Some(ended) = running.join_next().await else { break };
                let outcome = ended.expect("no panic").expect("an outcome");
                assert!(outcome.status.success());
                done += 1;
                warm += u32::from(outcome.start == Start::Warm);
            }
            (done, warm)
        });
        let ours = f64::from(done) / begun.elapsed().as_secs_f64();
        let (isolation, text, part) = (self.isolation, &self.text, 100 * warm / done.max(1));
        println!("| {isolation} | `{text}` | {ours:.0} | {part} % | {bare:.0} | {:.2} |", ours / bare);
    }

    fn memory(&self) {
        let processes = self.runtime.block_on(self.session.processes()).expect("a list");
        for process in processes.processes {
            let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.host_pid));
            let rollup = rollup.expect("of a process of this user");
            let mib = |keys: &[&str]| {
                let number = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
                let of = |line: &&str| keys.iter().any(|key| line.starts_with(key));
                rollup.lines().filter(of).filter_map(number).sum::<f64>() / 1024.0
            };
            let private = mib(&["Private_Clean", "Private_Dirty"]);
            println!("| {} | `{}` | {private:.1} | {:.1} |", self.isolation, self.text, mib(&["Rss"]));
        }
    }
}
