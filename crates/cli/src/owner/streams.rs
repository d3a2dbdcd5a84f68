//! Pipes in place of root's standard streams, and the threads that copy between the two.

use std::{
    fs::File,
    io::{self, ErrorKind, PipeReader, PipeWriter, Read, Seek, SeekFrom, pipe},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    process::Stdio,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use kennel::internal::is_one_file;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{Uid, fchown},
};

use crate::process::{
    descriptor::{wait, write_all},
    start_thread,
};

/// The wanted size of a pipe, and of a read.
const SIZE: usize = 1 << 18;

/// The copies of root's streams.
pub(super) struct Streams {
    input: Option<Input>,
    /// Dropping it tells the threads that everything has been written.
    running: Vec<PipeWriter>,
    outputs: Receiver<io::Result<()>>,
}

impl Streams {
    /// Pipes for the streams that are no terminal, in the order stdin, stdout, stderr. Their other ends
    /// belong to the owner, who may open `/dev/stdout`.
    ///
    /// # Errors
    /// There is no descriptor or thread left.
    pub(super) fn open(is_terminal: [bool; 3], owner: Uid) -> io::Result<(Self, [Option<Stdio>; 3])> {
        let (tell, outputs) = channel();
        let mut streams = Self { input: None, running: Vec::new(), outputs };
        let [stdin, stdout, stderr] = is_terminal;
        let input = if stdin { None } else { Some(streams.input(owner)?) };
        let one = !stdout && !stderr && is_one_file(io::stdout(), io::stderr());
        let output = match stdout {
            true => None,
            false => Some(streams.output(io::stdout().as_fd().try_clone_to_owned()?, owner, &tell)?),
        };
        let errors = match (&output, stderr) {
            (_, true) => None,
            // One order holds for both.
            (Some(output), false) if one => Some(output.try_clone()?),
            _ => Some(streams.output(io::stderr().as_fd().try_clone_to_owned()?, owner, &tell)?),
        };
        Ok((streams, [input.map(Stdio::from), output.map(Stdio::from), errors.map(Stdio::from)]))
    }

    fn input(&mut self, owner: Uid) -> io::Result<PipeReader> {
        let (to_owner, end) = pipe()?;
        fchown(&to_owner, Some(owner), None)?;
        let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        self.input = Some(Input::start(from, end, &to_owner)?);
        Ok(to_owner)
    }

    fn output(&mut self, to: OwnedFd, owner: Uid, tell: &Sender<io::Result<()>>) -> io::Result<PipeWriter> {
        let (from, of_owner) = pipe()?;
        fchown(&of_owner, Some(owner), None)?;
        set_nonblocking(&from)?;
        // The kernel limits the pipe buffers of one user; beyond that the pipe keeps the usual size.
        let _ = fcntl(&of_owner, FcntlArg::F_SETPIPE_SZ(i32::try_from(SIZE).unwrap_or(i32::MAX)));
        let (until, running) = pipe()?;
        self.running.push(running);
        let tell = tell.clone();
        start_thread(move || drop(tell.send(copy(from, &to, &until))))?;
        Ok(of_owner)
    }

    /// Waits until root's streams have taken everything, now that the owner's process has ended. `patience`
    /// says how long to wait before it is asked again; `None` gives up.
    ///
    /// # Errors
    /// A stream did not take everything: `WouldBlock` if nobody reads it. A reader that closed it is no
    /// error.
    pub(super) fn finish(self, mut patience: impl FnMut() -> Option<Duration>) -> io::Result<()> {
        let Self { input, running, outputs } = self;
        input.into_iter().for_each(Input::give_back);
        let mut left = running.len();
        drop(running);
        let mut all = Ok(());
        while left > 0 {
            let Some(time) = patience() else { return Err(crate::process::descriptor::not_read()) };
            match outputs.recv_timeout(time) {
                Ok(copied) => {
                    left -= 1;
                    all = all.and(copied);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        all
    }
}

/// Copies until the owner's processes have closed the pipe, or until it is empty and `until` hangs up. Others
/// may hold it then, and go on writing.
fn copy(mut from: PipeReader, to: &OwnedFd, until: &PipeReader) -> io::Result<()> {
    let mut bytes = vec![0; SIZE];
    let mut left: Option<usize> = None;
    loop {
        if left.is_none() && wait_until(&from, PollFlags::POLLIN, until) {
            left = Some(size_of_pipe(&from));
        }
        let room = left.unwrap_or(SIZE).min(SIZE);
        match from.read(bytes.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                match write_all(to, bytes.get(..count).unwrap_or_default()) {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                    written => written?,
                }
                left = left.map(|left| left - count);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && left.is_some() => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for `events`, or until `until` hangs up. Returns whether it has.
fn wait_until(fd: impl AsFd, events: PollFlags, until: &PipeReader) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), events), PollFd::new(until.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::NONE);
    let [_, is_over] = fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
    is_over
}

fn size_of_pipe(pipe: impl AsFd) -> usize {
    let size = fcntl(pipe, FcntlArg::F_GETPIPE_SZ).ok().and_then(|size| usize::try_from(size).ok());
    size.unwrap_or(SIZE)
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop).map_err(io::Error::from)
}

/// The copy of root's stdin.
struct Input {
    /// Only of a regular file: what nobody has read of it goes back.
    file: Option<Ahead>,
}

/// A regular file that is read ahead.
struct Ahead {
    file: File,
    begin: u64,
    /// The owner's end, opened again: whoever has the other descriptors cannot make a read of this one wait.
    rest: File,
    /// Dropping it ends the copy.
    running: PipeWriter,
    /// Returns how many bytes it has written.
    copying: JoinHandle<u64>,
}

impl Input {
    fn start(mut from: File, to: PipeWriter, owner: &PipeReader) -> io::Result<Self> {
        if !from.metadata()?.is_file() {
            start_thread(move || pour(&mut from, &to))?;
            return Ok(Self { file: None });
        }
        set_nonblocking(&to)?;
        let (begin, file) = (from.stream_position()?, from.try_clone()?);
        let flags = libc::O_NONBLOCK;
        let path = format!("/proc/self/fd/{}", owner.as_raw_fd());
        let rest = File::options().read(true).custom_flags(flags).open(path)?;
        let (until, running) = pipe()?;
        let copying = start_thread(move || read_ahead(&from, begin, &to, &until))?;
        Ok(Self { file: Some(Ahead { file, begin, rest, running, copying }) })
    }

    /// Moves the file to the first byte that nobody has read, as if the command had read it itself.
    fn give_back(self) {
        let Some(Ahead { mut file, begin, rest, running, copying }) = self.file else { return };
        drop(running);
        let written = copying.join().unwrap_or_default();
        let read = written.saturating_sub(unread(&rest));
        let _ = file.seek(SeekFrom::Start(begin + read));
    }
}

/// Empties a pipe, and counts. It reads no more than a pipe holds: somebody may go on writing.
fn unread(pipe: &File) -> u64 {
    let (mut bytes, mut count) = ([0; 8192], 0);
    let most = size_of_pipe(pipe) as u64;
    while count < most
        && let Ok(read @ 1..) = (&*pipe).read(&mut bytes)
    {
        count += read as u64;
    }
    count
}

/// Copies a stream that cannot be read again.
fn pour(from: &mut File, to: &PipeWriter) {
    let mut bytes = vec![0; SIZE];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                if write_all(to, bytes.get(..count).unwrap_or_default()).is_err() {
                    return;
                }
            }
            // Another process has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = wait(&*from, PollFlags::POLLIN, None);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Copies a regular file and leaves its position where it is, until `until` hangs up. Returns how much it has
/// written.
fn read_ahead(from: &File, begin: u64, to: &PipeWriter, until: &PipeReader) -> u64 {
    let mut bytes = vec![0; SIZE];
    let mut written = 0;
    loop {
        let Ok(count @ 1..) = from.read_at(&mut bytes, begin + written) else { return written };
        let mut left = bytes.get(..count).unwrap_or_default();
        while !left.is_empty() {
            if wait_until(to, PollFlags::POLLOUT, until) {
                return written;
            }
            match nix::unistd::write(to, left) {
                Ok(count) => {
                    written += count as u64;
                    left = left.get(count..).unwrap_or_default();
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(_) => return written,
            }
        }
    }
}
