//! Uses of paths that fail, and connections: what `explain` is made from.
//!
//! A call with a path goes on, and nobody tells how it ended. So this looks the path up before, from the
//! caller's own root and with the rights of a command, as the kernel is about to: whether it is there, and
//! whether its mount can be written. What a command does meanwhile can only spoil the record of itself.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::launch::supervisor::caller::{CallFailure, NamedFile, WaitingThread};
use crate::plan::seccomp::observed::{Act, OBSERVED, PathCall};
use crate::sys;
use crate::sys::inode::{FileKind, kind};
use crate::view::View;

/// How many different ones of each kind are kept: the last ones.
const MOST: usize = 256;

/// How many different addresses are kept.
const MOST_ADDRESSES: usize = 64;

/// A use of a path that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedUse {
    /// When: a number that rises.
    pub(crate) order: u64,
    /// Absolute, as commands see it.
    pub(crate) path: PathBuf,
    pub(crate) errno: Errno,
    pub(crate) writes: bool,
}

impl FailedUse {
    /// Whether it is the same, tried once more.
    fn is_again(&self, other: &Self) -> bool {
        (&self.path, self.errno, self.writes) == (&other.path, other.errno, other.writes)
    }
}

/// A path that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Miss {
    pub(crate) failed: FailedUse,
    /// Whether a program wanted to open, make, execute or enter it, and did not only ask for it.
    pub(crate) was_wanted: bool,
    /// Whether a file of that name was found later, in another directory.
    pub(crate) is_found: bool,
}

/// What a command has tried in vain, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailedUses {
    /// Attempts to change what is there, or something beside it.
    pub(crate) writes: VecDeque<FailedUse>,
    pub(crate) misses: VecDeque<Miss>,
    /// Where it connected to, beyond this machine or not.
    pub(crate) addresses: Vec<SocketAddr>,
    /// How many there were.
    pub(crate) count: u64,
}

/// What the supervisor sees of a call.
#[derive(Debug)]
pub(crate) enum Seen {
    Connects(SocketAddr),
    /// A search for a file of this name has ended.
    Finds(PathBuf),
    Fails {
        failed: FailedUse,
        was_wanted: bool,
    },
}

/// What a call does, as far as it counts. This looks paths up, which waits for a file system that hangs. So
/// nobody may hold a lock meanwhile.
pub(crate) fn seen(caller: &WaitingThread, call: &libc::seccomp_notif, view: &View) -> Vec<Seen> {
    let see = |by: &PathCall| {
        if let Act::Connect(length) = by.act {
            let argument = |index: usize| call.data.args.get(index).copied().unwrap_or_default();
            return address_at(caller, argument(by.path), argument(length)).map(Seen::Connects);
        }
        let attempt = Attempt { caller, file: caller.named(call, by)? };
        match attempt.end(by.act)? {
            End::Fails { errno, writes } => attempt.failure(by.act, errno, writes, view),
            End::Found => Some(Seen::Finds(attempt.file.path)),
        }
    };
    OBSERVED.iter().filter(|it| it.number == i64::from(call.data.nr)).filter_map(see).collect()
}

impl FailedUses {
    pub(crate) fn add(&mut self, seen: Seen) {
        match seen {
            Seen::Connects(address) if self.addresses.contains(&address) => {}
            Seen::Connects(address) if self.addresses.len() < MOST_ADDRESSES => self.addresses.push(address),
            Seen::Connects(_) => {}
            Seen::Finds(path) => {
                for missed in &mut self.misses {
                    missed.is_found |= missed.failed.path.file_name() == path.file_name();
                }
            }
            Seen::Fails { failed, was_wanted } => self.fail(failed, was_wanted),
        }
    }

    fn fail(&mut self, failed: FailedUse, mut was_wanted: bool) {
        self.count += 1;
        let failed = FailedUse { order: self.count, ..failed };
        if failed.errno != Errno::ENOENT {
            self.writes.retain(|other| !other.is_again(&failed));
            self.writes.push_back(failed);
        } else {
            self.misses.retain(|other| {
                let is_same = other.failed.is_again(&failed);
                was_wanted |= is_same && other.was_wanted;
                !is_same
            });
            self.misses.push_back(Miss { failed, was_wanted, is_found: false });
        }
        self.writes.drain(..self.writes.len().saturating_sub(MOST));
        self.misses.drain(..self.misses.len().saturating_sub(MOST));
    }
}

/// How an attempt ends, as far as the sandbox decides about it.
enum End {
    Found,
    Fails { errno: Errno, writes: bool },
}

impl End {
    fn refused(errno: Errno) -> Option<Self> {
        Some(Self::Fails { errno, writes: true })
    }

    fn missing(writes: bool) -> Option<Self> {
        Some(Self::Fails { errno: Errno::ENOENT, writes })
    }
}

/// A call with a path.
struct Attempt<'a> {
    caller: &'a WaitingThread,
    file: NamedFile,
}

impl Attempt<'_> {
    fn look(&self, follows: bool) -> Result<OwnedFd, CallFailure> {
        self.find(&self.file.path, follows)
    }

    /// `/proc/self` is another process for this thread. Only the mount counts, and it is that of `/proc`.
    fn find(&self, path: &Path, follows: bool) -> Result<OwnedFd, CallFailure> {
        let own = ["/proc/self", "/proc/thread-self"].iter().find_map(|own| path.strip_prefix(own).ok());
        match own.filter(|rest| !rest.starts_with("fd")) {
            Some(rest) => self.caller.find(self.file.base, &Path::new("/proc").join(rest), follows),
            None => self.caller.find(self.file.base, path, follows),
        }
    }

    /// `None`: the host is the reason. What is missing in a directory of the host is not hidden, unless a
    /// link leads elsewhere.
    fn failure(&self, act: Act, errno: Errno, writes: bool, view: &View) -> Option<Seen> {
        let path = self.caller.absolute(&self.file)?;
        if errno == Errno::ENOENT && view.host_path(&path).is_some() && self.look(false).is_err() {
            return None;
        }
        let was_wanted = !matches!(act, Act::Look | Act::Change | Act::Remove | Act::Rename);
        Some(Seen::Fails { failed: FailedUse { order: 0, path, errno, writes }, was_wanted })
    }

    /// `None`: it does not fail, or not because of the sandbox.
    fn end(&self, act: Act) -> Option<End> {
        match act {
            Act::Look | Act::Execute | Act::Enter => found(self.look(true), false),
            Act::Open(_) | Act::Create => self.open(),
            Act::Make => {
                if self.is_missing() {
                    self.make()
                } else {
                    None
                }
            }
            Act::Change => match self.look(true) {
                Ok(held) if is_read_only(&held) => End::refused(Errno::EROFS),
                looked => found(looked, false),
            },
            Act::Remove | Act::Rename if self.is_missing() => End::missing(false),
            Act::Replace if self.is_missing() => self.make(),
            Act::Remove | Act::Rename | Act::Replace => self.replace(act),
            Act::Connect(_) => None,
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self.look(false), Err(CallFailure::Errno(Errno::ENOENT)))
    }

    fn open(&self) -> Option<End> {
        let flags = self.file.flags;
        let writes = flags & OFlag::O_ACCMODE != OFlag::O_RDONLY || flags.contains(OFlag::O_TRUNC);
        let makes = flags.contains(OFlag::O_CREAT);
        match self.look(!flags.contains(OFlag::O_NOFOLLOW)) {
            Ok(_) if makes && flags.contains(OFlag::O_EXCL) => None,
            Ok(held) if writes && is_read_only(&held) => End::refused(Errno::EROFS),
            Err(CallFailure::Errno(Errno::ENOENT)) if makes => self.make(),
            looked => found(looked, writes),
        }
    }

    /// Makes a new entry of its directory.
    fn make(&self) -> Option<End> {
        match self.directory() {
            Ok(directory) if is_read_only(&directory) => End::refused(Errno::EROFS),
            Err(CallFailure::Errno(Errno::ENOENT)) => End::missing(true),
            _ => None,
        }
    }

    /// Changes an entry of its directory.
    fn replace(&self, act: Act) -> Option<End> {
        let directory = self.directory().ok()?;
        let name = std::ffi::CString::new(self.file.path.file_name()?.as_encoded_bytes()).ok()?;
        if is_read_only(&directory) {
            return End::refused(Errno::EROFS);
        }
        let held = self.look(false).ok()?;
        let is_directory = kind(&fstat(&held).ok()?) == FileKind::Directory;
        if sys::is_mount_root(directory.as_fd(), &name).is_ok_and(|is_root| is_root) {
            // Programs remove directories that may be empty, and this one is not.
            return if act == Act::Remove && is_directory { None } else { End::refused(Errno::EBUSY) };
        }
        // An overlay renames no directory that was there before.
        let is_overlay = fstatfs(&held).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
        if act == Act::Rename && is_directory && is_overlay { End::refused(Errno::EXDEV) } else { None }
    }

    fn directory(&self) -> Result<OwnedFd, CallFailure> {
        match self.file.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => self.find(Path::new("."), true),
            Some(parent) => self.find(parent, true),
            None => Err(Errno::EEXIST.into()),
        }
    }
}

fn found(looked: Result<OwnedFd, CallFailure>, writes: bool) -> Option<End> {
    match looked {
        Ok(_) => Some(End::Found),
        Err(CallFailure::Errno(Errno::ENOENT)) => End::missing(writes),
        Err(_) => None,
    }
}

/// Whether its mount is read-only. Devices, pipes and sockets can be written to all the same.
fn is_read_only(held: &OwnedFd) -> bool {
    let is_kept = |kind| matches!(kind, FileKind::File | FileKind::Directory | FileKind::Link);
    fstat(held).is_ok_and(|stat| is_kept(kind(&stat)))
        && fstatvfs(held).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY))
}

/// A socket address of the internet in the caller's memory.
fn address_at(caller: &WaitingThread, address: u64, length: u64) -> Option<SocketAddr> {
    let mut bytes = [0; size_of::<libc::sockaddr_in6>()];
    let length = usize::try_from(length).ok()?.min(bytes.len());
    caller.read(address, bytes.get_mut(..length)?).ok()?;
    let [f0, f1, p0, p1, rest @ ..] = bytes;
    let port = u16::from_be_bytes([p0, p1]);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes([f0, f1])) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            Ipv4Addr::from(*rest.first_chunk::<4>()?).into()
        }
        libc::AF_INET6 if length == bytes.len() => {
            Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
