//! Files of git in a repository of linked worktrees that is read-only inside:
//! [`around`](crate::protect::git::around).
//!
//! The supervisor makes, renames and removes them outside, by their exact names in a directory that it holds.
//! Whatever else a call names is left to the kernel, which checks it as always. So nothing depends on what
//! the caller writes to its memory meanwhile. No link is followed: inside, nobody can make one in that
//! directory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::launch::supervisor::answer::{Answer, errno, int, word};
use crate::launch::supervisor::caller::WaitingThread;
use crate::plan::seccomp::table::SystemCall;
use crate::protect::git::around::{FILES, RENAMES};
use crate::sys;
use crate::sys::dirfd;
use crate::sys::inode::{FileKind, Identity, kind};
use crate::view::View;
use crate::view::paths::source::BindSource;

/// What commands may do with these files.
#[derive(Debug)]
pub(crate) struct GitFiles {
    /// The repository.
    directory: OwnedFd,
    identity: Identity,
}

impl GitFiles {
    /// Those of a view, if it shows such a repository and covers none of them.
    pub(crate) fn of(view: &View) -> Option<Self> {
        let path = &view.common_repository.as_ref()?.path;
        let names = FILES.iter().copied().chain(RENAMES.iter().map(|(_, to)| *to));
        if names.map(|name| path.join(name)).any(|file| view.get(&file).is_some()) {
            return None;
        }
        let (directory, now) = BindSource::open_exact(path).ok()?;
        let identity = view.common_repository.as_ref()?.identity;
        (now.identity == identity).then(|| Self { directory: directory.into(), identity })
    }

    /// Makes a call for one of these files. `None`: it is for another file, and the kernel makes it.
    pub(crate) fn answer(
        &self,
        listener: BorrowedFd<'_>,
        call: &libc::seccomp_notif,
        asked: &SystemCall,
    ) -> Option<Answer> {
        let caller = WaitingThread::of(listener, call).ok()?;
        let [first, second, third, fourth, ..] = asked.arguments;
        let plain = |address| self.name(&caller, libc::AT_FDCWD, address, FILES);
        let made = match i64::from(asked.number) {
            libc::SYS_open => {
                let file = New { name: plain(first)?, flags: int(second), mode: word(third) };
                return self.create(&caller, file, |made| sys::add_descriptor(listener, call.id, made));
            }
            libc::SYS_openat => {
                let name = self.name(&caller, int(first), second, FILES)?;
                let file = New { name, flags: int(third), mode: word(fourth) };
                return self.create(&caller, file, |made| sys::add_descriptor(listener, call.id, made));
            }
            libc::SYS_unlink => unlinkat(&self.directory, plain(first)?, UnlinkatFlags::NoRemoveDir),
            libc::SYS_chmod => self.set_mode(plain(first)?, word(second)),
            libc::SYS_rename => {
                let old = plain(first)?;
                let new = RENAMES.iter().find(|(from, _)| *from == old)?.1;
                let new = self.name(&caller, libc::AT_FDCWD, second, &[new])?;
                renameat(&self.directory, old, &self.directory, new)
            }
            _ => return None,
        };
        Some(Answer::Made(made.err().map_or(0, |errno| errno as i32)))
    }

    /// Which of `names` is at an address, if it is in the repository, and the caller may write refs there: a
    /// command can be granted less than others.
    fn name<'n>(
        &self,
        caller: &WaitingThread,
        base: i32,
        address: u64,
        names: &[&'n str],
    ) -> Option<&'n str> {
        let path = caller.path(address).ok()?;
        let bytes = path.as_os_str().as_bytes();
        let start = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, last) = bytes.split_at(start);
        let name = names.iter().find(|name| name.as_bytes() == last)?;
        let parent = if parent.is_empty() { b"." } else { parent };
        let parent = caller.find(base, Path::new(OsStr::from_bytes(parent)), true).ok()?;
        if Identity::of_held(&parent).ok()? != self.identity {
            return None;
        }
        let refs =
            openat(&parent, "refs", OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
        let is_writable = !fstatvfs(refs.ok()?).ok()?.flags().contains(FsFlags::ST_RDONLY);
        is_writable.then_some(name)
    }

    /// Makes a new file, and gives it to the caller. `give` returns the number of the descriptor there.
    fn create(
        &self,
        caller: &WaitingThread,
        file: New<'_>,
        give: impl FnOnce(&OwnedFd) -> io::Result<i32>,
    ) -> Option<Answer> {
        let flags = OFlag::from_bits_truncate(file.flags);
        if !flags.contains(OFlag::O_CREAT | OFlag::O_EXCL) {
            return None;
        }
        let flags = flags & OFlag::O_ACCMODE | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(file.mode & 0o666 & !caller.umask()?);
        let made = openat(&self.directory, file.name, flags, mode).and_then(|made| {
            give(&made).map_err(|error| {
                // The caller would wait for a lock that nobody gives up.
                let _ = unlinkat(&self.directory, file.name, UnlinkatFlags::NoRemoveDir);
                errno(error)
            })
        });
        Some(made.map_or_else(|errno| Answer::Made(errno as i32), Answer::Opened))
    }

    /// Sets a mode, as git does in a shared repository.
    fn set_mode(&self, name: &str, mode: u32) -> nix::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let held = openat(&self.directory, name, flags, Mode::empty())?;
        match kind(&fstat(&held)?) {
            FileKind::File => dirfd::change_mode(&held, Mode::from_bits_truncate(mode & 0o777)),
            _ => Err(Errno::EROFS),
        }
    }
}

/// A file to make: the arguments of open(2).
struct New<'n> {
    name: &'n str,
    flags: i32,
    mode: u32,
}
