//! A session's files in the runtime directory: its lock and its socket. The process that holds the lock owns
//! the name.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sys::socket::{Backlog, SockFlag, bind, connect, listen};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, unlinkat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::caller::runtime::{Directory, SessionName};
use crate::report::error::listen::ListenError;
use crate::sys;
use crate::sys::inode::Identity;
use crate::sys::packet::{address, packet_socket};
use crate::sys::{dirfd, locked};

/// The most connections that wait to be accepted (the backlog of listen(2)).
const BACKLOG: i32 = 512;

/// A session's name with its lock and socket. Dropping this gives the name back.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    directory: Directory,
    name: SessionName,
    path: PathBuf,
    /// `None` after [`leave`](Self::leave).
    held: Mutex<Option<Held>>,
}

/// The files that this session owns.
#[derive(Debug)]
struct Held {
    lock: Lock,
    /// The identity of the socket file, once it exists.
    socket: Option<Identity>,
}

impl SocketPlace {
    /// Locks a name.
    pub(crate) fn take(directory: Directory, name: SessionName) -> Result<Self, ListenError> {
        let path = directory.socket(&name)?;
        let lock = Lock::take(&directory, &name)?;
        Ok(Self { directory, name, path, held: Mutex::new(Some(Held { lock, socket: None })) })
    }

    /// Binds the socket, for the first time or after it was removed. Returns `None` if it exists, or after
    /// `leave`. It removes the stale socket of a session that has ended.
    ///
    /// # Errors
    /// `Running` if another session has the name now; `NotFound` if the directory was removed.
    pub(crate) fn open(&self) -> Result<Option<AsyncFd<OwnedFd>>, ListenError> {
        let mut held = locked(&self.held);
        let Some(held) = held.as_mut().filter(|held| !self.has(&self.name.socket(), held.socket)) else {
            return Ok(None);
        };
        // A lock on a deleted file does not stop others from taking the name.
        if held.lock.has_name(&self.directory, &self.name) == Ok(false) {
            held.lock = Lock::take(&self.directory, &self.name)?;
        }
        self.clean()?;
        let bound = self.bind().map_err(|error| self.not_listening(error))?;
        let (listener, socket) = self.listen(bound).map_err(|error| {
            let _ = self.unlink(&self.name.socket());
            self.not_listening(error)
        })?;
        held.socket = socket;
        Ok(Some(listener))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Removes the stale socket of a session that has ended. A socket that answers stays, even if its lock is
    /// free.
    fn clean(&self) -> Result<(), ListenError> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK).map_err(|error| self.not_listening(error))?;
        match self.try_connect(&socket).err().map(|error| error.raw_os_error()) {
            // A process listens; on EAGAIN its backlog is full.
            None | Some(Some(libc::EAGAIN)) => Err(ListenError::Running { name: self.name.to_string() }),
            Some(Some(libc::ENOENT)) => Ok(()),
            Some(_) => {
                let failed = ListenError::io("remove stale socket", &self.path);
                self.unlink(&self.name.socket()).map_err(|errno| failed(errno.into()))
            }
        }
    }

    /// Connects to see whether a process listens.
    fn try_connect(&self, socket: &OwnedFd) -> io::Result<()> {
        Ok(connect(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?)
    }

    fn bind(&self) -> io::Result<OwnedFd> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK)?;
        // The file gets the socket's mode minus the umask; the umask belongs to the whole process, so do not
        // change it.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?;
        Ok(socket)
    }

    /// Starts listening. Returns the listener and the identity of its file, unless the file was removed at
    /// once.
    fn listen(&self, socket: OwnedFd) -> io::Result<(AsyncFd<OwnedFd>, Option<Identity>)> {
        listen(&socket, Backlog::new(BACKLOG)?)?;
        let there = dirfd::stat(&self.directory, OsStr::new(&self.name.socket()))?;
        Ok((sys::watched(socket, Interest::READABLE)?, there.map(|there| Identity::of(&there))))
    }

    fn not_listening(&self, error: io::Error) -> ListenError {
        ListenError::io("listen on", &self.path)(error)
    }

    /// Whether `file` has this identity.
    fn has(&self, file: &str, one: Option<Identity>) -> bool {
        let there = dirfd::stat(&self.directory, OsStr::new(file)).ok().flatten();
        one.is_some() && there.map(|there| Identity::of(&there)) == one
    }

    /// Gives the name back. Calling it again has no effect.
    pub(crate) fn leave(&self) {
        let mut held = locked(&self.held);
        let Some(Held { lock, socket }) = held.take() else { return };
        // A file that belongs to another session by now stays.
        for (file, ours) in [(self.name.socket(), socket), (self.name.lock(), lock.identity())] {
            if self.has(&file, ours)
                && let Err(error) = self.unlink(&file)
            {
                tracing::debug!(%file, %error, "could not remove a session's file");
            }
        }
    }

    fn unlink(&self, file: &str) -> Result<(), Errno> {
        match unlinkat(&self.directory, file, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) => Ok(()),
            unlinked => unlinked,
        }
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Removes what killed sessions left in `directory`.
///
/// # Errors
/// The directory belongs to another user or cannot be read. A name that cannot be cleaned is skipped.
pub(crate) fn sweep(directory: &Path) -> Result<(), ListenError> {
    let unread = || ListenError::io("read runtime directory", directory);
    let Some(opened) = Directory::open(directory)? else { return Ok(()) };
    // List through the descriptor: it is the directory that was checked.
    for entry in fs::read_dir(opened.own_path("")).map_err(unread())? {
        let file = entry.map_err(unread())?.file_name();
        let Some(name) = file.to_str().and_then(SessionName::from_lock) else { continue };
        // Taking the lock gives the right to remove the files; dropping the place then gives the name back.
        let taken = Directory::make(directory).and_then(|directory| SocketPlace::take(directory, name));
        let cleaned = taken.and_then(|place| place.clean());
        if let Err(error) = cleaned {
            tracing::debug!(?file, %error, "could not clean up after a session");
        }
    }
    Ok(())
}

// The lock of a session's name. The process that holds it owns the name; the kernel releases it however the
// process ends. Others can test it without taking it, which could stop a session from starting.

/// The lock of a name, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Locks the name.
    pub(crate) fn take(directory: &Directory, name: &SessionName) -> Result<Self, ListenError> {
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
            // The previous session may have removed the file after we opened it and before we locked it. Then
            // nobody else sees this lock: try again.
            if lock.has_name(directory, name).map_err(failed)? {
                return Ok(lock);
            }
        }
    }

    /// Whether the name still refers to this lock's file.
    pub(crate) fn has_name(&self, directory: &Directory, name: &SessionName) -> nix::Result<bool> {
        let there = dirfd::stat(directory, OsStr::new(&name.lock()))?;
        Ok(there.is_some() && there.map(|there| Identity::of(&there)) == self.identity())
    }

    /// The identity of the locked file.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Identity::of_held(self.0.as_fd()).ok()
    }
}

/// Whether a process holds the lock of a name.
pub(crate) fn is_held(directory: &Directory, name: &SessionName) -> bool {
    let Ok(file) = open(directory, name, OFlag::O_RDONLY) else { return false };
    let mut lock = exclusive();
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
}

fn open(directory: &Directory, name: &SessionName, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    openat(directory, name.lock().as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// An exclusive lock of the whole file. It belongs to the open file description, not to the process:
/// fcntl(2).
#[expect(clippy::cast_possible_truncation, reason = "both are one-digit constants")]
fn exclusive() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serve::client::Client;

    /// A client waits for a session that has bound its socket anew, and listens a moment later.
    #[test]
    fn a_client_waits_for_a_socket_on_which_nobody_listens_yet() {
        let dir = tempfile::tempdir().expect("works");
        let at = dir.path().join("own");
        let directory = || Directory::make(&at).expect("works");
        let name = || SessionName::new("a").expect("works");
        let place = SocketPlace::take(directory(), name()).expect("works");
        let bound = place.bind().expect("works");
        let client = std::thread::spawn({
            let path = at.clone();
            move || Client::connect_in(path, "a").map(drop)
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!client.is_finished());
        listen(&bound, Backlog::new(1).expect("works")).expect("works");
        client.join().expect("works").expect("works");
        // Without its lock it is the socket of a session that has ended.
        drop(bound);
        place.held.lock().expect("works").take();
        assert!(
            Client::connect_in(&at, "a")
                .expect_err("refused")
                .to_string()
                .contains("no session of that name is running")
        );
    }
}
