//! The runtime directory, which holds what sessions show to other processes, and which no other user can
//! enter. Checks apply to the opened descriptor, so nothing can be exchanged between check and use. And the
//! names of sessions, which are names of files there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{env, fmt, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::geteuid;

use crate::caller::runtime_directory;
use crate::report::error::listen::ListenError;
use crate::sys;

/// The longest path of a socket, in bytes: `sun_path` without its NUL.
const LONGEST_PATH: usize = 107;

const AS_PATH: OFlag = sys::HELD.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// An opened and checked runtime directory.
#[derive(Debug)]
pub(crate) struct Directory {
    opened: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// The default directory: `$XDG_RUNTIME_DIR/kennel`, else `/tmp/kennel-UID`.
    pub(crate) fn default_path() -> PathBuf {
        runtime_directory(env::var_os("XDG_RUNTIME_DIR").as_deref(), geteuid().as_raw())
    }

    /// Opens the directory, and makes it if it does not exist.
    pub(crate) fn make(path: &Path) -> Result<Self, ListenError> {
        match Self::open_in(path, true)? {
            Some(directory) => Ok(directory),
            None => Err(ListenError::io("make runtime directory", path)(io::ErrorKind::NotFound.into())),
        }
    }

    /// Opens the directory; `None` if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, ListenError> {
        Self::open_in(path, false)
    }

    fn open_in(path: &Path, make: bool) -> Result<Option<Self>, ListenError> {
        let absolute = std::path::absolute(path).map_err(ListenError::io("find runtime directory", path))?;
        let (Some(parent), Some(leaf)) = (absolute.parent(), absolute.file_name()) else {
            return Err(refused(path, "has no parent directory", "name another directory"));
        };
        let above = match open(parent, AS_PATH, Mode::empty()) {
            Err(Errno::ENOENT) if !make => return Ok(None),
            above => above.map_err(|errno| ListenError::io("open directory", parent)(errno.into()))?,
        };
        check_above(&above, parent)?;
        let Some(opened) = open_leaf(&above, leaf, &absolute, make)? else { return Ok(None) };
        let directory = Self { opened, path: absolute };
        directory.check()?;
        Ok(Some(directory))
    }

    /// Checks that no other user can write or list the directory.
    fn check(&self) -> Result<(), ListenError> {
        let stat = stat(&self.opened, &self.path)?;
        if stat.st_uid != geteuid().as_raw() {
            let reason = format!("belongs to user {}, not to you", stat.st_uid);
            return Err(refused(&self.path, reason, ELSEWHERE));
        }
        if stat.st_mode & 0o077 != 0 {
            let reason = format!("is open to others (mode {:o})", stat.st_mode & 0o7777);
            let remedy = "check its contents, then remove it or close it to others with chmod 700";
            return Err(refused(&self.path, reason, remedy));
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a session's socket, valid for other processes.
    pub(crate) fn socket(&self, name: &SessionName) -> Result<PathBuf, ListenError> {
        let path = self.path.join(name.socket());
        if path.as_os_str().len() > LONGEST_PATH {
            let reason = format!("{} is longer than a socket's path can be", path.display());
            return Err(refused(
                &self.path,
                reason,
                "let XDG_RUNTIME_DIR name a directory with a shorter path",
            ));
        }
        Ok(path)
    }

    /// A path of a file in the opened directory, valid in this process even if the directory is renamed.
    pub(crate) fn own_path(&self, file: impl AsRef<Path>) -> PathBuf {
        sys::own_path(&self.opened).join(file)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }
}

/// The remedy for a directory that belongs to another user.
const ELSEWHERE: &str = "let XDG_RUNTIME_DIR name a directory of your own, such as /run/user/UID";

/// Checks the parent directory: a user who can write there can replace the runtime directory.
fn check_above(above: &OwnedFd, path: &Path) -> Result<(), ListenError> {
    let stat = stat(above, path)?;
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        let reason = format!("belongs to user {}, neither to you nor to root", stat.st_uid);
        return Err(refused(path, reason, ELSEWHERE));
    }
    let sticky = stat.st_mode & libc::S_ISVTX != 0;
    // The bits of the group are also the mask of an access list, so they cover all whom that lets write.
    if stat.st_mode & 0o022 != 0 && !sticky {
        let reason = format!("is writable by others (mode {:o})", stat.st_mode & 0o7777);
        return Err(refused(path, reason, "let XDG_RUNTIME_DIR name a directory that only you can write to"));
    }
    Ok(())
}

/// Opens the directory itself and follows no symbolic link.
fn open_leaf(above: &OwnedFd, leaf: &OsStr, path: &Path, make: bool) -> Result<Option<OwnedFd>, ListenError> {
    let made = match make.then(|| mkdirat(above, leaf, Mode::S_IRWXU)) {
        Some(Err(errno)) if errno != Errno::EEXIST => {
            return Err(ListenError::io("make runtime directory", path)(errno.into()));
        }
        made => made == Some(Ok(())),
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(above, leaf, flags, Mode::empty()) {
        Ok(opened) => {
            // The umask may have removed permissions.
            if made {
                let changed = fchmod(&opened, Mode::S_IRWXU);
                changed.map_err(|errno| ListenError::io("open runtime directory", path)(errno.into()))?;
            }
            Ok(Some(opened))
        }
        Err(Errno::ENOENT) if !make => Ok(None),
        Err(Errno::ELOOP | Errno::ENOTDIR) => Err(refused(
            path,
            "is not a directory, or is a link to one",
            "remove it: Kennel makes the directory",
        )),
        Err(errno) => Err(ListenError::io("open runtime directory", path)(errno.into())),
    }
}

fn stat(of: &OwnedFd, path: &Path) -> Result<FileStat, ListenError> {
    fstat(of).map_err(|errno| ListenError::io("look at", path)(errno.into()))
}

fn refused(path: &Path, reason: impl Into<String>, remedy: &'static str) -> ListenError {
    ListenError::Directory { path: path.to_owned(), reason: reason.into(), remedy: remedy.into() }
}

// Session names. They become file names, so their characters are restricted.

/// The longest name, in bytes.
const LONGEST: usize = 64;

/// A checked session name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionName(String);

impl SessionName {
    /// # Errors
    /// The name does not match `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
    pub(crate) fn new(name: &str) -> Result<Self, ListenError> {
        let refused = |reason| {
            let shown = name.chars().take(80).collect();
            Err(ListenError::Name { name: shown, reason })
        };
        match name.as_bytes() {
            [] => refused("is empty"),
            bytes if bytes.len() > LONGEST => refused("is longer than 64 characters"),
            [first, ..] if !first.is_ascii_alphanumeric() => refused("does not begin with a letter or digit"),
            bytes if !bytes.iter().all(|&byte| is_allowed(byte)) => {
                refused("has a character other than letters, digits, _, . and -")
            }
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// The session name of a socket file.
    pub(crate) fn from_socket(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".sock")?).ok()
    }

    /// The session name of a lock file.
    pub(crate) fn from_lock(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".lock")?).ok()
    }

    /// The file name of its socket.
    pub(crate) fn socket(&self) -> String {
        format!("{}.sock", self.0)
    }

    /// The session name of a record, which a session without a server has.
    #[cfg(any(target_os = "macos", test))]
    pub(crate) fn from_record(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".json")?).ok()
    }

    /// The file name of its record.
    #[cfg(any(target_os = "macos", test))]
    pub(crate) fn record(&self) -> String {
        format!("{}.json", self.0)
    }

    /// The file name of its lock.
    pub(crate) fn lock(&self) -> String {
        format!("{}.lock", self.0)
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_accepted() {
        let longest = "x".repeat(64);
        for name in ["a", "a1", "0", "A-b_c.d", "a..b", "a.sock", longest.as_str()] {
            assert_eq!(SessionName::new(name).expect(name).to_string(), name);
        }
    }

    #[test]
    fn a_name_that_could_leave_the_directory_is_refused() {
        let long = "x".repeat(65);
        for name in
            ["", ".", "..", "../x", "a/b", "/a", ".a", "-a", "_a", "a b", "a\0", "a\n", "ä", "a\\", &long]
        {
            let error = SessionName::new(name).expect_err(name);
            assert!(error.remedy().is_some(), "{error}");
        }
    }

    #[test]
    fn the_name_of_a_socket_gives_its_session() {
        assert_eq!(SessionName::from_socket("a.b.sock").expect("a socket").to_string(), "a.b");
        for file in ["a", "a.lock", ".sock", "kennel-exec", "..sock"] {
            assert_eq!(SessionName::from_socket(file), None, "{file}");
        }
    }
}
