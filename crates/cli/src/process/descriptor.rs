//! Writes to descriptors that other processes share and may have made non-blocking: `EAGAIN` then means to
//! wait.

use std::{
    fs::{self, File},
    io::{self, IsTerminal},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use kennel::internal::inherited_descriptor;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{FileStat, SFlag, fstat},
    unistd::{close, write},
};

use super::system;

/// Pause after a failed write: a terminal can report room for less than a line end, which it takes only
/// whole.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A pipe that poll(2) reports writable takes this many bytes at once: PIPE_BUF.
const PIECE: usize = 4096;

/// Resolves a path that names an inherited descriptor to the path of its file: Kennel appends to an audit log
/// later and hides it from commands, so it needs a name. Returns any other path unchanged.
///
/// # Errors
/// There is no such descriptor, or its file has no name.
pub(crate) fn resolve_descriptor(path: &Path) -> io::Result<PathBuf> {
    let Some(given) = inherited_descriptor(path).transpose()? else { return Ok(path.to_owned()) };
    let given = File::from(given);
    let named = system::name_of(&given)?;
    let (behind, there) = (given.metadata()?, fs::symlink_metadata(&named));
    let is_it = there.is_ok_and(|there| (there.dev(), there.ino()) == (behind.dev(), behind.ino()));
    if behind.is_file() && is_it {
        return Ok(named);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the descriptor does not refer to a regular file with a name",
    ))
}

/// Closes inherited descriptors except the standard ones. Descriptors that Kennel opened are close-on-exec
/// and stay open.
///
/// # Errors
/// Which ones there are is unknown: on Linux, /proc is not there.
pub(crate) fn close_inherited() -> io::Result<()> {
    let names = fs::read_dir(system::DESCRIPTORS)?
        .map(|entry| Ok(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok())));
    let numbers = names.collect::<io::Result<Vec<Option<i32>>>>()?;
    for number in numbers.into_iter().flatten().filter(|&number| number > 2) {
        if inherited_descriptor(format!("/dev/fd/{number}")).is_some_and(|given| given.is_ok()) {
            close(number)?;
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
///
/// # Errors
/// Those of write(2).
pub(crate) fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write_once(&to, bytes)? {
            0 => {
                wait(&to, PollFlags::POLLOUT, None);
                sleep(RETRY_PAUSE);
            }
            count => bytes = bytes.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Writes all of `bytes` without ever blocking in write(2), because nobody may be reading.
///
/// # Errors
/// Those of write(2). `WouldBlock` if the descriptor took nothing for longer than `patience`.
pub(crate) fn write_patiently(to: impl AsFd, bytes: &[u8], patience: Duration) -> io::Result<()> {
    write_while(to, bytes, |silence| Some(patience.saturating_sub(silence)).filter(|left| !left.is_zero()))
}

/// Writes all of `bytes` as [`write_patiently`] does. Calls `patience` with the time since the last progress;
/// it returns how long to wait before the next call, or `None` to give up.
///
/// # Errors
/// Those of write(2). `WouldBlock` if `patience` gave up.
pub(crate) fn write_while(
    to: impl AsFd,
    mut bytes: &[u8],
    mut patience: impl FnMut(Duration) -> Option<Duration>,
) -> io::Result<()> {
    let mut taken = Instant::now();
    while !bytes.is_empty() {
        let Some(left) = patience(taken.elapsed()) else { return Err(not_read()) };
        if !wait(&to, PollFlags::POLLOUT, Some(left)) {
            continue;
        }
        match write_once(&to, bytes.get(..PIECE).unwrap_or(bytes))? {
            0 => sleep(RETRY_PAUSE),
            count => {
                bytes = bytes.get(count..).unwrap_or_default();
                taken = Instant::now();
            }
        }
    }
    Ok(())
}

/// The error if nobody reads what is written.
pub(crate) fn not_read() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "nobody reads it")
}

/// Writes what the descriptor takes now. Returns the number of bytes.
fn write_once(to: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match write(to, bytes) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Ok(count) => Ok(count),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits for `what` for at most `left`. Returns whether it happened.
pub(crate) fn wait(on: impl AsFd, what: PollFlags, left: Option<Duration>) -> bool {
    let end = left.and_then(|left| Instant::now().checked_add(left));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(on.as_fd(), what)], poll_timeout(left)) {
            // A signal came: its handler has noted it.
            Err(Errno::EINTR) => {}
            // RLIMIT_NOFILE is 0, so poll(2) refuses any descriptor.
            Err(Errno::EINVAL) => return true,
            polled => return polled.is_ok_and(|count| count > 0),
        }
    }
}

/// Converts a time limit for poll(2); `None` waits forever.
pub(crate) fn poll_timeout(left: Option<Duration>) -> PollTimeout {
    left.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))
}

/// The path of a descriptor of this process.
pub(crate) fn path_of(number: i32) -> PathBuf {
    Path::new(system::DESCRIPTORS).join(number.to_string())
}

/// Opens a terminal or pipe again without blocking. Returns `None` for other streams and if that fails.
pub(crate) fn reopen_nonblocking(stream: impl AsFd + IsTerminal, number: i32) -> Option<File> {
    let is_pipe = |stat: FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFIFO.bits();
    let blocks = stream.is_terminal() || fstat(stream).is_ok_and(is_pipe);
    blocks.then(|| reopen(path_of(number))).and_then(Result::ok)
}

/// Opens the file behind a descriptor again, by its path below /proc or /dev, for non-blocking appends.
pub(crate) fn reopen(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}
