//! The thread that waits for the answer to a system call: its memory, its descriptors, and files as it finds
//! them. This file opens files only to hold them (`O_PATH`), and changes nothing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kennel_helper::plan::ROOT_SOURCE;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::host::mounts::MountTable;
use crate::launch::supervisor::answer::{errno, int};
use crate::plan::seccomp::observed::{Act, PathCall};
use crate::sys;
use crate::sys::dirfd;
use crate::sys::inode::{FileKind, Identity, kind};

/// The longest path that the kernel takes, with its NUL.
const LONGEST: usize = libc::PATH_MAX as usize;

/// Holds a file, whatever it is.
const HELD: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// Names of the caller's own descriptors. Other processes see other descriptors there, this program too.
const OWN_DESCRIPTORS: &[&str] = &["/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"];

/// Why a call is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The call fails with this errno, as it would without a filter.
    Errno(Errno),
    /// This program cannot see what the caller means: the caller made itself undumpable, it is gone, /proc is
    /// that of another pid namespace, or there is no openat2(2).
    Unseen,
}

impl From<Errno> for CallFailure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// A file as the arguments of a call name it.
#[derive(Debug)]
pub(crate) struct NamedFile {
    /// The descriptor of the directory where a relative path starts.
    pub(crate) base: i32,
    pub(crate) path: PathBuf,
    /// Those of open(2), if the call opens it.
    pub(crate) flags: OFlag,
}

/// A thread that waits.
#[derive(Debug)]
pub(crate) struct WaitingThread {
    /// Its directory in /proc. It stays that of this thread when the number belongs to another one.
    proc: OwnedFd,
}

impl WaitingThread {
    /// The thread that made this call.
    pub(crate) fn of(listener: BorrowedFd<'_>, call: &libc::seccomp_notif) -> Result<Self, CallFailure> {
        // Pid 0: the thread is not in the pid namespace of this program.
        if call.pid == 0 || !is_own_proc() {
            return Err(CallFailure::Unseen);
        }
        let path = format!("/proc/{}", call.pid);
        let proc = openat(AT_FDCWD, path.as_str(), HELD | OFlag::O_DIRECTORY, Mode::empty());
        let caller = Self { proc: proc.map_err(|_| CallFailure::Unseen)? };
        // If the call still waits, the number was its own when the directory was opened.
        if sys::notification_is_valid(listener, call.id) { Ok(caller) } else { Err(CallFailure::Unseen) }
    }

    fn open(&self, entry: &str, flags: OFlag) -> Result<OwnedFd, CallFailure> {
        openat(&self.proc, entry, flags | OFlag::O_CLOEXEC, Mode::empty()).map_err(|_| CallFailure::Unseen)
    }

    /// The path at an address. It is read once, and may have another value in the caller's memory afterwards.
    ///
    /// # Errors
    /// `EFAULT` if nothing is there; `ENAMETOOLONG`.
    pub(crate) fn path(&self, address: u64) -> Result<PathBuf, CallFailure> {
        Ok(path_at(&self.open("mem", OFlag::O_RDONLY)?.into(), address)?)
    }

    /// The file that an argument of the call names. `None` if the path cannot be read, or is empty: then the
    /// call is about a descriptor.
    pub(crate) fn named(&self, call: &libc::seccomp_notif, by: &PathCall) -> Option<NamedFile> {
        let argument = |index: usize| call.data.args.get(index).copied().unwrap_or_default();
        let path = self.path(argument(by.path)).ok().filter(|path| !path.as_os_str().is_empty())?;
        let base = by.directory.map_or(libc::AT_FDCWD, |index| int(argument(index)));
        let flags = match by.act {
            Act::Open(index) => OFlag::from_bits_truncate(int(argument(index))),
            Act::Create => OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_TRUNC,
            _ => OFlag::empty(),
        };
        Some(NamedFile { base, path, flags })
    }

    /// The path of a file from the root of the sandbox.
    pub(crate) fn absolute(&self, file: &NamedFile) -> Option<PathBuf> {
        match file.path.is_absolute() {
            true => Some(file.path.clone()),
            false => Some(self.directory_path(file.base)?.join(&file.path)),
        }
    }

    /// Reads its memory.
    ///
    /// # Errors
    /// `EFAULT` if nothing is there.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallFailure> {
        let memory = File::from(self.open("mem", OFlag::O_RDONLY)?);
        memory.read_exact_at(bytes, address).map_err(|_| Errno::EFAULT.into())
    }

    /// The path of a directory where relative paths start, as the caller sees it.
    fn directory_path(&self, number: i32) -> Option<PathBuf> {
        let link = match number {
            libc::AT_FDCWD => "cwd".to_owned(),
            number => format!("fd/{number}"),
        };
        let path = PathBuf::from(readlinkat(&self.proc, link.as_str()).ok()?);
        path.is_absolute().then_some(path)
    }

    /// The file of a descriptor.
    ///
    /// # Errors
    /// `EBADF` if it is not open.
    pub(crate) fn descriptor(&self, number: i32) -> Result<OwnedFd, CallFailure> {
        match openat(&self.proc, format!("fd/{number}").as_str(), HELD, Mode::empty()) {
            Err(Errno::ENOENT) => Err(Errno::EBADF.into()),
            held => held.map_err(|_| CallFailure::Unseen),
        }
    }

    /// Whether a descriptor only holds a file (`O_PATH`): calls that change the file by it fail. The mode of
    /// its link in proc(5) says whether it can read or write; its fdinfo may be as long as the caller likes.
    pub(crate) fn only_holds(&self, number: i32) -> Result<bool, CallFailure> {
        let link = format!("fd/{number}");
        let link = fstatat(&self.proc, link.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|_| CallFailure::Unseen)?;
        Ok(link.st_mode & (libc::S_IRUSR | libc::S_IWUSR) == 0)
    }

    /// Whether a file is on the overlay of another root. By its mount: in the caller's namespace nobody but
    /// Kennel mounts. To a caller that has called chroot(2) the kernel lists only mounts below its root, so
    /// for others the answer is no.
    pub(crate) fn is_on_other_root(&self, held: &OwnedFd) -> Result<bool, CallFailure> {
        let mounts = MountTable::read_from(File::from(self.open("mountinfo", OFlag::O_RDONLY)?));
        let id = sys::mount_id(held.as_fd()).map_err(errno)?;
        Ok(mounts.map_err(errno)?.is_of(id, c"overlay", ROOT_SOURCE))
    }

    /// The mask of modes of new files: umask(2).
    pub(crate) fn umask(&self) -> Option<u32> {
        let status = File::from(self.open("status", OFlag::O_RDONLY).ok()?);
        let text = io::read_to_string(status).ok()?;
        let mask = text.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(mask.trim(), 8).ok()
    }

    /// The file at a path, as the caller would find it from the directory `base`.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub(crate) fn find(&self, base: i32, path: &Path, follows: bool) -> Result<OwnedFd, CallFailure> {
        if path.as_os_str().is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if let Some(number) = descriptor_of(path).filter(|_| follows) {
            return self.descriptor(number).map_err(|failure| match failure {
                CallFailure::Errno(Errno::EBADF) => Errno::ENOENT.into(),
                failure => failure,
            });
        }
        let start = if path.is_absolute() { self.root()? } else { self.base(base)? };
        let without = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        // Without links, a path cannot leave the mounts of the caller: `..` of their root is that root.
        match open(&start, below(path), OFlag::O_NOFOLLOW, without) {
            Ok(held) if follows && is_link(&held)? => self.find_over_links(&start, path, follows),
            Err(CallFailure::Errno(Errno::ELOOP)) => self.find_over_links(&start, path, follows),
            found => found,
        }
    }

    /// Links are followed from the caller's root; from here, an absolute one would lead to the files of the
    /// host.
    fn find_over_links(&self, start: &OwnedFd, path: &Path, follows: bool) -> Result<OwnedFd, CallFailure> {
        let root = self.root()?;
        let within = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let path = if path.is_absolute() {
            path.to_owned()
        } else {
            let base: PathBuf = readlinkat(AT_FDCWD, &sys::own_path(start))?.into();
            let again = open(&root, &base, OFlag::O_NOFOLLOW, within)?;
            // It was removed, or it was renamed since.
            if Identity::of_held(&again)? != Identity::of_held(start)? {
                return Err(Errno::ENOENT.into());
            }
            join(base, path)
        };
        open(&root, &path, if follows { OFlag::empty() } else { OFlag::O_NOFOLLOW }, within)
    }

    /// The directory where a relative path starts.
    pub(crate) fn base(&self, number: i32) -> Result<OwnedFd, CallFailure> {
        if number == libc::AT_FDCWD { self.open("cwd", HELD) } else { self.descriptor(number) }
    }

    fn root(&self) -> Result<OwnedFd, CallFailure> {
        self.open("root", HELD | OFlag::O_DIRECTORY)
    }
}

/// openat2(2) that holds a file.
fn open(
    directory: &OwnedFd,
    path: &Path,
    flags: OFlag,
    resolve: ResolveFlag,
) -> Result<OwnedFd, CallFailure> {
    match dirfd::open(directory, path, OpenHow::new().flags(HELD | flags).resolve(resolve)) {
        // A filter around this program may hide the call.
        Err(Errno::ENOSYS | Errno::EPERM) => Err(CallFailure::Unseen),
        held => Ok(held?),
    }
}

fn is_link(held: impl AsFd) -> nix::Result<bool> {
    Ok(kind(&fstat(held)?) == FileKind::Link)
}

/// A path without the slashes at its start.
fn below(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let start = bytes.iter().position(|byte| *byte != b'/').unwrap_or(bytes.len());
    match bytes.get(start..) {
        Some(rest) if !rest.is_empty() => Path::new(OsStr::from_bytes(rest)),
        _ => Path::new("."),
    }
}

/// `path` in `base`. Unlike [`Path::join`], it keeps a slash at the end.
fn join(base: PathBuf, path: &Path) -> PathBuf {
    let mut text = base.into_os_string();
    text.push("/");
    text.push(path);
    text.into()
}

/// The number in a path that names a descriptor of the caller itself.
fn descriptor_of(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    let number = OWN_DESCRIPTORS.iter().find_map(|names| path.strip_prefix(names))?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// The path at an address of a process.
///
/// # Errors
/// `EFAULT` if nothing is there; `ENAMETOOLONG`.
fn path_at(memory: &File, address: u64) -> nix::Result<PathBuf> {
    let mut bytes = vec![0; LONGEST];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = address.checked_add(filled as u64).ok_or(Errno::EFAULT)?;
        let read = memory.read_at(rest, at).unwrap_or(0);
        let end = rest.iter().take(read).position(|byte| *byte == 0);
        if let Some(end) = end {
            bytes.truncate(filled + end);
            return Ok(OsString::from_vec(bytes).into());
        }
        if read == 0 {
            return Err(Errno::EFAULT);
        }
        filled += read;
    }
    Err(Errno::ENAMETOOLONG)
}

/// Whether /proc has this program's own numbers. It may belong to another pid namespace, where a number is
/// another process.
pub(crate) fn is_own_proc() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own == Path::new(&std::process::id().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_below_the_root_and_keep_their_end() {
        for (path, expected) in [("/", "."), ("//a/b/", "a/b/"), ("a", "a"), ("/..", "..")] {
            assert_eq!(below(Path::new(path)).as_os_str(), expected, "{path}");
        }
        assert_eq!(join("/a".into(), Path::new("b/")).as_os_str(), "/a/b/");
    }

    #[test]
    fn only_the_own_descriptors_are_named() {
        let own = |path: &str| descriptor_of(Path::new(path));
        assert_eq!(own("/proc/self/fd/7"), Some(7));
        assert_eq!(own("/proc/thread-self/fd/0"), Some(0));
        assert_eq!(own("/dev/fd/12"), Some(12));
        for other in ["/proc/1/fd/7", "/proc/self/fd/", "/proc/self/fd/-1", "/proc/self/fd/7/x", "/dev/fd/+1"]
        {
            assert_eq!(own(other), None, "{other}");
        }
    }
}
