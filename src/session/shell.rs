//! A shell that keeps its state: one bash or sh, in which one call after the other runs a snippet.

pub(crate) mod calling;
pub(crate) mod keeper;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::{Future, pending};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::command::left_pipes::LeftPipes;
use crate::command::outlet::OutputCopier;
use crate::command::source::WorkerSource;
use crate::process::output::ChildOutput;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::report::shell::ShellOrigin;
use crate::session::shell::calling::{CallOutput, Called, Calling, Job, check};
use crate::session::shell::keeper::Keeper;
use crate::sys::closing::HeldFd;

/// A shell in a session: bash, or sh where the search path has no bash. What a snippet changes in the shell
/// lasts: the directory, variables, functions, aliases, options.
///
/// The shell is one command of the session, behind the walls of any command, and its snippets share its
/// processes and private directories. A clone is the same shell. Calls run one after the other, in the order
/// in which they came.
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), kennel::Error> {
/// let shell = session.shell();
/// shell.run("cd src && export MODE=fast").await?;
/// let out = shell.run("pwd; echo $MODE").await?;
/// assert_eq!(out.stdout, b"/home/me/repo/src\nfast\n");
/// assert_eq!(out.directory.as_deref(), Some("/home/me/repo/src".as_ref()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Shell {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session: Arc<dyn WorkerSource>,
    /// Each call holds it.
    state: Arc<tokio::sync::Mutex<ShellState>>,
    /// Counts interrupts.
    interrupts: watch::Sender<u64>,
    left: LeftPipes,
}

/// What one call at a time has.
#[derive(Debug, Default)]
pub(crate) struct ShellState {
    keeper: Option<Keeper>,
    /// Whether a shell has run before.
    has_had_one: bool,
}

/// What a snippet did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShellOutput {
    /// How the snippet ended. Its status is `$?`. After a timeout or an interrupt `ended` says so, and the
    /// status is usually 130. The usage of resources is only known when the shell has ended, and is that of
    /// the whole shell.
    pub outcome: Outcome,
    /// What the snippet wrote to stdout. If a cap cut it, it ends with a marker.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, likewise.
    pub stderr: Vec<u8>,
    /// The directory of the shell after the snippet. `None` if the shell has ended, or cannot tell.
    pub directory: Option<PathBuf>,
    /// Which shell ran it.
    pub origin: ShellOrigin,
    /// Whether the shell has ended: the snippet left it by `exit` or `exec`, or the shell was killed. The
    /// next call starts a new one.
    pub has_ended: bool,
}

impl Shell {
    pub(crate) fn new(session: Arc<dyn WorkerSource>) -> Self {
        let (state, left) = Default::default();
        Self { inner: Arc::new(Inner { session, state, interrupts: watch::Sender::new(0), left }) }
    }

    /// Runs a snippet and collects what it writes. A snippet is what a file of the shell may have, of any
    /// length. Its stdin is `/dev/null`.
    ///
    /// It returns when the shell is ready for the next snippet. What processes in the background write later
    /// is read and dropped, so that they can go on.
    ///
    /// Dropping the future interrupts the snippet, as [`interrupt`](Self::interrupt) does.
    ///
    /// # Errors
    /// The snippet has a NUL byte; everything that keeps a command of the session from starting; the sandbox
    /// has neither bash nor sh. A snippet that fails is no error: see [`Outcome::status`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(&self, snippet: impl AsRef<OsStr>) -> Result<ShellOutput, Error> {
        self.snippet(snippet).output().await
    }

    /// A snippet with settings of its own.
    #[must_use]
    pub fn snippet(&self, text: impl AsRef<OsStr>) -> Snippet {
        Snippet {
            shell: self.clone(),
            text: text.as_ref().to_owned(),
            timeout: None,
            cap: None,
            is_marked: true,
        }
    }

    /// Interrupts the snippet that runs now: SIGINT to the shell and its foreground, as ^C does in a
    /// terminal. Two seconds later what the snippet has started is killed, and after two more the shell.
    /// Calls that wait for their turn go on.
    pub fn interrupt(&self) {
        self.inner.interrupts.send_modify(|count| *count += 1);
    }

    /// Kills the shell and everything in it, once the call that runs has ended. The next call starts a new
    /// one.
    pub async fn end(&self) {
        let keeper = self.inner.state.lock().await.keeper.take();
        if let Some(mut keeper) = keeper {
            // Dropping it kills what is left.
            let _ = keeper.child.kill().await;
        }
        self.inner.left.clear();
    }
}

/// A snippet for a shell, with settings of its own.
pub struct Snippet {
    shell: Shell,
    text: OsString,
    timeout: Option<Duration>,
    cap: Option<u64>,
    is_marked: bool,
}

/// Does not show the text, which may hold secrets.
impl fmt::Debug for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snippet")
            .field("timeout", &self.timeout)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

impl Snippet {
    /// Interrupts the snippet after this time. The policy's limit holds for each snippet too; the shorter one
    /// counts. Waiting for earlier calls does not count.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How many bytes of stdout and of stderr are kept, at most as many as the policy keeps.
    #[must_use]
    pub fn output_cap(mut self, bytes: u64) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Leaves out the line that follows output which a cap cut.
    pub(crate) fn unmarked(mut self) -> Self {
        self.is_marked = false;
        self
    }

    /// Runs it, as [`Shell::run`].
    ///
    /// # Errors
    /// As for [`Shell::run`].
    ///
    /// # Panics
    /// As for [`Shell::run`].
    pub async fn output(self) -> Result<ShellOutput, Error> {
        self.collect(pending()).await?.ok_or(Error::Lost)
    }

    /// Runs it. `stop` interrupts it; before its turn, it then does not run at all, and the result is `None`.
    pub(crate) async fn collect(self, stop: impl Future<Output = ()>) -> Result<Option<ShellOutput>, Error> {
        let shell = self.shell.clone();
        let Some(called) = self.call(None, stop).await? else { return Ok(None) };
        let Called { mut outcome, directory, origin, has_ended, output } = called;
        let CallOutput::Collected(streams) = output else { return Err(Error::Lost) };
        let [stdout, stderr] = *streams;
        let ((out, stdout), (err, stderr)) = (stdout.finish()?, stderr.finish()?);
        outcome.count(out.as_ref(), err.as_ref());
        shell.leave([out, err]);
        let (stdout, stderr) = (stdout.rest, stderr.rest);
        Ok(Some(ShellOutput { outcome, stdout, stderr, directory, origin, has_ended }))
    }

    /// Like [`collect`](Self::collect), with the output copied to these descriptors. Once `hurry` is ready,
    /// its end waits one second at most for readers of the output.
    pub(crate) async fn copy(
        self,
        [stdout, stderr]: [HeldFd; 2],
        stop: impl Future<Output = ()>,
        hurry: impl Future<Output = ()>,
    ) -> Result<Option<ShellOutput>, Error> {
        let shell = self.shell.clone();
        let copier = OutputCopier::open(Some(stdout), Some(stderr))?;
        let Some(called) = self.call(Some(copier), stop).await? else { return Ok(None) };
        let Called { mut outcome, directory, origin, has_ended, output } = called;
        let CallOutput::Copying(copies) = output else { return Err(Error::Lost) };
        let left = copies.finish_and_keep(&mut outcome, hurry).await;
        shell.leave(left);
        let (stdout, stderr) = (Vec::new(), Vec::new());
        Ok(Some(ShellOutput { outcome, stdout, stderr, directory, origin, has_ended }))
    }

    async fn call(
        self,
        copier: Option<OutputCopier>,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Called>, Error> {
        let Self { shell, text: snippet, timeout, cap, is_marked } = self;
        check(&snippet)?;
        let mut stop = pin!(stop);
        let Inner { session, state, interrupts, .. } = &*shell.inner;
        let state = tokio::select! {
            biased;
            () = &mut stop => return Ok(None),
            state = Arc::clone(state).lock_owned() => state,
        };
        // Dropped with this future: then the task interrupts the snippet.
        let (here, caller) = oneshot::channel();
        let mut here = Some(here);
        let job = Job { snippet, timeout, cap, is_marked, copier };
        let interrupts = interrupts.subscribe();
        let calling = Calling { session: Arc::clone(session), state, interrupts, caller, job };
        let mut task = tokio::spawn(calling.run());
        loop {
            tokio::select! {
                biased;
                called = &mut task => return called.map_err(|_| Error::Lost)?.map(Some),
                () = &mut stop, if here.is_some() => drop(here.take()),
            }
        }
    }
}

impl Shell {
    /// Processes in the background may hold the pipes of their call.
    fn leave(&self, pipes: [Option<ChildOutput>; 2]) {
        pipes.into_iter().flatten().for_each(|pipe| self.inner.left.add(pipe));
    }
}
