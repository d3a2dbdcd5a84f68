//! Many of everything, and nothing left at the end: commands, sessions, embedding programs that are killed,
//! and an agent's day of work with the same outcome as without a sandbox.
//!
//! `cargo test` runs a short form, `scripts/soak` the whole. Only one process at a time: it counts everything
//! on the host.
#![expect(clippy::print_stdout, reason = "a long run shows its progress")]

mod agent;
mod counts;
mod kills;
mod shared;

use std::{
    env,
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

use kennel::{Policy, Profile, Session};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use counts::Counts;

/// The number of each.
struct Amount {
    commands: u32,
    sessions: u32,
    kills: u32,
    rounds: u32,
}

const SHORT: Amount = Amount { commands: 1_500, sessions: 40, kills: 20, rounds: 2 };
const WHOLE: Amount = Amount { commands: 100_000, sessions: 2_000, kills: 500, rounds: 25 };

/// Commands at once.
const AT_ONCE: usize = 8;

fn main() {
    if kills::is_victim() {
        return kills::victim();
    }
    // A name that tells this run's leftovers from those of others.
    let _ = nix::unistd::setsid();
    let asked = env::args().skip(1).any(|argument| argument == "--list");
    if asked || !can_confine() {
        return;
    }
    let mut amount = if env::var_os("KENNEL_SOAK").is_some() { WHOLE } else { SHORT };
    if let Some(commands) = env::var("KENNEL_SOAK_COMMANDS").ok().and_then(|count| count.parse().ok()) {
        amount.commands = commands;
    }
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let passed = [
        part("commands of one session", &runtime, || commands(&runtime, amount.commands)),
        part("commands that share their processes", &runtime, || shared::commands(&runtime, amount.commands)),
        part("sessions one after the other", &runtime, || sessions(&runtime, amount.sessions)),
        part("200 commands at once", &runtime, || at_once(&runtime, 200)),
        part("embedding programs killed", &runtime, || kills::kill(amount.kills)),
        part("an agent's work, confined and bare", &runtime, || agent::work(&runtime, amount.rounds)),
    ];
    let passed = passed.into_iter().filter(|ran| *ran).count();
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored");
}

/// Without user namespaces there is nothing to soak. If the test must run, that is a failure.
fn can_confine() -> bool {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(Session::prepare(&policy(workspace.path()))) {
        Ok(_) => true,
        Err(error) if env::var_os("KENNEL_MUST_RUN").is_some() => panic!("{}", error.chain()),
        Err(error) => {
            println!("SKIP soak: {}", error.chain());
            false
        }
    }
}

fn policy(workspace: &std::path::Path) -> Policy {
    Policy::profile(Profile::NoNetwork, workspace)
}

/// Runs one part, if it is chosen. The counts on the host must be the same before and after.
fn part(name: &str, runtime: &Runtime, what: impl FnOnce()) -> bool {
    // As with other tests: a word chooses those whose name has it.
    let mut chosen = env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    if chosen.peek().is_some() && !chosen.any(|word| name.contains(&word)) {
        return false;
    }
    println!("{name} …");
    // The first of everything makes what stays: the runtime's own descriptors, the allocator's arenas.
    sessions(runtime, 3);
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
    let before = Counts::settled(None);
    let begun = Instant::now();
    what();
    // The runtime reaps dropped processes.
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
    let after = Counts::settled(Some(&before));
    println!("{name}: {:.1} s, {after}", begun.elapsed().as_secs_f64());
    assert!(after.is_no_more_than(&before), "{name} left something: before {before}, after {after}");
    true
}

fn commands(runtime: &Runtime, count: u32) {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    runtime.block_on(async {
        let session = Session::prepare(&policy(workspace.path())).await.expect("a session");
        each(count, |number| one(session.clone(), number)).await;
        assert_eq!(session.stats().served, u64::from(count));
        session.shutdown().await;
    });
}

/// Runs what `one` makes for each number, some at a time.
async fn each<F: Future<Output = ()> + Send + 'static>(count: u32, one: impl Fn(u32) -> F) {
    let mut running = JoinSet::new();
    for number in 0..count {
        if running.len() >= AT_ONCE {
            running.join_next().await.expect("one runs").expect("no panic");
        }
        running.spawn(one(number));
        progress(number, count);
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic");
    }
}

/// Runs one command and checks its output. Every third one runs in the shell and leaves a process behind.
async fn one(session: Session, number: u32) {
    let script = match number % 3 {
        0 => format!("sleep 60 & echo {number}"),
        _ => format!("echo {number}"),
    };
    let out = session.command("sh").args(["-c", &script]).output().await.expect("a command");
    assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{number}\n"));
    assert!(out.outcome.status.success());
}

fn sessions(runtime: &Runtime, count: u32) {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    runtime.block_on(async {
        for number in 0..count {
            let session = Session::prepare(&policy(workspace.path())).await.expect("a session");
            let outcome = session.command("true").status().await.expect("a command");
            assert!(outcome.status.success());
            // Every second session is only dropped.
            if number % 2 == 0 {
                session.shutdown().await;
            }
            progress(number, count);
        }
    });
}

fn at_once(runtime: &Runtime, count: u32) {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    runtime.block_on(async {
        let session = Session::prepare(&policy(workspace.path())).await.expect("a session");
        let mut running: JoinSet<()> = (0..count).map(|number| one(session.clone(), number)).collect();
        while let Some(ended) = running.join_next().await {
            ended.expect("no panic");
        }
        session.shutdown().await;
    });
}

/// A line that the next one overwrites, on a terminal only.
fn progress(done: u32, all: u32) {
    if done.is_multiple_of(100) && stdout().is_terminal() {
        print!("\r{done} of {all}\r");
        // A progress line that cannot be written does no harm.
        let _ = stdout().flush();
    }
}
