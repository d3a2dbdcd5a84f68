//! `kennel route` before real workers: what clients see is what one server would show, whatever a worker
//! does.

mod create;
mod hostile;
mod life;
mod list;
mod pass;
mod status;
mod taken;

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::server::{Client, KEY, Server, token, wait_until};

/// A router of a test's own.
pub(crate) struct Router {
    process: Child,
    pub(crate) place: TempDir,
    client: Client,
}

impl Deref for Router {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Router {
    /// Before these workers.
    pub(crate) fn before(workers: &[&Server]) -> Self {
        let urls: Vec<_> = workers.iter().map(|worker| format!("http://{}", worker.address)).collect();
        Self::start(&urls.join(","), None, &[])
    }

    pub(crate) fn with_tokens(workers: &[&Server], tokens: &str) -> Self {
        let urls: Vec<_> = workers.iter().map(|worker| format!("http://{}", worker.address)).collect();
        Self::start(&urls.join(","), Some(tokens), &[])
    }

    pub(crate) fn start(workers: &str, tokens: Option<&str>, more: &[&str]) -> Self {
        Self::start_with(Command::new(env!("CARGO_BIN_EXE_kennel-server")), workers, tokens, more)
    }

    /// With these authorities in the place of the system's.
    pub(crate) fn trusting(certificate: &str, workers: &str, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
        command.env("SSL_CERT_FILE", certificate);
        Self::start_with(command, workers, None, more)
    }

    fn start_with(mut command: Command, workers: &str, tokens: Option<&str>, more: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        command.args(["route", "--listen", "127.0.0.1:0", "--workers", workers]).args(more);
        if let Some(tokens) = tokens {
            fs::write(place.path().join("tokens.toml"), tokens).unwrap();
            command.arg("--tokens").arg(place.path().join("tokens.toml"));
        }
        let errors = fs::File::create(place.path().join("errors")).unwrap();
        let mut process = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let errors = || fs::read_to_string(place.path().join("errors")).unwrap();
        let url = first.trim().strip_prefix("# Kennel routes at ").unwrap_or_else(|| panic!("{}", errors()));
        let address = url.split_once("://").unwrap().1.to_owned();
        let client = Client { address, key: KEY.to_owned() };
        Self { process, place, client }
    }

    /// What it said to whoever started it.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.place.path().join("errors")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn ends(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// The most memory that it has used, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// As `workers`, where it has this certificate.
    pub(crate) fn workers_over_tls(&self, certificate: &str) -> Vec<Value> {
        let port = self.address.rsplit_once(':').unwrap().1;
        let url = format!("https://localhost:{port}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
        command.args(["fleet", "status", "--json", &url]).env("SSL_CERT_FILE", certificate);
        let seen: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        seen["workers"].as_array().unwrap().clone()
    }

    /// The workers, as it sees them.
    pub(crate) fn workers(&self) -> Vec<Value> {
        let answer = self.request("GET", "/room", &[], b"");
        answer.json()["workers"].as_array().unwrap().clone()
    }

    /// Waits until it sees so many workers in this state.
    pub(crate) fn wait_for(&self, count: usize, state: &str) {
        wait_until(&format!("{count} workers are {state}"), || {
            self.workers().iter().filter(|worker| worker["state"] == state).count() == count
        });
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A worker of this name, with the token `me`.
pub(crate) fn worker(name: &str, config: &str) -> Server {
    worker_of(name, config, &token("me", ""))
}

pub(crate) fn worker_of(name: &str, config: &str, tokens: &str) -> Server {
    Server::with_tokens(&format!("name = '{name}'\nhosts = 1\n{config}"), tokens)
}

/// The worker of an id.
pub(crate) fn worker_in(id: &str) -> &str {
    id.rsplit_once('-').unwrap().0
}

/// Ends a sandbox.
pub(crate) fn end(client: &Client, id: &str) -> u16 {
    client.ask("DELETE", &format!("/sandboxes/{id}"), &Value::Null).status
}

/// Until what was made is told: more than a round of questions.
pub(crate) fn round() {
    sleep(Duration::from_millis(2100));
}
