//! Makes calls in place of a command, where its seccomp filter cannot tell from the arguments what is
//! allowed: seccomp_unotify(2).
//!
//! A filter sees numbers and no files. The supervisor finds the file as the caller would, holds it by a
//! descriptor, looks at what it holds, and makes the call itself on that descriptor. It never lets a call go
//! on that the filter alone would refuse: the command could change the path in its memory meanwhile, or what
//! is at the path.
//!
//! It has no more rights than the command: the same user and groups, no capability over files, and the mounts
//! of the command, because it opens files below the caller's own root. There is one exception
//! ([`git_files`]): a few files of git, by their exact names, in a directory that is read-only inside. If it
//! is gone, the kernel answers `ENOSYS`.

mod attributes;
pub(crate) mod caller;
pub(crate) mod git_files;
pub(crate) mod observed;
pub(crate) mod refused;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::unistd::geteuid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::launch::supervisor::attributes::Request;
use crate::launch::supervisor::caller::{Caller, Failure};
use crate::launch::supervisor::git_files::GitFiles;
use crate::plan::seccomp::rule::Verdict;
use crate::plan::seccomp::table::{SystemCall, judge};
use crate::sys;
use crate::sys::dirfd;

/// The name of the thread that answers.
const NAME: &str = "kennel-seccomp";

/// Stack of a thread that answers, in bytes, with room to spare.
const STACK: usize = 128 << 10;

/// How long a thread waits for another question before it ends, in milliseconds.
const IDLE: u16 = 1_000;

/// How long to wait if the kernel refuses a thread.
const NO_THREAD: Duration = Duration::from_millis(10);

/// The task that waits for questions. It ends when no process has the filter any more, or when this is
/// dropped; later questions then get `ENOSYS`.
#[derive(Debug)]
pub(crate) struct Supervisor {
    task: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
}

impl Supervisor {
    /// Follows the listener of a filter. Questions are rare, so a thread answers only while there are some.
    ///
    /// # Errors
    /// The kernel does not watch another descriptor.
    pub(crate) fn follow(listener: OwnedFd, files: Option<GitFiles>) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(Asked { listener: Arc::new(listener), files });
        let heir = Heir { asked, is_over: Arc::clone(&is_over) };
        let listener = sys::watched(Arc::clone(&heir.asked.listener), Interest::READABLE)?;
        Ok(Self { task: tokio::spawn(attend(listener, heir)), is_over })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.task.abort();
    }
}

/// Who asks, and the files of git that are in question.
struct Asked {
    listener: Arc<OwnedFd>,
    files: Option<GitFiles>,
}

impl Asked {
    fn serve(&self, patience: PollTimeout) -> Served {
        serve(&self.listener, patience, |listener| respond(listener, self.files.as_ref()))
    }
}

/// Goes on with a thread if the runtime ends before the sandbox, as that of a session may.
struct Heir {
    asked: Arc<Asked>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Heir {
    fn drop(&mut self) {
        if !self.is_over.load(Relaxed) {
            let asked = Arc::clone(&self.asked);
            let serve = move || {
                asked.serve(PollTimeout::NONE);
            };
            if let Err(error) = start_thread(NAME, serve) {
                tracing::error!(%error, "no thread answers for a seccomp filter any more");
            }
        }
    }
}

async fn attend(listener: AsyncFd<Arc<OwnedFd>>, heir: Heir) {
    while let Ok(mut ready) = listener.readable().await {
        match waiting(listener.get_ref(), PollTimeout::ZERO) {
            // It told of a question that the thread has answered since.
            Ok(events) if events.is_empty() => {
                ready.clear_ready();
                continue;
            }
            // No process has the filter any more. Mostly this is so, and no thread is started for it.
            Ok(events) if !events.contains(PollFlags::POLLIN) => break,
            _ => {}
        }
        let asked = Arc::clone(&heir.asked);
        let (ended, end) = oneshot::channel();
        let started = start_thread(NAME, move || {
            let _ = ended.send(asked.serve(PollTimeout::from(IDLE)));
        });
        match started {
            // Of a question that comes after the thread has looked for the last time, the descriptor tells
            // again.
            Ok(()) if end.await == Ok(Served::Idle) => ready.clear_ready(),
            Ok(()) => break,
            Err(_) => tokio::time::sleep(NO_THREAD).await,
        }
    }
    heir.is_over.store(true, Relaxed);
}

/// What the listener tells: `POLLIN` if a process waits for an answer, other events if no process has the
/// filter any more. Empty if nothing came in time.
fn waiting(listener: impl AsFd, patience: PollTimeout) -> nix::Result<PollFlags> {
    let mut waits = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut waits, patience)?;
    Ok(waits.iter().filter_map(PollFd::revents).fold(PollFlags::empty(), |all, one| all | one))
}

/// Starts a thread that answers questions. It is a thread, not a task: a command must not wait for a busy
/// runtime.
///
/// # Errors
/// The kernel refuses a thread.
pub(crate) fn start_thread(name: &str, serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    let serve = move || {
        // The other threads of this program handle its signals.
        let _ = SigSet::all().thread_block();
        // Without a thread that has the rights of a command and no others, nobody answers.
        let served = dirfd::of_a_command(|| {
            serve();
            Ok(())
        });
        if let Err(error) = served {
            tracing::error!(%error, "a thread cannot give up its capabilities");
        }
    };
    thread.spawn(serve).map(drop)
}

/// Why [`serve`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// No process has the filter any more, or no call can be answered.
    Ended,
    /// No question came for some time.
    Idle,
}

/// Answers the kernel until no process has the filter any more, or no question comes. `answer` answers one
/// call.
pub(crate) fn serve(
    listener: &OwnedFd,
    patience: PollTimeout,
    answer: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Served {
    let listener = listener.as_fd();
    // It is as right without.
    let _ = sys::take_turns(listener);
    loop {
        match waiting(listener, patience) {
            Err(Errno::EINTR) => continue,
            Ok(events) if events.is_empty() => return Served::Idle,
            Ok(events) if events.contains(PollFlags::POLLIN) => {}
            _ => return Served::Ended,
        }
        match answer(listener) {
            // Somebody killed the caller meanwhile, or a signal interrupted the ioctl.
            Ok(()) | Err(Errno::ENOENT | Errno::EINTR) => {}
            // No call can be answered any more. Closing the listener makes the kernel refuse all calls.
            Err(_) => return Served::Ended,
        }
    }
}

/// Answers one question.
fn respond(listener: BorrowedFd<'_>, files: Option<&GitFiles>) -> Result<(), Errno> {
    let call = sys::receive_notification(listener).map_err(errno)?;
    answer(listener, &call, files).send(listener, call.id)
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The call was made. 0, or the kernel's errno.
    Made(i32),
    /// The call was made, and the caller has the file at this number.
    Opened(i32),
    /// The call was not made, and returns 0: root cannot give the file to that owner.
    Pretended,
    /// The call would leave a set-group-ID file behind.
    Refused,
    /// The kernel makes the call, and checks it as if nobody had been asked.
    LetGo,
}

impl Answer {
    /// What the call returns; 0 if it succeeds.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Self::Made(errno) => errno,
            Self::Opened(_) | Self::Pretended | Self::LetGo => 0,
            Self::Refused => libc::EPERM,
        }
    }

    /// Answers the kernel.
    ///
    /// # Errors
    /// Those of the ioctl.
    pub(crate) fn send(self, listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        let sent = match (self, self.errno()) {
            (Self::LetGo, _) => sys::continue_notification(listener, id),
            (Self::Opened(number), _) => sys::answer_notification(listener, id, Ok(number)),
            (_, 0) => sys::answer_notification(listener, id, Ok(0)),
            (_, errno) => sys::answer_notification(listener, id, Err(errno)),
        };
        sent.map_err(errno)
    }
}

/// The answer to a call of which the filter asks.
pub(crate) fn answer(
    listener: BorrowedFd<'_>,
    call: &libc::seccomp_notif,
    files: Option<&GitFiles>,
) -> Answer {
    let asked = SystemCall { number: call.data.nr.cast_unsigned(), arguments: call.data.args };
    let question = match judge(&asked).0 {
        Verdict::Ask(question) => question,
        // Only the question about files is asked before this verdict: the call may go on, because the kernel
        // checks it.
        Verdict::Allow => {
            let made = files.and_then(|files| files.answer(listener, call, &asked));
            return made.unwrap_or(if files.is_some() { Answer::LetGo } else { Answer::Refused });
        }
        Verdict::Refuse(errno) => return Answer::Made(errno.cast_signed()),
        Verdict::Pretend | Verdict::Kill => return Answer::Refused,
    };
    let made = Caller::of(listener, call).and_then(|caller| Request::of(&asked)?.carry_out(&caller));
    match made {
        Ok(answer) => answer,
        Err(Failure::Errno(errno)) => Answer::Made(errno as i32),
        // As a filter without a supervisor would answer.
        Err(Failure::Unseen) => match question.unanswered(geteuid().is_root()) {
            Verdict::Pretend => Answer::Pretended,
            _ => Answer::Refused,
        },
    }
}

/// The errno of a failed system call.
pub(crate) fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
