//! The errors of the adapter, and the directory for its sockets. The harness takes errors as text only.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{env, fs, io};

use fluers_runtime::{RuntimeError, SandboxProfile};
use kennel::internal::{check_directory, make_runtime_directory};
use kennel::{Error, probe::Probe, report::Remedy};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{geteuid, mkdtemp};

/// Becomes [`RuntimeError::Sandbox`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum FluersError {
    #[error("{}", with_hint(.0.chain(), .0.remedy()))]
    Kennel(#[from] Error),
    #[error("{}", with_hint(reason.clone(), remedy.clone()))]
    Policy { reason: String, remedy: Option<Remedy> },
    #[error("no directory for sockets: {}", kennel::internal::words(.0))]
    ContextPlace(#[from] std::io::Error),
    #[error("the command line is empty")]
    NoCommand,
    #[error(
        "workspace {} with profile {profile:?} and this egress list: {}",
        workspace.display(),
        if *was_shut_down { "the sandbox was shut down" } else { "not prepared" }
    )]
    NotPrepared { workspace: PathBuf, profile: SandboxProfile, was_shut_down: bool },
    #[error("the sandbox was shut down while it was being prepared")]
    ShutDown,
    #[error("cwd {}: {reason}", path.display())]
    Cwd { path: PathBuf, reason: &'static str },
    #[error("{what} {}: is not UTF-8, which the harness requires", path.display())]
    NotText { what: &'static str, path: PathBuf },
}

impl FluersError {
    /// For a profile that must be enforced in full.
    pub(crate) fn not_in_full(probe: &Probe) -> Self {
        let mut missing = probe.negatives().filter(|finding| finding.needed).peekable();
        let remedy = missing.peek().and_then(|finding| finding.remedy.clone());
        let missing: Vec<_> =
            missing.map(|finding| format!("{} ({})", finding.name, finding.detail)).collect();
        let reason = format!("profile ci-only runs only with everything enforced: {}", missing.join(", "));
        Self::Policy { reason, remedy }
    }
}

impl From<FluersError> for RuntimeError {
    fn from(error: FluersError) -> Self {
        Self::Sandbox(format!("kennel: {error}"))
    }
}

fn with_hint(reason: String, remedy: Option<Remedy>) -> String {
    match remedy {
        Some(remedy) => format!("{reason}; hint: {remedy}"),
        None => reason,
    }
}

// A private directory for sockets and their client. Dropping `ContextPlace` removes it. The process holds a
// lock on it; if the lock is free, the owner was killed, and the next process removes the directory.

const PREFIX: &str = "kennel-fluers-";

/// A younger directory may not be locked yet, so do not remove it.
const YOUNG: Duration = Duration::from_secs(60);

/// Longest path of the directory, in bytes. The path of a socket in it must not exceed 107 bytes (`sun_path`
/// in unix(7)).
const LONGEST: usize = 80;

#[derive(Debug)]
pub(crate) struct ContextPlace {
    path: PathBuf,
    sockets: AtomicU64,
    /// `None` on a file system without locks. Other processes cannot lock the directory there either, so they
    /// do not remove it.
    _lock: Option<Flock<OwnedFd>>,
}

impl ContextPlace {
    /// Creates it where only this user can enter it and programs can be executed, because the client is a
    /// program in it.
    pub(crate) fn make() -> Result<Self, FluersError> {
        let places = Self::usual().into_iter().chain(["/tmp".into(), env::temp_dir(), "/var/tmp".into()]);
        let mut refused = None;
        for place in places.filter(|place| place.is_absolute()) {
            match Self::make_in(&place) {
                Ok(made) => return Ok(made),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound).into()))
    }

    /// The usual runtime directory, created if necessary. A sandbox hides it, even inside a granted
    /// directory, if it exists when the sandbox starts. So call this before a sandbox starts.
    pub(crate) fn usual() -> Option<PathBuf> {
        let made = make_runtime_directory();
        made.inspect_err(|error| tracing::debug!(%error, "no runtime directory")).ok()
    }

    fn make_in(place: &Path) -> Result<Self, FluersError> {
        let failed = |error: Errno| {
            io::Error::new(io::Error::from(error).kind(), format!("{}: {}", place.display(), error.desc()))
        };
        if statvfs(place).map_err(failed)?.flags().contains(FsFlags::ST_NOEXEC) {
            let reason = format!("{}: programs cannot be executed there", place.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason).into());
        }
        let template = place.join(format!("{PREFIX}XXXXXX"));
        if template.as_os_str().len() > LONGEST {
            let reason = format!("{}: the path is too long for a socket", place.display());
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason).into());
        }
        let path = mkdtemp(&template).map_err(failed)?;
        let made = Self { _lock: lock(&path), path, sockets: AtomicU64::new(0) };
        // Checks that no other user can replace the directory.
        check_directory(&made.path)?;
        sweep(place);
        Ok(made)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A new name for a socket in it.
    pub(crate) fn next(&self) -> String {
        self.sockets.fetch_add(1, Relaxed).to_string()
    }
}

impl Drop for ContextPlace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the directory of sockets");
        }
    }
}

/// Locks a directory, unless another process holds the lock.
fn lock(path: &Path) -> Option<Flock<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(path, flags, Mode::empty()).ok()?;
    Flock::lock(opened, FlockArg::LockExclusiveNonblock).ok()
}

/// Removes directories that killed processes of this user have left.
fn sweep(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let is_left = entry.metadata().is_ok_and(|meta| {
            let is_old = meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG));
            meta.is_dir() && meta.uid() == geteuid().as_raw() && is_old
        });
        if let Some(_lock) = is_left.then(|| lock(&entry.path())).flatten() {
            let removed = fs::remove_dir_all(entry.path());
            tracing::debug!(path = %entry.path().display(), ?removed, "removed the directory of a killed process");
        }
    }
}
