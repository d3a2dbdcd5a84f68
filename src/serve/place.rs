//! A session's place in the runtime directory: its lock and its socket. Whoever holds the lock is the session.

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

use crate::report::listen_error::ListenError;
use crate::serve::directory::{Directory, Name};
use crate::sys;
use crate::sys::inode::Identity;
use crate::sys::packet::{address, packet_socket};
use crate::sys::{dirfd, locked};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// The place of a session, from the moment that it is taken.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    directory: Directory,
    name: Name,
    path: PathBuf,
    /// `None` once it was given back.
    held: Mutex<Option<Held>>,
}

/// What of a place is its session's.
#[derive(Debug)]
struct Held {
    lock: Lock,
    /// The file of the socket, once there is one.
    socket: Option<Identity>,
}

impl SocketPlace {
    /// Takes a name.
    pub(crate) fn take(directory: Directory, name: Name) -> Result<Self, ListenError> {
        let path = directory.socket(&name)?;
        let lock = Lock::take(&directory, &name)?;
        Ok(Self { directory, name, path, held: Mutex::new(Some(Held { lock, socket: None })) })
    }

    /// Binds the socket: at first, and again where somebody has removed it. `None` where it is there, or the place was
    /// given back. What a session left behind that is gone is removed.
    ///
    /// # Errors
    /// `Running` where the name has become another session's; `NotFound` where the directory is gone.
    pub(crate) fn open(&self) -> Result<Option<AsyncFd<OwnedFd>>, ListenError> {
        let mut held = locked(&self.held);
        let Some(held) = held.as_mut().filter(|held| !self.has(&self.name.socket(), held.socket)) else {
            return Ok(None);
        };
        // Without its file it keeps nobody else from the name.
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

    /// Removes the socket of a session that is gone. One that answers although its lock is free is left alone.
    fn clean(&self) -> Result<(), ListenError> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK).map_err(|error| self.not_listening(error))?;
        match self.knock(&socket).err().map(|error| error.raw_os_error()) {
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
    fn knock(&self, socket: &OwnedFd) -> io::Result<()> {
        Ok(connect(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?)
    }

    fn bind(&self) -> io::Result<OwnedFd> {
        let socket = packet_socket(SockFlag::SOCK_NONBLOCK)?;
        // The file gets the mode of the socket, less the umask, which is not ours to change.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        bind(socket.as_raw_fd(), &address(&self.directory.own_path(self.name.socket()))?)?;
        Ok(socket)
    }

    /// Lets clients connect to what was bound; with the file that it has, unless that was removed at once.
    fn listen(&self, socket: OwnedFd) -> io::Result<(AsyncFd<OwnedFd>, Option<Identity>)> {
        listen(&socket, Backlog::new(BACKLOG)?)?;
        let there = dirfd::stat(&self.directory, OsStr::new(&self.name.socket()))?;
        Ok((sys::watched(socket, Interest::READABLE)?, there.map(|there| Identity::of(&there))))
    }

    fn not_listening(&self, error: io::Error) -> ListenError {
        ListenError::io("listen on", &self.path)(error)
    }

    /// Whether a file is this very one.
    fn has(&self, file: &str, one: Option<Identity>) -> bool {
        let there = dirfd::stat(&self.directory, OsStr::new(file)).ok().flatten();
        one.is_some() && there.map(|there| Identity::of(&there)) == one
    }

    /// Gives the name back. Calling it again has no effect.
    pub(crate) fn leave(&self) {
        let mut held = locked(&self.held);
        let Some(Held { lock, socket }) = held.take() else { return };
        // What is another session's by now stays.
        for (file, ours) in [(self.name.socket(), socket), (self.name.lock(), lock.identity())] {
            if self.has(&file, ours)
                && let Err(error) = self.unlink(&file)
            {
                tracing::debug!(%file, %error, "not removed");
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
        let taken = Directory::make(directory).and_then(|directory| SocketPlace::take(directory, name));
        let cleaned = taken.and_then(|place| place.clean());
        if let Err(error) = cleaned {
            tracing::debug!(?file, %error, "not swept");
        }
    }
    Ok(())
}

// The lock of a session's name. Whoever holds it is the session; the kernel lets go of it however that ends. Others can
// see that it is held without taking it, which could keep a session from starting.

/// A name's lock, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Lock {
    /// Locks the name.
    pub(crate) fn take(directory: &Directory, name: &Name) -> Result<Self, ListenError> {
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
    pub(crate) fn has_name(&self, directory: &Directory, name: &Name) -> nix::Result<bool> {
        let there = dirfd::stat(directory, OsStr::new(&name.lock()))?;
        Ok(there.is_some() && there.map(|there| Identity::of(&there)) == self.identity())
    }

    /// The file that is locked.
    pub(crate) fn identity(&self) -> Option<Identity> {
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
