//! Descriptors that come by number: from a system call, or by a path that names one of this process, such as
//! the `/dev/fd/63` by which a shell replaces `<(…)`. Of those, only an inherited descriptor is accepted:
//! another number could be one of Kennel's own. And how many descriptors this process may have.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

/// A copy of the descriptor that `path` names, if it is `/dev/fd/N` or `/proc/self/fd/N` with N of 3 or more.
/// `None` for any other path.
///
/// # Errors
/// `EBADF` if this process inherited no such descriptor. A descriptor that closes on execve(2) was opened
/// later.
///
/// ```
/// assert!(kennel::internal::inherited_descriptor("/etc/hostname").is_none());
/// assert!(kennel::internal::inherited_descriptor("/dev/fd/2").is_none());
/// let error = kennel::internal::inherited_descriptor("/dev/fd/999999").expect("a descriptor").unwrap_err();
/// assert_eq!(error.raw_os_error(), Some(9)); // EBADF
/// ```
pub fn inherited_descriptor(path: impl AsRef<Path>) -> Option<io::Result<OwnedFd>> {
    number(path.as_ref()).map(copy_inherited)
}

fn number(path: &Path) -> Option<RawFd> {
    let directory = path.parent()?;
    if directory != Path::new("/dev/fd") && directory != Path::new("/proc/self/fd") {
        return None;
    }
    let name = path.file_name().map(OsStr::as_bytes)?;
    let is_number = name.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(name).ok().filter(|_| is_number)?;
    // A number that is too large to parse is no open descriptor.
    Some(number.parse().unwrap_or(RawFd::MAX)).filter(|&number| number > libc::STDERR_FILENO)
}

/// fcntl(F_DUPFD_CLOEXEC) of a descriptor that this process inherited. A descriptor with FD_CLOEXEC cannot be
/// one.
///
/// # Errors
/// `EBADF` if this process inherited no descriptor with that number.
fn copy_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with integer arguments only; it fails if the number is no descriptor.
    let flags = Errno::result(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: as above; the copy is a new descriptor.
    let copy = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    Ok(received(copy))
}

/// Takes ownership of a descriptor that a message brought or that a call created.
pub(crate) fn received(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created it for this process, and each caller takes each number once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// One `part`th of the descriptors that this process may open: at least 16, at most `most`. For what others
/// make this process open, because the program needs descriptors of its own.
pub(crate) fn share_of_descriptors(part: u64, most: usize) -> usize {
    // POSIX promises far fewer, but no system in use has less.
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / part).unwrap_or(most).clamp(16, most)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_paths_of_descriptors_are_taken_for_some() {
        for (path, expected) in [
            ("/dev/fd/3", Some(3)),
            ("/proc/self/fd/63", Some(63)),
            ("/dev/fd/99999999999999999999", Some(RawFd::MAX)),
            ("/dev/fd/2", None),
            ("/dev/fd/0x3", None),
            ("/dev/fd/+3", None),
            ("/dev/fd/", None),
            ("/dev/fd/3/x", None),
            ("/dev/stdin", None),
            ("/proc/1/fd/3", None),
            ("dev/fd/3", None),
            ("3", None),
        ] {
            assert_eq!(number(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_descriptor_of_our_own_is_not_inherited() {
        let own = File::open("/dev/null").expect("a descriptor");
        let named = inherited_descriptor(format!("/dev/fd/{}", own.as_raw_fd())).expect("a descriptor");
        assert_eq!(named.expect_err("ours").raw_os_error(), Some(libc::EBADF));
    }
}
