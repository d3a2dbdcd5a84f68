//! Whether it matters how much else there is: live sessions, the program's memory and threads, the host's mounts. Each
//! is a warm exec beside bare spawns; the number is its time in the time of the small case.

use std::{
    env,
    hint::black_box,
    process::Command,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use kennel::Session;

use crate::{Bench, Pairs, pair};

const SESSIONS: usize = 1000;
const THREADS: usize = 2000;
const MOUNTS: usize = 2000;
const LARGE: usize = 1 << 30;
const PAGE: usize = 4096;

/// Set for the run of this program that has many mounts around it.
const INNER: &str = "KENNEL_BENCH_WITH_MOUNTS";

pub(crate) fn print(bench: &Bench, pairs: usize) {
    println!("\n| warm exec with | median µs | p10 to p90 | bare spawn, median µs | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let small = measure(bench, pairs, "nothing else");
    let mut grown = vec![("1 GiB resident", with_memory(bench, pairs))];
    grown.push(("2,000 threads", with_threads(bench, pairs)));
    grown.push(("1,000 live sessions", with_sessions(bench, pairs)));
    let again = measure(bench, pairs, "nothing else, again");
    with_mounts(pairs);
    let base = (small.median() + again.median()) / 2.0;
    println!();
    for (name, pairs) in grown {
        println!("with {name}: {:.2} of the small case", pairs.median() / base);
    }
}

fn measure(bench: &Bench, pairs: usize, name: &str) -> Pairs {
    let pairs = pair(pairs, || bench.exec(&bench.session));
    pairs.row(name);
    pairs
}

fn with_memory(bench: &Bench, pairs: usize) -> Pairs {
    let mut resident = vec![0u8; LARGE];
    resident.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let measured = measure(bench, pairs, "1 GiB resident");
    black_box(&resident);
    measured
}

fn with_threads(bench: &Bench, pairs: usize) -> Pairs {
    let all = Arc::new(Barrier::new(THREADS + 1));
    let thread = |_| {
        let all = Arc::clone(&all);
        let small = thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || all.wait()).expect("a thread")
    };
    let threads: Vec<_> = (0..THREADS).map(thread).collect();
    let measured = measure(bench, pairs, "2,000 threads");
    all.wait();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    measured
}

fn with_sessions(bench: &Bench, pairs: usize) -> Pairs {
    let sessions: Vec<Session> = (0..SESSIONS).map(|_| bench.prepare(1)).collect();
    while sessions.iter().any(|session| session.stats().ready == 0) {
        thread::sleep(Duration::from_millis(10));
    }
    let measured = measure(bench, pairs, "1,000 live sessions");
    drop(sessions);
    measured
}

/// Starts this program again where there are many mounts, which takes a mount namespace and so root.
fn with_mounts(pairs: usize) {
    let script = format!(
        "d=$(mktemp -d); mount -t tmpfs none $d; for n in $(seq {MOUNTS}); do mkdir $d/$n; mount --bind $d/$n $d/$n; done; \
         \"$0\" {pairs}; rmdir $d 2>/dev/null; true"
    );
    let program = env::current_exe().expect("this program");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(program).env(INNER, "1");
    match command.status() {
        Ok(status) if status.success() => {}
        other => println!("| 2,000 mounts | left out: {other:?} | | | |"),
    }
}

/// Whether this is the run with many mounts.
pub(crate) fn is_inner() -> bool {
    env::var_os(INNER).is_some()
}

pub(crate) fn inner(bench: &Bench, pairs: usize) {
    measure(bench, pairs, "2,000 mounts of the host");
}
