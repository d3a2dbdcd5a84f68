//! Measures connectors: a call of a trivial one, a call of a program in Go against starting the same program
//! natively, the memory of a thousand calls in flight, and loading from the cache against compiling. What is
//! compared is measured in turn: on a shared machine only ratios are meaningful.
//!
//! `cargo bench --features wasm --bench connector [ROUNDS]`; `ONLY=…` picks one of invoke, go, memory, load.
//! `scripts/guest-tools` installs Go for two of them.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "../tests/connector/built.rs"]
#[expect(dead_code, reason = "the tests have more guests")]
mod built;

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::{Request, Response};
use kennel::broker::Manifest;
use kennel::connector::{Call, Connector, HttpClient, Runtime, Sending};
use serde_json::json;
use tokio::{runtime::Builder, sync::Semaphore, task::JoinSet};

/// Calls in flight at the same time.
const IN_FLIGHT: u32 = 1000;

/// Pages of 4 KiB that each of those programs writes to.
const OWN_PAGES: u64 = 16;

const MANIFEST: &str = "[connector]\nname = 'bench'\n[capabilities.network]\nhosts = ['mail.example:443']";

/// Writes an empty output.
const TRIVIAL: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\0d\00\00\00")
    (data (i32.const 16) "{\"output\":{}}")
    (func (export "_start") (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

/// Writes to pages, and makes a request.
const WAITS: &str = r#"(module
    (import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))
    (memory (export "memory") 2)
    (data (i32.const 16) "{\"url\":\"https://mail.example/\"}")
    (func (export "_start") (local $at i32)
        (loop $more
            (i32.store8 (local.get $at) (i32.const 1))
            (br_if $more (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4096))) (i32.const 65536))))
        (drop (call $request (i32.const 16) (i32.const 31)))))"#;

fn main() {
    let rounds = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1000);
    let wanted = env::var("ONLY").ok();
    let is_wanted = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    println!("\n| what | median | compared with | ratio | must | aim |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    if is_wanted("invoke") {
        invoke(rounds * 10);
    }
    if is_wanted("go") {
        go(rounds / 5 + 1);
    }
    if is_wanted("memory") {
        memory();
    }
    if is_wanted("load") {
        load(rounds / 200 + 1);
    }
}

fn tokio() -> tokio::runtime::Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn manifest() -> Manifest {
    Manifest::from_toml(MANIFEST).expect("a manifest")
}

fn compiled(runtime: &Runtime, program: &[u8]) -> Connector {
    runtime.compile(&manifest(), program).expect("a connector")
}

fn text(program: &str) -> Vec<u8> {
    wat::parse_str(program).expect("a program")
}

/// Calls a trivial connector.
fn invoke(calls: usize) {
    let runtime = Runtime::builder().build().expect("a runtime");
    let connector = compiled(&runtime, &text(TRIVIAL));
    let mut times = Vec::new();
    tokio().block_on(async {
        for call in 0..calls + calls / 10 {
            let begun = Instant::now();
            let result = connector.invoke(Call::new("op")).await.expect("an output");
            if call >= calls / 10 {
                times.push(begun.elapsed());
            }
            assert_eq!(result.output.map(|output| output.len()), Some(0));
        }
    });
    let micros = median(&mut times).as_secs_f64() * 1e6;
    println!("| `invoke` of a trivial connector | {micros:.1} µs | | | 60 µs | 20 µs |");
}

/// Calls a connector in Go, and starts the same program natively with the same input, in turn.
fn go(pairs: usize) {
    let (module, native) = (need(built::mail()), need(built::native_mail()));
    let runtime = Runtime::builder().build().expect("a runtime");
    let connector = compiled(&runtime, &fs::read(module).expect("a program"));
    let messages: Vec<_> = (0..20)
        .map(|n| json!({"from": format!("f{}", n % 3), "subject": "a subject", "unread": n < 7}))
        .collect();
    let input = json!({"op": "summarize", "args": {"messages": messages}}).to_string();
    let tokio = tokio();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for pair in 0..pairs + pairs / 10 + 1 {
        let begun = Instant::now();
        let output = start(native, &input);
        let native_took = begun.elapsed();
        let call = Call::new("summarize").argument("messages", messages.clone());
        let begun = Instant::now();
        let result = tokio.block_on(connector.invoke(call)).expect("an output");
        let took = begun.elapsed();
        assert_eq!(json!({"output": result.output}), output);
        if pair > pairs / 10 {
            ours.push(took);
            bare.push(native_took);
        }
    }
    let [ours, bare] = [ours, bare].map(|mut times| median(&mut times).as_secs_f64() * 1e6);
    let ratio = ours / bare;
    println!(
        "| `invoke` of Go, to its native start | {ours:.0} µs | {bare:.0} µs | {ratio:.2} | 1.0 | 0.5 |"
    );
}

/// Starts a native program, and reads what it prints.
fn start(program: &Path, input: &str) -> serde_json::Value {
    let mut command = Command::new(program);
    // Cargo sets this variable, and every dynamically linked program would search there.
    command.env_remove("LD_LIBRARY_PATH").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a program");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("a reader");
    let output = child.wait_with_output().expect("an output");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Answers once it is told to.
struct Waits {
    begun: Arc<Semaphore>,
    told: Arc<Semaphore>,
}

impl HttpClient for Waits {
    fn send(&self, _: Request<Bytes>) -> Sending<'_> {
        self.begun.add_permits(1);
        Box::pin(async {
            let _told = self.told.acquire().await;
            Ok(Response::new(Bytes::new()))
        })
    }
}

/// Has many calls wait at once, and counts what they take beyond the pages that they write to.
fn memory() {
    let [begun, told] = [0, 0].map(|permits| Arc::new(Semaphore::new(permits)));
    let client = Waits { begun: Arc::clone(&begun), told: Arc::clone(&told) };
    let runtime = Runtime::builder().http_client(client).build().expect("a runtime");
    let connector = compiled(&runtime, &text(WAITS));
    let in_flight = async |count: u32| {
        let mut calls = JoinSet::new();
        for _ in 0..count {
            let connector = connector.clone();
            calls.spawn(async move { connector.invoke(Call::new("op")).await });
        }
        begun.acquire_many(count).await.expect("open").forget();
        let taken = kib();
        told.add_permits(count as usize);
        while let Some(ended) = calls.join_next().await {
            ended.expect("no panic").expect("an end");
        }
        told.acquire_many(count).await.expect("open").forget();
        taken
    };
    // The first call takes what all of them share.
    let [one, all] = tokio().block_on(async { [in_flight(1).await, in_flight(IN_FLIGHT + 1).await] });
    let each = all.saturating_sub(one) as f64 / f64::from(IN_FLIGHT) - (OWN_PAGES * 4) as f64;
    println!("| memory of a call in flight, of {IN_FLIGHT} | {each:.0} KiB | | | 128 KiB | 64 KiB |");
}

/// Loads a large module from the cache, and compiles it, each in a fresh runtime.
fn load(rounds: usize) {
    let path = need(built::mail());
    let program = fs::read(path).expect("a program");
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cached = || Runtime::builder().cache(cache.path().join("code"));
    compiled(&cached().build().expect("a runtime"), &program);
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        drop(compiled(&Runtime::builder().build().expect("a runtime"), &program));
        bare.push(begun.elapsed());
        let begun = Instant::now();
        drop(compiled(&cached().build().expect("a runtime"), &program));
        ours.push(begun.elapsed());
    }
    let [ours, bare] = [ours, bare].map(|mut times| median(&mut times).as_secs_f64() * 1e3);
    let (ratio, size) = (ours / bare, program.len() as f64 / 1e6);
    println!(
        "| start from the cache, to compiling {size:.1} MB | {ours:.1} ms | {bare:.0} ms | {ratio:.3} | 0.05 | |"
    );
}

fn need(built: built::Built) -> &'static Path {
    built.as_deref().unwrap_or_else(|missing| panic!("{missing}"))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// What this process takes, in KiB: its proportional set size and its page tables.
fn kib() -> u64 {
    let of = |file: &str, key: &str| {
        let text = fs::read_to_string(file).expect("a file of procfs");
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
        line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
    };
    of("/proc/self/smaps_rollup", "Pss:") + of("/proc/self/status", "VmPTE:")
}
