//! Writing to descriptors that are not ours alone. Whoever has one too, the command for one, can make it non-blocking: that it
//! takes nothing now is an error there, and means to wait.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::write,
};

/// What a terminal has room for may be less than a line's end, which it takes whole.
const BREATH: Duration = Duration::from_millis(1);

/// Writes all of it.
///
/// # Errors
/// Those of write(2). `WouldBlock` where a descriptor that does not block has taken nothing for longer than `patience`.
pub(crate) fn write_all(to: impl AsFd, mut bytes: &[u8], patience: Option<Duration>) -> io::Result<()> {
    let mut taken = Instant::now();
    while !bytes.is_empty() {
        match write(&to, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                taken = Instant::now();
            }
            Err(Errno::EAGAIN) => {
                let left = patience.map(|patience| patience.saturating_sub(taken.elapsed()));
                if left == Some(Duration::ZERO) {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                wait(&to, PollFlags::POLLOUT, left);
                sleep(BREATH);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits until there is room in a descriptor, or something to read; no longer than `left`. Whoever tries again sees.
pub(crate) fn wait(on: impl AsFd, what: PollFlags, left: Option<Duration>) {
    let left = left.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
    let _ = poll(&mut [PollFd::new(on.as_fd(), what)], left);
}

/// Opens what a descriptor leads to once more, by its path below /proc or /dev: to add to it, and not to block.
pub(crate) fn anew(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}
