//! A directory of our own for sockets and their client, gone when this is dropped.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use nix::{
    sys::statvfs::{FsFlags, statvfs},
    unistd::mkdtemp,
};

use super::error::FluersError;
use crate::listen::Directory;

const TEMPLATE: &str = "kennel-fluers-XXXXXX";

/// Longest path of it, in bytes: that of a socket in it must not be longer than 107.
const LONGEST: usize = 80;

#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    sockets: AtomicU64,
}

impl Place {
    /// Makes it where only this user can enter it and programs can be executed, for the client lies in it.
    pub(super) fn make() -> Result<Self, FluersError> {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = runtime.into_iter().chain(["/tmp".into(), env::temp_dir(), "/var/tmp".into()]);
        let mut refused = None;
        for place in places.filter(|place| place.is_absolute()) {
            match Self::make_in(&place) {
                Ok(made) => return Ok(made),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound).into()))
    }

    fn make_in(place: &Path) -> Result<Self, FluersError> {
        let failed = |error: nix::errno::Errno| {
            io::Error::new(io::Error::from(error).kind(), format!("{}: {}", place.display(), error.desc()))
        };
        if statvfs(place).map_err(failed)?.flags().contains(FsFlags::ST_NOEXEC) {
            let reason = format!("{}: programs cannot be executed there", place.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason).into());
        }
        let template = place.join(TEMPLATE);
        if template.as_os_str().len() > LONGEST {
            let reason = format!("{}: the path is too long for a socket's", place.display());
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason).into());
        }
        let made = Self { path: mkdtemp(&template).map_err(failed)?, sockets: AtomicU64::new(0) };
        // Whether anybody else could put another one in its place.
        Directory::open(&made.path).map_err(crate::Error::from)?;
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
