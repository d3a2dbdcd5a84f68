//! Measures the server beside sessions in process: commands, whole lives of sandboxes, many at once, memory,
//! files, and whether it answers while every processor is busy. Everything goes over TCP on loopback.
//!
//! `cargo bench --package kennel-server [PART…]`: latency, life, run, idle, files, busy, streams, route, and
//! with the feature `nats` queue; all by default. With `E2B_PYTHON`, an interpreter that has E2B's client, it
//! measures that client too.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

mod client;
mod parts;
#[cfg(feature = "nats")]
mod queue;
mod route;

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

fn main() {
    let wanted: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for (name, part) in parts::ALL {
            if wanted.is_empty() || wanted.iter().any(|word| word == name) {
                println!("\n## {name}\n");
                part.run().await;
            }
        }
    });
}

/// Processor time of a process until now.
fn processor_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = text.rsplit_once(')').unwrap().1;
    // User and system time, in ticks of 10 ms: proc_pid_stat(5).
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// A server of its own.
struct Server {
    process: Child,
    place: TempDir,
    address: String,
    key: String,
}

impl Server {
    fn start(config: &str) -> Self {
        // Not /tmp: each directory on the way to one there is pinned in each sandbox, and it may be in
        // memory.
        let place = tempfile::tempdir_in(
            env::var_os("KENNEL_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()),
        )
        .unwrap();
        let file = place.path().join("serve.toml");
        std::fs::write(&file, format!("listen = '127.0.0.1:0'\n{config}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
        command.arg("serve").arg("--config").arg(&file).arg("--state").arg(place.path().join("state"));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines: Vec<String> =
            BufReader::new(process.stdout.take().unwrap()).lines().take(4).map(Result::unwrap).collect();
        let after = |line: &str| line.rsplit(['=', ' ']).next().unwrap().to_owned();
        let address = after(&lines[0]).strip_prefix("http://").unwrap().to_owned();
        Self { process, place, address, key: after(&lines[3]) }
    }

    /// The front and its hosts.
    fn processes(&self) -> Vec<u32> {
        let state = self.place.path().join("state").display().to_string();
        let is_ours = |pid: &u32| {
            let words =
                std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&state)
        };
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        for _ in 0..2 {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.process.wait();
    }
}
