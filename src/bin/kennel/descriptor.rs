//! Writing to descriptors that are not ours alone. Whoever has one too, the command for one, can make it non-blocking: that it
//! takes nothing now is an error there, and means to wait.

use std::{
    fs::{self, File},
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use kennel::inherited_descriptor;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{FileStat, SFlag, fstat},
    unistd::write,
};

/// What a terminal has room for may be less than a line's end, which it takes whole.
const BREATH: Duration = Duration::from_millis(1);

/// Bytes that a pipe takes at once when poll(2) says that it takes any: PIPE_BUF.
const PIECE: usize = 4096;

/// The file that a path leads to, where the path names a descriptor that we were started with: what is appended to later, and
/// kept from commands, is a file with a name. Any other path is answered as it is.
///
/// # Errors
/// There is no such descriptor, or it has no file with a name.
pub(crate) fn file_of(path: &Path) -> io::Result<PathBuf> {
    let Some(given) = inherited_descriptor(path).transpose()? else { return Ok(path.to_owned()) };
    let given = File::from(given);
    let named = fs::read_link(format!("/proc/self/fd/{}", given.as_raw_fd()))?;
    let (behind, there) = (given.metadata()?, fs::symlink_metadata(&named));
    let is_it = there.is_ok_and(|there| (there.dev(), there.ino()) == (behind.dev(), behind.ino()));
    if behind.is_file() && is_it {
        return Ok(named);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the descriptor is not that of a regular file with a name",
    ))
}

/// Writes all of it.
///
/// # Errors
/// Those of write(2).
pub(crate) fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write_some(&to, bytes)? {
            0 => {
                wait(&to, PollFlags::POLLOUT, None);
                sleep(BREATH);
            }
            count => bytes = bytes.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Writes all of it to what takes something now and then, and not while that would block: nobody may read it.
///
/// # Errors
/// Those of write(2). `WouldBlock` where it has taken nothing for longer than `patience`.
pub(crate) fn write_patiently(to: impl AsFd, bytes: &[u8], patience: Duration) -> io::Result<()> {
    write_while(to, bytes, |silence| Some(patience.saturating_sub(silence)).filter(|left| !left.is_zero()))
}

/// The same, as long as `patience` answers how much longer to wait before it is asked again. It is told for how long
/// nothing was taken.
///
/// # Errors
/// Those of write(2). `WouldBlock` where it has no more patience.
pub(crate) fn write_while(
    to: impl AsFd,
    mut bytes: &[u8],
    mut patience: impl FnMut(Duration) -> Option<Duration>,
) -> io::Result<()> {
    let mut taken = Instant::now();
    while !bytes.is_empty() {
        let Some(left) = patience(taken.elapsed()) else { return Err(untaken()) };
        if !wait(&to, PollFlags::POLLOUT, Some(left)) {
            continue;
        }
        match write_some(&to, bytes.get(..PIECE).unwrap_or(bytes))? {
            0 => sleep(BREATH),
            count => {
                bytes = bytes.get(count..).unwrap_or_default();
                taken = Instant::now();
            }
        }
    }
    Ok(())
}

/// The error for what nobody takes.
pub(crate) fn untaken() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "it is not being read")
}

/// Writes what is taken now, and answers how many bytes that is.
fn write_some(to: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match write(to, bytes) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Ok(count) => Ok(count),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until there is room in a descriptor, or something to read, for no longer than `left`; whether there is.
pub(crate) fn wait(on: impl AsFd, what: PollFlags, left: Option<Duration>) -> bool {
    match poll(&mut [PollFd::new(on.as_fd(), what)], until(left)) {
        // The limit of open files is 0, and nothing can be waited for.
        Err(Errno::EINVAL) => true,
        polled => polled.is_ok_and(|count| count > 0),
    }
}

/// A time to wait, if there is an end to it, as poll(2) has it.
pub(crate) fn until(left: Option<Duration>) -> PollTimeout {
    left.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))
}

/// A way to what a stream is which does not block, where it is a terminal or a pipe. `None` also where it cannot be had.
pub(crate) fn unblocked(stream: impl AsFd + IsTerminal, path: &str) -> Option<File> {
    let is_pipe = |stat: FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFIFO.bits();
    let blocks = stream.is_terminal() || fstat(stream).is_ok_and(is_pipe);
    blocks.then(|| anew(path)).and_then(Result::ok)
}

/// Opens what a descriptor leads to once more, by its path below /proc or /dev: to add to it, and not to block.
pub(crate) fn anew(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}
