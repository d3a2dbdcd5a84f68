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
//!
//! With `explain` and `learn` it also writes down what it is asked about ([`Sink`]). Then the filter asks
//! about calls that it would allow as well. Those go on, and nothing is decided about them here: the kernel
//! checks them as if nobody had been asked.

mod answer;
mod attributes;
pub(crate) mod caller;
pub(crate) mod failed_uses;
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
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::launch::supervisor::answer::{Answer, errno};
use crate::launch::supervisor::attributes::AttributeCall;
use crate::launch::supervisor::caller::{CallFailure, WaitingThread};
use crate::launch::supervisor::git_files::GitFiles;
use crate::launch::supervisor::observed::Recorder;
use crate::launch::supervisor::refused::{Refusals, RefusedCall};
use crate::plan::compile::Compiled;
use crate::plan::seccomp::rule::{FilterUser, FilterVerdict};
use crate::plan::seccomp::table::{SystemCall, judge};
use crate::report::error::Error;
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

/// What a supervisor writes down.
#[derive(Clone, Debug, Default)]
pub(crate) enum Sink {
    #[default]
    Nothing,
    /// With `explain`: what is refused.
    Refusals(Refusals),
    /// With `learn`: the paths that the command uses.
    Paths(Recorder),
}

impl Sink {
    fn of(compiled: &Compiled) -> Self {
        match (compiled.commands.learns, compiled.commands.explains) {
            (true, _) => Self::Paths(Recorder::new(Arc::clone(&compiled.view))),
            (false, true) => Self::Refusals(Refusals::new(Arc::clone(&compiled.view))),
            (false, false) => Self::Nothing,
        }
    }
}

/// Answers for one filter.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) sink: Sink,
    /// `None` if a thread answers, which ends when no process has the filter any more.
    _task: Option<Task>,
}

impl Supervisor {
    /// Follows the listener of a filter of this plan.
    ///
    /// Questions are rare, so a thread answers only while there are some. Where everything is written down
    /// they are not, and the thread is there from the start.
    ///
    /// # Errors
    /// The kernel does not watch another descriptor, or refuses a thread.
    pub(crate) fn follow(listener: OwnedFd, compiled: &Compiled) -> Result<Self, Error> {
        let sink = Sink::of(compiled);
        let files = GitFiles::of(&compiled.view).filter(|_| !compiled.commands.learns);
        let user = compiled.commands.user;
        let asked = Asked { listener: Arc::new(listener), files, user, sink: sink.clone() };
        let task = match sink {
            Sink::Nothing => Task::spawn(asked).map(Some),
            Sink::Refusals(_) | Sink::Paths(_) => {
                let serve = move || {
                    asked.serve(PollTimeout::NONE);
                };
                start_thread(serve).map(|()| None)
            }
        };
        Ok(Self { sink, _task: task.map_err(Error::io("answer for the seccomp filter"))? })
    }
}

/// The task that waits for questions. It ends when no process has the filter any more, or when this is
/// dropped; later questions then get `ENOSYS`.
#[derive(Debug)]
struct Task {
    handle: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
}

impl Task {
    fn spawn(asked: Asked) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let heir = Heir { asked: Arc::new(asked), is_over: Arc::clone(&is_over) };
        let listener = sys::watched(Arc::clone(&heir.asked.listener), Interest::READABLE)?;
        Ok(Self { handle: tokio::spawn(attend(listener, heir)), is_over })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.handle.abort();
    }
}

/// Who asks, the files of git that are in question, and what is written down.
struct Asked {
    listener: Arc<OwnedFd>,
    files: Option<GitFiles>,
    user: FilterUser,
    sink: Sink,
}

impl Asked {
    fn serve(&self, patience: PollTimeout) -> Served {
        serve(&self.listener, patience, |listener| self.respond(listener))
    }

    /// Answers one question.
    fn respond(&self, listener: BorrowedFd<'_>) -> Result<(), Errno> {
        let call = sys::receive_notification(listener).map_err(errno)?;
        let asked = SystemCall { number: call.data.nr.cast_unsigned(), arguments: call.data.args };
        let (verdict, because) = judge(&asked, self.user);
        let answer = self.answer(listener, &call, &asked, verdict);
        // Before the answer: when the command ends, its last call must be in the log.
        match &self.sink {
            Sink::Nothing => {}
            Sink::Paths(recorder) => recorder.add(listener, &call),
            Sink::Refusals(refusals) => match (verdict, answer) {
                (FilterVerdict::Refuse(_), _) | (_, Answer::Pretended | Answer::Refused) => {
                    refusals.add(listener, &call, RefusedCall { errno: answer.errno(), because });
                }
                (_, Answer::LetGo) => refusals.add_use(listener, &call),
                _ => {}
            },
        }
        answer.send(listener, call.id)
    }

    /// The answer to a call of which the filter asks.
    fn answer(
        &self,
        listener: BorrowedFd<'_>,
        call: &libc::seccomp_notif,
        asked: &SystemCall,
        verdict: FilterVerdict,
    ) -> Answer {
        let question = match verdict {
            FilterVerdict::Ask(question) => question,
            // Only questions about paths are asked before this verdict: the call may go on, because the
            // kernel checks it.
            FilterVerdict::Allow => {
                let asks_about_paths = self.files.is_some() || !matches!(self.sink, Sink::Nothing);
                let made = self.files.as_ref().and_then(|files| files.answer(listener, call, asked));
                return made.unwrap_or(if asks_about_paths { Answer::LetGo } else { Answer::Refused });
            }
            FilterVerdict::Refuse(errno) => return Answer::Made(errno.cast_signed()),
            FilterVerdict::Pretend | FilterVerdict::Kill => return Answer::Refused,
        };
        let made = WaitingThread::of(listener, call)
            .and_then(|caller| AttributeCall::of(asked)?.carry_out(&caller, self.user));
        match made {
            Ok(answer) => answer,
            Err(CallFailure::Errno(errno)) => Answer::Made(errno as i32),
            // As a filter without a supervisor would answer.
            Err(CallFailure::Unseen) => match question.unanswered(self.user) {
                FilterVerdict::Pretend => Answer::Pretended,
                _ => Answer::Refused,
            },
        }
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
            if let Err(error) = start_thread(serve) {
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
        let started = start_thread(move || {
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
fn start_thread(serve: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK);
    let serve = move || {
        // The other threads of this program handle its signals.
        let _ = SigSet::all().thread_block();
        // Without a thread that has the rights of a command and no others, nobody answers.
        let served = dirfd::without_capabilities(|| {
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
enum Served {
    /// No process has the filter any more, or no call can be answered.
    Ended,
    /// No question came for some time.
    Idle,
}

/// Answers the kernel until no process has the filter any more, or no question comes. `answer` answers one
/// call.
fn serve(
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
