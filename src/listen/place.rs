//! A session's place in the runtime directory: its lock and its socket. Whoever holds the lock is the session.

use std::{
    ffi::OsStr,
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Mutex,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag, openat},
    sys::{
        socket::{Backlog, SockFlag, bind, connect, listen},
        stat::{Mode, fchmod},
    },
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{directory::Directory, error::ListenError, name::Name};
use crate::{
    below::{self, Identity},
    locked::locked,
    packet::{address, packet_socket},
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// The place of a session, from the moment that it is taken.
#[derive(Debug)]
pub(super) struct Place {
    directory: Directory,
    name: Name,
    path: PathBuf,
    /// Released last, after the socket has been removed.
    lock: Mutex<Option<Flock<OwnedFd>>>,
}

impl Place {
    /// Takes a name. What a session left behind that is gone is removed.
    pub(super) fn take(directory: Directory, name: Name) -> Result<(Self, OwnedFd), ListenError> {
        let path = directory.socket(&name)?;
        let lock = lock(&directory, &name)?;
        let place = Self { directory, name, path, lock: Mutex::new(Some(lock)) };
        place.clean()?;
        let listener = place.bind().map_err(ListenError::io("listen on", &place.path))?;
        Ok((place, listener))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Removes the socket of a session that is gone. One that answers although its lock is free is left alone.
    fn clean(&self) -> Result<(), ListenError> {
        match self.knock().err().map(|error| error.raw_os_error()) {
            // Somebody is there, with room for us or without.
            None | Some(Some(libc::EAGAIN)) => Err(ListenError::Running { name: self.name.to_string() }),
            Some(Some(libc::ENOENT)) => Ok(()),
            Some(_) => {
                let failed = ListenError::io("remove stale socket", &self.path);
                self.unlink(&self.name.socket()).map_err(|errno| failed(errno.into()))
            }
        }
    }

    /// Connects, to see whether anybody is there.
    fn knock(&self) -> std::io::Result<()> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK)?;
        connect(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?;
        Ok(())
    }

    fn bind(&self) -> std::io::Result<OwnedFd> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK)?;
        // The file gets the mode of the socket, less the umask, which is not ours to change.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(socket)
    }

    /// Gives the name back. Calling it again has no effect.
    pub(super) fn leave(&self) {
        let mut lock = locked(&self.lock);
        if let Some(lock) = lock.take() {
            for file in [self.name.socket(), self.name.lock()] {
                if let Err(error) = self.unlink(&file) {
                    tracing::debug!(%file, %error, "not removed");
                }
            }
            drop(lock);
        }
    }

    fn unlink(&self, file: &str) -> Result<(), Errno> {
        match unlinkat(&self.directory, file, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) => Ok(()),
            unlinked => unlinked,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Removes what sessions left behind in `directory` whose programs were killed.
///
/// # Errors
/// A directory that is not ours, or cannot be read. A place that cannot be cleaned is left for another time.
pub(crate) fn sweep(directory: &Path) -> Result<(), ListenError> {
    let unread = || ListenError::io("read runtime directory", directory);
    let Some(opened) = Directory::open(directory)? else { return Ok(()) };
    // By its descriptor: what is listed is what was checked.
    for entry in fs::read_dir(opened.own_path("")).map_err(unread())? {
        let file = entry.map_err(unread())?.file_name();
        let Some(name) = file.to_str().and_then(Name::of_lock) else { continue };
        // Whoever gets the lock removes what is there, and gives the name back when dropped.
        let cleaned = Directory::make(directory).and_then(|directory| Place::take(directory, name));
        if let Err(error) = cleaned {
            tracing::debug!(?file, %error, "not swept");
        }
    }
    Ok(())
}

/// Locks the name. The kernel lets go of the lock however the session ends.
fn lock(directory: &Directory, name: &Name) -> Result<Flock<OwnedFd>, ListenError> {
    let file = name.lock();
    let failed = |errno: Errno| ListenError::io("lock", directory.path().join(name.lock()))(errno.into());
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    loop {
        let opened =
            openat(directory, file.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
        let lock = match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => return Err(ListenError::Running { name: name.to_string() }),
            lock => lock.map_err(|(_, errno)| failed(errno))?,
        };
        // The session before may have removed the file between our opening and our locking it: then this lock is one
        // that nobody else will look at.
        let ours = Identity::of_held(lock.as_fd()).map_err(failed)?;
        let there = below::stat(directory, OsStr::new(&file)).map_err(failed)?;
        if there.is_some_and(|there| Identity::of(&there) == ours) {
            return Ok(lock);
        }
    }
}
