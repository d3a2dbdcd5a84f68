//! Modes and owners: what a call asks for, and the call on the held file.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{Gid, Uid, fchownat};

use crate::launch::supervisor::answer::{Answer, int, word};
use crate::launch::supervisor::caller::{CallFailure, WaitingThread};
use crate::plan::seccomp::rule::FilterUser;
use crate::plan::seccomp::table::SystemCall;
use crate::sys::dirfd;
use crate::sys::inode::{FileKind, kind};

/// A call to carry out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeCall {
    file: Target,
    change: Change,
}

/// The file of a call.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// An open one.
    Descriptor(i32),
    /// The one at a path, which is at an address of the caller's memory.
    Path { base: i32, address: u64, flags: i32 },
}

/// What becomes of it.
#[derive(Clone, Copy, Debug)]
enum Change {
    Mode(u32),
    Owner(Option<Uid>, Option<Gid>),
}

/// The flags that calls with a directory take.
const FLAGS: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

impl AttributeCall {
    /// What a call asks for.
    ///
    /// # Errors
    /// [`CallFailure::Unseen`] if it is another call.
    pub(crate) fn of(call: &SystemCall) -> Result<Self, CallFailure> {
        let [first, second, third, fourth, fifth, _] = call.arguments;
        let path = |address, flags| Target::Path { base: libc::AT_FDCWD, address, flags };
        let at = |flags| Target::Path { base: int(first), address: second, flags };
        let owner = |user, group| {
            let id = |value| Some(word(value)).filter(|id| *id != u32::MAX);
            Change::Owner(id(user).map(Uid::from_raw), id(group).map(Gid::from_raw))
        };
        let (file, change) = match i64::from(call.number) {
            libc::SYS_chmod => (path(first, 0), Change::Mode(word(second))),
            libc::SYS_fchmod => (Target::Descriptor(int(first)), Change::Mode(word(second))),
            libc::SYS_fchmodat => (at(0), Change::Mode(word(third))),
            libc::SYS_fchmodat2 => (at(int(fourth)), Change::Mode(word(third))),
            libc::SYS_chown => (path(first, 0), owner(second, third)),
            libc::SYS_lchown => (path(first, libc::AT_SYMLINK_NOFOLLOW), owner(second, third)),
            libc::SYS_fchown => (Target::Descriptor(int(first)), owner(second, third)),
            libc::SYS_fchownat => (at(int(fifth)), owner(third, fourth)),
            _ => return Err(CallFailure::Unseen),
        };
        Ok(Self { file, change })
    }

    /// Finds the file, and makes the call on it.
    ///
    /// # Errors
    /// What the call returns.
    pub(crate) fn carry_out(self, caller: &WaitingThread, user: FilterUser) -> Result<Answer, CallFailure> {
        let held = self.file.find(caller)?;
        match (self.change, user) {
            (Change::Mode(mode), FilterUser::FakeRoot) => {
                let is_own = caller.is_on_other_root(&held)?;
                Ok(set_mode_of_root(&held, mode, is_own)?)
            }
            (Change::Mode(mode), FilterUser::Ordinary | FilterUser::Root) => Ok(set_mode(&held, mode)?),
            (Change::Owner(owner, group), _) => Ok(set_owner(&held, owner, group, user)?),
        }
    }
}

impl Target {
    fn find(self, caller: &WaitingThread) -> Result<OwnedFd, CallFailure> {
        let (base, address, flags) = match self {
            Self::Descriptor(number) => {
                let held = caller.descriptor(number)?;
                return if caller.only_holds(number)? { Err(Errno::EBADF.into()) } else { Ok(held) };
            }
            Self::Path { flags, .. } if flags & !FLAGS != 0 => return Err(Errno::EINVAL.into()),
            Self::Path { base, address, flags } => (base, address, flags),
        };
        let path = caller.path(address)?;
        if path.as_os_str().is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            return caller.base(base);
        }
        caller.find(base, &path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }
}

/// Sets a mode with the set-group-ID bit, if this is a directory. What is held cannot become a file any more.
fn set_mode(held: &OwnedFd, mode: u32) -> nix::Result<Answer> {
    match kind(&fstat(held)?) {
        FileKind::Directory => {
            let mode = Mode::from_bits_truncate(mode & 0o7777) - Mode::S_ISUID;
            Ok(made(dirfd::change_mode(held, mode)))
        }
        FileKind::Link => Err(Errno::EOPNOTSUPP),
        _ if fstatvfs(held)?.flags().contains(FsFlags::ST_RDONLY) => Err(Errno::EROFS),
        _ => Ok(Answer::Refused),
    }
}

/// Sets a mode with set-id bits for root of another root. Its own files get them: they lend nobody anything,
/// and package managers insist. A file of the host does not, and the call succeeds without them.
fn set_mode_of_root(held: &OwnedFd, mode: u32, is_own: bool) -> nix::Result<Answer> {
    let mode = Mode::from_bits_truncate(mode & 0o7777);
    Ok(match kind(&fstat(held)?) {
        FileKind::Link => return Err(Errno::EOPNOTSUPP),
        FileKind::Directory => made(dirfd::change_mode(held, mode - Mode::S_ISUID)),
        _ if is_own => made(dirfd::change_mode(held, mode)),
        _ => made(dirfd::change_mode(held, mode - Mode::S_ISUID - Mode::S_ISGID)),
    })
}

/// Gives the file to a user and a group. Root of the sandbox has no power over owners, and is told that it
/// was done. The kernel says `EINVAL` where root itself is one of a user namespace that lacks that owner.
fn set_owner(
    held: &OwnedFd,
    owner: Option<Uid>,
    group: Option<Gid>,
    user: FilterUser,
) -> nix::Result<Answer> {
    let changed = fchownat(held, "", owner, group, AtFlags::AT_EMPTY_PATH);
    if user != FilterUser::Ordinary && matches!(changed, Err(Errno::EPERM | Errno::EINVAL)) {
        let now = fstat(held)?;
        let is_other = owner.is_some_and(|owner| owner.as_raw() != now.st_uid)
            || group.is_some_and(|group| group.as_raw() != now.st_gid);
        // Otherwise it fails for another reason: the file is immutable, for one.
        if is_other {
            return Ok(Answer::Pretended);
        }
    }
    Ok(made(changed))
}

fn made(result: nix::Result<()>) -> Answer {
    Answer::Made(result.err().map_or(0, |errno| errno as i32))
}
