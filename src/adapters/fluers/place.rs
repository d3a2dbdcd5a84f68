//! A directory of our own for sockets and their client, gone when this is dropped. It is locked as long as it is used:
//! one whose lock is free belongs to a process that was killed, and is removed by the next one.

use std::{
    env, fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag, open},
    sys::{
        stat::Mode,
        statvfs::{FsFlags, statvfs},
    },
    unistd::{geteuid, mkdtemp},
};

use super::error::FluersError;
use crate::listen::Directory;

const PREFIX: &str = "kennel-fluers-";

/// What is younger may just not be locked yet.
const YOUNG: Duration = Duration::from_secs(60);

/// Longest path of it, in bytes: that of a socket in it must not be longer than 107.
const LONGEST: usize = 80;

#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    sockets: AtomicU64,
    /// Nothing where there are no locks: then nobody else takes it for one that was left.
    _lock: Option<Flock<OwnedFd>>,
}

impl Place {
    /// Makes it where only this user can enter it and programs can be executed, for the client lies in it.
    pub(super) fn make() -> Result<Self, FluersError> {
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

    /// What every sandbox covers that is granted what is around it, if it is there when that one starts: it is after this.
    pub(super) fn usual() -> Option<PathBuf> {
        let usual = Directory::usual();
        let made = Directory::make(&usual);
        made.inspect_err(|error| tracing::debug!(%error, "no runtime directory")).ok().map(|_| usual)
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
            let reason = format!("{}: the path is too long for a socket's", place.display());
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason).into());
        }
        let path = mkdtemp(&template).map_err(failed)?;
        let made = Self { _lock: lock(&path), path, sockets: AtomicU64::new(0) };
        // Whether anybody else could put another one in its place.
        Directory::open(&made.path).map_err(crate::Error::from)?;
        sweep(place);
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name that no socket in it has.
    pub(super) fn next(&self) -> String {
        self.sockets.fetch_add(1, Relaxed).to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the directory of sockets stays");
        }
    }
}

/// The lock of a directory, if nobody has it.
fn lock(path: &Path) -> Option<Flock<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(path, flags, Mode::empty()).ok()?;
    Flock::lock(opened, FlockArg::LockExclusiveNonblock).ok()
}

/// Removes what processes of this user have left that were killed.
fn sweep(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let is_left = entry.metadata().is_ok_and(|meta| {
            let is_old = meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG));
            meta.is_dir() && meta.uid() == geteuid().as_raw() && is_old
        });
        if let Some(_lock) = is_left.then(|| lock(&entry.path())).flatten() {
            let removed = fs::remove_dir_all(entry.path());
            tracing::debug!(path = %entry.path().display(), ?removed, "left by a process that was killed");
        }
    }
}
