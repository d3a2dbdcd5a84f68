//! Measures whether the amount of other state matters: live sessions, the program's memory and threads, the
//! host's mounts. Each result is a warm exec, compared with the small case.

use std::{
    env,
    hint::black_box,
    process::Command,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use kennel::Session;

use crate::{Bench, part_of, timed};

const SESSIONS: usize = 1000;
const THREADS: usize = 2000;
const MOUNTS: usize = 2000;
const LARGE: usize = 1 << 30;
const PAGE: usize = 4096;

/// Set in the run of this program with many mounts around it.
const INNER: &str = "KENNEL_BENCH_WITH_MOUNTS";

pub(crate) fn print(bench: &Bench, count: usize) {
    println!("\n| warm exec with | median µs | to the small case |\n| --- | ---: | ---: |");
    let small = measure(bench, count);
    let row = |name: &str, median: f64| println!("| {name} | {median:.0} | {:.2} |", median / small);
    row("nothing else", small);
    row("1 GiB resident", with_memory(bench, count));
    row("2,000 threads", with_threads(bench, count));
    row("1,000 live sessions", with_sessions(bench, count));
    row("nothing else, again", measure(bench, count));
    with_mounts(bench, count, small);
}

/// The median of warm execs, in microseconds. It runs no bare spawns in between: with thousands of open
/// descriptors those are slow, and their clean-up disturbs the next sample.
fn measure(bench: &Bench, count: usize) -> f64 {
    let mut samples: Vec<_> = (0..count).map(|_| timed(|| bench.exec(&bench.session))).collect();
    samples.sort();
    part_of(&samples, 50)
}

fn with_memory(bench: &Bench, pairs: usize) -> f64 {
    let mut resident = vec![0u8; LARGE];
    resident.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let measured = measure(bench, pairs);
    black_box(&resident);
    measured
}

fn with_threads(bench: &Bench, pairs: usize) -> f64 {
    let all = Arc::new(Barrier::new(THREADS + 1));
    let thread = |_| {
        let all = Arc::clone(&all);
        let small = thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || all.wait()).expect("a thread")
    };
    let threads: Vec<_> = (0..THREADS).map(thread).collect();
    let measured = measure(bench, pairs);
    all.wait();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    measured
}

fn with_sessions(bench: &Bench, pairs: usize) -> f64 {
    let sessions: Vec<Session> = (0..SESSIONS).map(|_| bench.prepare(1)).collect();
    while sessions.iter().any(|session| session.stats().ready == 0) {
        thread::sleep(Duration::from_millis(10));
    }
    let measured = measure(bench, pairs);
    drop(sessions);
    measured
}

/// Starts this program again with many mounts. That takes a mount namespace, and so root.
fn with_mounts(bench: &Bench, pairs: usize, small: f64) {
    let script = format!(
        "d=$(mktemp -d); mount -t tmpfs none $d; for n in $(seq {MOUNTS}); do mkdir $d/$n; mount --bind $d/$n $d/$n; done; \
         \"$0\" {pairs}; rmdir $d 2>/dev/null; true"
    );
    let program = env::current_exe().expect("this program");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .arg(program)
        .env(INNER, small.to_string())
        .env("ISOLATION", bench.policy.isolation.expect("chosen").as_str());
    match command.status() {
        Ok(status) if status.success() => {}
        other => println!("| 2,000 mounts | left out: {other:?} | |"),
    }
}

/// Whether this is the run with many mounts.
pub(crate) fn is_inner() -> bool {
    env::var_os(INNER).is_some()
}

pub(crate) fn inner(bench: &Bench, pairs: usize) {
    let small: f64 = env::var(INNER).ok().and_then(|small| small.parse().ok()).unwrap_or(f64::NAN);
    let median = measure(bench, pairs);
    println!("| 2,000 mounts of the host | {median:.0} | {:.2} |", median / small);
}
