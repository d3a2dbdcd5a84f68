//! The lock of a session's name. Whoever holds it is the session; the kernel lets go of it however that ends. Others can
//! see that it is held without taking it, which could keep a session from starting.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl, openat},
    sys::stat::Mode,
};

use super::{directory::Directory, error::ListenError, name::Name};
use crate::below::{self, Identity};

/// A name's lock, held until this is dropped.
#[derive(Debug)]
pub(super) struct Lock(OwnedFd);

impl Lock {
    /// Locks the name.
    pub(super) fn take(directory: &Directory, name: &Name) -> Result<Self, ListenError> {
        let failed = |errno: Errno| ListenError::io("lock", directory.path().join(name.lock()))(errno.into());
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        loop {
            let lock = Self(open(directory, name, flags).map_err(failed)?);
            match fcntl(&lock.0, FcntlArg::F_OFD_SETLK(&exclusive())) {
                Err(Errno::EAGAIN | Errno::EACCES) => {
                    return Err(ListenError::Running { name: name.to_string() });
                }
                locked => locked.map_err(failed)?,
            };
            // The session before may have removed the file between our opening and our locking it: then this lock is
            // one that nobody else will look at.
            if lock.has_name(directory, name).map_err(failed)? {
                return Ok(lock);
            }
        }
    }

    /// Whether others who look at the name see this lock.
    pub(super) fn has_name(&self, directory: &Directory, name: &Name) -> nix::Result<bool> {
        let there = below::stat(directory, OsStr::new(&name.lock()))?;
        Ok(there.is_some() && there.map(|there| Identity::of(&there)) == self.identity())
    }

    /// The file that is locked.
    pub(super) fn identity(&self) -> Option<Identity> {
        Identity::of_held(self.0.as_fd()).ok()
    }
}

/// Whether somebody holds the lock of a name.
pub(crate) fn is_held(directory: &Directory, name: &Name) -> bool {
    let Ok(file) = open(directory, name, OFlag::O_RDONLY) else { return false };
    let mut lock = exclusive();
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
}

fn open(directory: &Directory, name: &Name, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    openat(directory, name.lock().as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// All of a file, for one alone. It is the open file that holds it, not the process: fcntl(2), open file description locks.
#[expect(clippy::cast_possible_truncation, reason = "both are numbers of one digit")]
fn exclusive() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
