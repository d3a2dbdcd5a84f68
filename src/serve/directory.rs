//! The runtime directory: where sockets lie, and nobody else can write. What is checked is what is open, so that nothing
//! can be exchanged between the check and the use.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{env, fmt, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, mkdirat};
use nix::unistd::geteuid;

use crate::host::caller::runtime_directory;
use crate::report::listen_error::ListenError;
use crate::sys::dirfd;

/// Longest path of a socket, in bytes: `sun_path` without its NUL.
const LONGEST_PATH: usize = 107;

const AS_PATH: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// A runtime directory that was checked.
#[derive(Debug)]
pub(crate) struct Directory {
    opened: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Where sessions are found when nobody says otherwise: `$XDG_RUNTIME_DIR/kennel`, else `/tmp/kennel-UID`.
    pub(crate) fn usual() -> PathBuf {
        runtime_directory(env::var_os("XDG_RUNTIME_DIR").as_deref(), geteuid().as_raw())
    }

    /// Opens the directory, and makes it where it is not there.
    pub(crate) fn make(path: &Path) -> Result<Self, ListenError> {
        match Self::open_in(path, true)? {
            Some(directory) => Ok(directory),
            None => Err(ListenError::io("make runtime directory", path)(io::ErrorKind::NotFound.into())),
        }
    }

    /// Opens the directory; `None` where it is not there.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, ListenError> {
        Self::open_in(path, false)
    }

    fn open_in(path: &Path, make: bool) -> Result<Option<Self>, ListenError> {
        let absolute = std::path::absolute(path).map_err(ListenError::io("find runtime directory", path))?;
        let (Some(parent), Some(leaf)) = (absolute.parent(), absolute.file_name()) else {
            return Err(refused(path, "has no directory above it", "name another directory"));
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

    /// Nobody else may write here, or read who is here.
    fn check(&self) -> Result<(), ListenError> {
        let stat = stat(&self.opened, &self.path)?;
        if stat.st_uid != geteuid().as_raw() {
            let reason = format!("belongs to user {}, not to you", stat.st_uid);
            return Err(refused(&self.path, reason, ELSEWHERE));
        }
        if stat.st_mode & 0o077 != 0 {
            let reason = format!("is open to others (mode {:o})", stat.st_mode & 0o7777);
            let remedy = "look at what is in it, then remove it or make it yours alone with chmod 700";
            return Err(refused(&self.path, reason, remedy));
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a session's socket, for others to use.
    pub(crate) fn socket(&self, name: &Name) -> Result<PathBuf, ListenError> {
        let path = self.path.join(name.socket());
        if path.as_os_str().len() > LONGEST_PATH {
            let reason = format!("{} would be longer than the path of a socket can be", path.display());
            return Err(refused(
                &self.path,
                reason,
                "let XDG_RUNTIME_DIR name a directory with a shorter path",
            ));
        }
        Ok(path)
    }

    /// A path of something in this very directory, whatever happens to its name meanwhile. Of this process only.
    pub(crate) fn own_path(&self, file: impl AsRef<Path>) -> PathBuf {
        dirfd::own_path(&self.opened).join(file)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }
}

/// What to do about a directory that is somebody else's.
const ELSEWHERE: &str = "let XDG_RUNTIME_DIR name a directory of your own, such as /run/user/UID";

/// Who can write above it can put another directory in its place.
fn check_above(above: &OwnedFd, path: &Path) -> Result<(), ListenError> {
    let stat = stat(above, path)?;
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        let reason = format!("belongs to user {}, neither to you nor to root", stat.st_uid);
        return Err(refused(path, reason, ELSEWHERE));
    }
    let sticky = stat.st_mode & libc::S_ISVTX != 0;
    if stat.st_mode & 0o022 != 0 && !sticky {
        let reason = format!("is writable by others (mode {:o})", stat.st_mode & 0o7777);
        return Err(refused(path, reason, "let XDG_RUNTIME_DIR name a directory that only you can write to"));
    }
    Ok(())
}

/// Opens the directory itself, never what a link of its name leads to.
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
            // The umask may have taken rights away from us.
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
    ListenError::Directory { path: path.to_owned(), reason: reason.into(), remedy }
}

// Names of sessions: they become names of files, so nothing else may be spelled with them.

/// Longest name, in bytes.
const LONGEST: usize = 64;

/// A name that was checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(String);

impl Name {
    /// # Errors
    /// Everything that is not `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
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
                refused("has a character that no name has")
            }
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// The session whose socket a file is by its name.
    pub(crate) fn of_socket(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".sock")?).ok()
    }

    /// The session whose lock a file is by its name.
    pub(crate) fn of_lock(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".lock")?).ok()
    }

    /// The file of its socket.
    pub(crate) fn socket(&self) -> String {
        format!("{}.sock", self.0)
    }

    /// The file of its lock.
    pub(crate) fn lock(&self) -> String {
        format!("{}.lock", self.0)
    }
}

impl fmt::Display for Name {
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
    fn plain_names_are_names() {
        let longest = "x".repeat(64);
        for name in ["a", "a1", "0", "A-b_c.d", "a..b", "a.sock", longest.as_str()] {
            assert_eq!(Name::new(name).expect(name).to_string(), name);
        }
    }

    #[test]
    fn everything_that_could_lead_elsewhere_is_refused() {
        let long = "x".repeat(65);
        for name in
            ["", ".", "..", "../x", "a/b", "/a", ".a", "-a", "_a", "a b", "a\0", "a\n", "ä", "a\\", &long]
        {
            let error = Name::new(name).expect_err(name);
            assert!(error.remedy().is_some(), "{error}");
        }
    }

    #[test]
    fn sockets_are_known_by_their_names() {
        assert_eq!(Name::of_socket("a.b.sock").expect("a socket").to_string(), "a.b");
        for file in ["a", "a.lock", ".sock", "kennel-exec", "..sock"] {
            assert_eq!(Name::of_socket(file), None, "{file}");
        }
    }
}
