//! Measures the start of one command: bare, through the library, as the `kennel` command, and under
//! bubblewrap if it is on PATH. Also measures whether the size of the embedding program matters. Everything
//! runs in turn: on a shared machine only ratios are meaningful.
//!
//! Each cost is a criterion benchmark. A table of ratios to a bare spawn follows at the end.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "session/peers.rs"]
mod peers;

use std::{
    cell::RefCell,
    env,
    hint::black_box,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use kennel::{Policy, Profile, Sandbox};
use peers::{BWRAP, TRUE};
use tokio::runtime::{Builder, Runtime};

/// The resident memory of an agent with a large context.
const LARGE: usize = 1 << 30;
const PAGE: usize = 4096;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5))
        .configure_from_args();
    let bench = Bench::new();
    bench.commands(&mut criterion);
    bench.parents(&mut criterion);
    bench.print_ratios();
    criterion.final_summary();
}

/// What the benchmarks share, and every sample that they took.
struct Bench {
    runtime: Runtime,
    sandbox: Sandbox,
    policy: Policy,
    workspace: tempfile::TempDir,
    samples: RefCell<Vec<(&'static str, Duration)>>,
}

impl Bench {
    fn new() -> Self {
        let workspace = tempfile::tempdir().expect("a temporary directory");
        let policy = Policy::profile(Profile::RepoWrite, workspace.path());
        let sandbox = Sandbox::new(&policy).expect("a policy that this host can enforce");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { runtime, sandbox, policy, workspace, samples: RefCell::default() }
    }

    fn commands(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group("exec");
        self.measure(&mut group, "bare spawn", || self.bare(TRUE, &[]));
        self.measure(&mut group, "library one-shot", || self.one_shot());
        self.measure(&mut group, "library compile", || {
            black_box(Sandbox::new(&self.policy).expect("the same policy as before"));
        });
        let kennel = env!("CARGO_BIN_EXE_kennel");
        self.measure(&mut group, "kennel run", || self.bare(kennel, &["run", "--", TRUE]));
        if is_on_path("bwrap") {
            self.measure(&mut group, "bwrap", || self.bare("bwrap", BWRAP));
        }
        group.finish();
    }

    /// The same start from a small and from a large program: nothing may copy the large one's memory.
    fn parents(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group("parent");
        self.measure(&mut group, "one-shot, small parent", || self.one_shot());
        let mut resident = vec![0u8; LARGE];
        resident.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        self.measure(&mut group, "one-shot, 1 GiB parent", || self.one_shot());
        black_box(&resident);
        group.finish();
    }

    /// Runs one benchmark and keeps its samples for the table.
    fn measure(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        name: &'static str,
        mut routine: impl FnMut(),
    ) {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let begun = Instant::now();
                (0..count).for_each(|_| routine());
                let took = begun.elapsed();
                let each = took / u32::try_from(count).unwrap_or(u32::MAX).max(1);
                self.samples.borrow_mut().push((name, each));
                took
            });
        });
    }

    /// Starts a process in the workspace with the standard library, and waits for it.
    fn bare(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(self.workspace.path())
            // Cargo sets this variable, and every dynamically linked program would search there.
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .status()
            .expect("a program that can be started");
        assert!(status.success(), "{program}: {status}");
    }

    fn one_shot(&self) {
        let run = async { self.sandbox.command(TRUE).stdin(kennel::Stdio::null()).status().await };
        let outcome = self.runtime.block_on(run).expect("a sandbox that starts");
        assert!(outcome.status.success(), "{:?}", outcome.status);
    }

    /// Prints medians over all samples. A filter on the command line leaves rows out.
    fn print_ratios(&self) {
        let samples = self.samples.borrow();
        let mut names: Vec<&str> = samples.iter().map(|(name, _)| *name).collect();
        names.dedup();
        let median = |wanted: &str| {
            let mut of: Vec<Duration> =
                samples.iter().filter(|(name, _)| *name == wanted).map(|(_, each)| *each).collect();
            of.sort();
            of.get(of.len() / 2).copied()
        };
        let ratio = |name: &str, to: &str| {
            let (one, other) = (median(name)?, median(to)?);
            Some(format!("{:.2}", one.as_secs_f64() / other.as_secs_f64()))
        };
        let dash = || "-".to_owned();
        println!("\n| start | median in µs | to bare spawn |\n| --- | ---: | ---: |");
        for name in names {
            let us = median(name).unwrap_or_default().as_micros();
            println!("| {name} | {us} | {} |", ratio(name, "bare spawn").unwrap_or_else(dash));
        }
        if let Some(grown) = ratio("one-shot, 1 GiB parent", "one-shot, small parent") {
            println!("\none-shot with 1 GiB resident in the parent: {grown} of the small parent's");
        }
    }
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
