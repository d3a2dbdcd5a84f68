//! Kennel's own directories with kept changes of caches: `$XDG_CACHE_HOME/kennel/caches`, one for each
//! directory of the host that a layer is put over. No command ever sees them; it sees the layers.
//!
//! This is the only part of the view that creates something.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

use crate::caller::Caller;
use crate::caller::toolchains::CACHE_BASE;
use crate::caller::writers::another_writer;
use crate::sys::dirfd::{DIRECTORY, open_without_links};
use crate::sys::file_system::FileSystem;
use crate::sys::own_path;
use crate::view::paths::source::BindSource;

/// The subdirectories of a directory of changes: overlayfs' upperdir and workdir.
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

/// Permission bits of everyone but the owner. Other users must not read or write changes.
pub(crate) const OTHERS: u32 = 0o077;

/// One of these directories, locked: only one layer may use it at a time.
#[derive(Clone, Debug)]
pub(crate) struct CacheStore {
    pub(crate) source: BindSource,
    upper: Arc<OwnedFd>,
    /// Dropped with the plan of the last sandbox that uses it.
    _lock: Arc<Flock<File>>,
}

/// `$XDG_CACHE_HOME/kennel`: kept changes, and compiled code of connectors. No command sees it.
pub(crate) fn own_directory(caller: &Caller) -> PathBuf {
    own_directory_in(caller.path_in(CACHE_BASE), &caller.home)
}

/// The same for a caller with this base of caches and this home.
pub(crate) fn own_directory_in(base: Option<PathBuf>, home: &Path) -> PathBuf {
    base.unwrap_or_else(|| home.join(".cache")).join("kennel")
}

/// The directory of all kept changes.
pub(crate) fn directory(caller: &Caller) -> PathBuf {
    own_directory(caller).join("caches")
}

impl CacheStore {
    /// Opens the directory with the changes of `lower`, or creates it.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if another sandbox uses it. It cannot be created, or others may write there. Commands
    /// could replace its directory, as `is_writable` says.
    pub(crate) fn open(
        caller: &Caller,
        lower: &Path,
        mode: u32,
        is_writable: impl Fn(&Path) -> bool,
    ) -> io::Result<Self> {
        let own = own_directory(caller);
        let base = base_of(own.parent().unwrap_or(&own))?;
        if is_writable(&base) {
            let error = "commands could replace their directory: it is in a writable grant";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
        let name = name_of(lower);
        let at = open_closed(caller, &base, [OsStr::new("kennel"), OsStr::new("caches"), &name])?;
        let of_directory =
            |error: io::Error| io::Error::new(error.kind(), format!("their directory {error}"));
        FileSystem::of(&at)?.check_for_changes().map_err(of_directory)?;
        let lock = lock(at.try_clone()?)?;
        let upper = make(&at, OsStr::new(UPPER), Mode::from_bits_truncate(mode))?;
        make(&at, OsStr::new(WORK), Mode::S_IRWXU)?;
        let metadata = lock.metadata()?;
        let path = base.join("kennel/caches").join(&name);
        let source = BindSource::of(path, &metadata);
        Ok(Self { source, upper: Arc::new(upper), _lock: Arc::new(lock) })
    }

    /// Creates the directory `below`, a path without links, in the changes. The layer then has it too.
    ///
    /// # Errors
    /// Something else is there.
    pub(crate) fn make_room(&self, below: &Path) -> io::Result<()> {
        let mut at = self.upper.try_clone()?;
        for part in below.components() {
            let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            at = make(&at, part, Mode::from_bits_truncate(0o755))?;
        }
        Ok(())
    }
}

/// The directory for files that programs keep for the user, such as `~/.cache`, without links in its path.
/// Creates it if it is missing.
pub(crate) fn base_of(path: &Path) -> io::Result<PathBuf> {
    if std::fs::symlink_metadata(path).is_err() {
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(path)?;
    }
    std::fs::canonicalize(path)
}

/// Opens directories of Kennel's own, each in the one before, and creates those that are missing. No link is
/// followed.
///
/// # Errors
/// Another user owns one of them or may write there, or may look into what Kennel keeps.
pub(crate) fn open_closed(caller: &Caller, base: &Path, parts: [&OsStr; 3]) -> io::Result<OwnedFd> {
    let mut at = open_without_links(base, OFlag::O_DIRECTORY)?;
    for part in parts {
        at = make(&at, part, Mode::S_IRWXU)?;
        let metadata = File::from(at.try_clone()?).metadata()?;
        // Other programs may read beside the changes, and only there.
        let is_open = if part == "kennel" {
            another_writer(&own_path(&at), &metadata, &[caller.uid]).is_some()
        } else {
            metadata.mode() & OTHERS != 0
        };
        if metadata.uid() != caller.uid || is_open {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not yours alone"));
        }
    }
    Ok(at)
}

/// Locks the directory until the lock is dropped.
///
/// # Errors
/// `EWOULDBLOCK` if another process has locked it.
pub(crate) fn lock(directory: OwnedFd) -> io::Result<Flock<File>> {
    Flock::lock(File::from(directory), FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Opens the directory `name` in `at`, or creates it. No link is followed.
fn make(at: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    match mkdirat(at, name, mode) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(openat(at, name, DIRECTORY, Mode::empty())?)
}

/// The name of the directory for changes of `lower`: its path, with `/` and `%` escaped.
pub(crate) fn name_of(lower: &Path) -> OsString {
    let escaped = lower.as_os_str().as_bytes().iter().flat_map(|byte| match byte {
        b'/' => b"%2F".to_vec(),
        b'%' => b"%25".to_vec(),
        byte => vec![*byte],
    });
    OsString::from_vec(escaped.collect())
}

/// The path that [`name_of`] has escaped; `None` if it did not.
pub(crate) fn path_of(name: &OsStr) -> Option<PathBuf> {
    let text = name.as_bytes();
    let mut path = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let (byte, length) = match text.get(at..at + 3) {
            Some(b"%2F") => (b'/', 3),
            Some(b"%25") => (b'%', 3),
            _ => (*byte, 1),
        };
        path.push(byte);
        at += length;
    }
    let path = PathBuf::from(OsString::from_vec(path));
    (path.is_absolute() && name_of(&path) == name).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_correspond() {
        for (path, name) in [("/home/me", "%2Fhome%2Fme"), ("/a%2Fb", "%2Fa%252Fb"), ("/", "%2F")] {
            assert_eq!(name_of(Path::new(path)), name);
            assert_eq!(path_of(OsStr::new(name)).as_deref(), Some(Path::new(path)));
        }
        for name in ["home", "", "%2Fa%", "lost+found", "/a"] {
            assert_eq!(path_of(OsStr::new(name)), None, "{name}");
        }
    }
}
