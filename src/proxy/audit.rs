//! The audit log: a line of JSON for each decision of the proxy. Names, addresses and numbers only; nothing of what
//! passes is written anywhere.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::SystemTime,
};

use serde::Serialize;

use super::{
    Proxy,
    destination::{Destination, Host},
    meter::Tally,
    refusal::Refusal,
};

/// The file of a policy's `audit`.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    /// Whether somebody was told that it cannot be written.
    told: AtomicBool,
}

impl Log {
    /// Opens or makes it. Never through a link in its last part, and never something that is no file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
        Ok(Self { file, path: path.to_owned(), told: AtomicBool::new(false) })
    }

    /// Appends a line, whole, by one write(2). A disk that is full is told once.
    pub(super) fn write(&self, line: &Line<'_>) {
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            (&self.file).write_all(&bytes)
        });
        if let Err(error) = written
            && !self.told.swap(true, Relaxed)
        {
            tracing::error!(path = %self.path.display(), %error, "the audit log cannot be written");
        }
    }
}

/// One decision.
#[derive(Serialize)]
pub(super) struct Line<'l> {
    time: String,
    event: &'static str,
    session: &'l str,
    /// The command, where only one can have asked; counted from 1 in its session.
    exec: Option<u64>,
    host: String,
    port: Option<u16>,
    address: Option<IpAddr>,
    decision: &'static str,
    reason: &'static str,
    bytes_up: u64,
    bytes_down: u64,
    duration_ms: u64,
}

impl<'l> Line<'l> {
    pub(super) fn refused(proxy: &'l Proxy, refusal: &Refusal) -> Self {
        let (host, port) = match &refusal.destination {
            Some(destination) => (host(destination), Some(destination.port)),
            None => (refusal.subject.clone(), None),
        };
        let decision = if refusal.is_denial() { "denied" } else { "failed" };
        Self {
            time: now(),
            event: "egress",
            session: &proxy.session,
            exec: proxy.execs.only(),
            host,
            port,
            address: None,
            decision,
            reason: refusal.word(),
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
        }
    }
}

fn host(destination: &Destination) -> String {
    match &destination.host {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    }
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// A connection that passed; its line is written when it ends, however it ends.
pub(super) struct Record {
    proxy: Arc<Proxy>,
    pub(super) tally: Arc<Tally>,
    destination: Destination,
    address: Option<IpAddr>,
    exec: Option<u64>,
    reason: &'static str,
}

impl Record {
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        destination: &Destination,
        address: Option<IpAddr>,
        reason: &'static str,
    ) -> Self {
        Self {
            exec: proxy.execs.only(),
            proxy: Arc::clone(proxy),
            tally: Arc::new(Tally::new()),
            destination: destination.clone(),
            address,
            reason,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.proxy.gate.audit(|| Line {
            time: now(),
            event: "egress",
            session: &self.proxy.session,
            exec: self.exec,
            host: host(&self.destination),
            port: Some(self.destination.port),
            address: self.address,
            decision: "allowed",
            reason: self.reason,
            bytes_up: self.tally.up.load(Relaxed),
            bytes_down: self.tally.down.load(Relaxed),
            duration_ms: u64::try_from(self.tally.age().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

/// Which commands run.
#[derive(Default)]
pub(super) struct Execs {
    running: Mutex<(u64, BTreeSet<u64>)>,
}

/// A command that runs, until it is dropped.
pub(super) struct Exec {
    proxy: Arc<Proxy>,
    number: u64,
}

impl Execs {
    pub(super) fn enter(&self, proxy: &Arc<Proxy>) -> Exec {
        let mut running = self.lock();
        running.0 += 1;
        let number = running.0;
        running.1.insert(number);
        Exec { proxy: Arc::clone(proxy), number }
    }

    /// The number of the command that runs, where it is the only one.
    fn only(&self) -> Option<u64> {
        let running = self.lock();
        let mut numbers = running.1.iter();
        numbers.next().copied().filter(|_| numbers.next().is_none())
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeSet<u64>)> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.proxy.execs.lock().1.remove(&self.number);
    }
}
