//! A session: prepared once, then a command costs about what a bare exec costs.
//!
//! The zygote inside forks workers ahead of need; each waits, fully confined, for one command and is gone with it.
//! There is no task and no thread on this side: whoever takes a worker orders the next one.

pub(crate) mod changes;
pub(crate) mod confine;
pub(crate) mod files;
pub(crate) mod live;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod mount_state;
pub(crate) mod pool;
pub(crate) mod prepare;
pub(crate) mod sandbox;
pub(crate) mod stats;
pub(crate) mod view_fd;
pub(crate) mod worker;

use std::ffi::OsStr;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::command::Command;
use crate::command::source::WorkerSource;
use crate::network::ask::{Ask, Decision, NetworkRequest};
use crate::plan::compile::Compiled;
use crate::policy::Policy;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::session::live::Live;
use crate::session::stats::Stats;

/// Workers that are kept ready by default.
const READY: usize = 2;

/// A sandbox for many commands, one after the other or side by side.
///
/// The commands share what the policy grants, the loopback of their network namespace, and private places if the
/// policy says so ([`Policy::tmp`]). They share nothing else: each has its own pid, mount and ipc namespaces, its own
/// `/proc` and, unless the policy says otherwise, its own `/tmp` and `HOME`.
///
/// A clone is the same session. When the last one is dropped, every process of the session is killed.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Session};
///
/// let session = Session::prepare(&Policy::profile(Profile::RepoWrite, ".")).await?;
/// for target in ["build", "test"] {
///     let out = session.command("make").arg(target).output().await?;
///     println!("{target}: {}", out.status);
/// }
/// session.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    owner: Arc<Owner>,
}

/// Ends the session with the last handle, although commands hold on to it too.
#[derive(Debug)]
struct Owner {
    live: Arc<Live>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.live.end();
    }
}

/// A session that others hold.
#[derive(Clone, Debug)]
pub(crate) struct WeakSession(Weak<Owner>);

impl WeakSession {
    /// The session, as long as somebody holds it.
    pub(crate) fn upgrade(&self) -> Option<Session> {
        self.0.upgrade().map(|owner| Session { owner })
    }
}

impl Session {
    pub(crate) fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.owner))
    }

    /// Prepares a session: checks and compiles the policy, starts the zygote, and has it fork the first workers.
    ///
    /// It blocks its thread while it looks at what the policy names on the host: some milliseconds, a second where a
    /// repository has a thousand submodules. So does the first command after something was replaced that walls stand on.
    ///
    /// # Errors
    /// Those of [`Sandbox::new`](crate::session::sandbox::Sandbox::new), and everything that keeps the zygote from setting up; nothing of
    /// the session is left then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn prepare(policy: &Policy) -> Result<Self, Error> {
        Self::builder(policy).prepare().await
    }

    /// Prepares a session with settings other than the defaults.
    #[must_use]
    pub fn builder(policy: &Policy) -> SessionBuilder<'_> {
        SessionBuilder { policy, ready: READY, ask: None }
    }

    /// A command to run in this session. A `program` without a slash is looked for in the command's PATH, inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(Arc::clone(&self.owner.live) as Arc<dyn WorkerSource>, program.as_ref())
    }

    pub(crate) fn live(&self) -> &Live {
        &self.owner.live
    }

    pub(crate) fn compiled(&self) -> &Compiled {
        &self.owner.live.prepared().compiled
    }

    /// What is enforced for its next command.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.owner.live.enforcement()
    }

    /// Whether it takes no more commands: it was shut down, or its zygote was killed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.owner.live.is_gone()
    }

    /// How it is doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.owner.live.stats()
    }

    /// Kills every process of the session and waits until they are gone. Commands that run end with
    /// [`Error::SessionEnded`]. Idempotent.
    pub async fn shutdown(&self) {
        self.owner.live.end();
        self.owner.live.gone().await;
    }
}

/// A session about to be prepared.
#[derive(Clone, Debug)]
pub struct SessionBuilder<'p> {
    policy: &'p Policy,
    ready: usize,
    ask: Option<Ask>,
}

impl SessionBuilder<'_> {
    /// How many workers are kept ready, each of some 100 KiB. Default: 2. With 0 each command waits for its own.
    ///
    /// More commands than that can run at once: this is how many can start at the same moment without waiting.
    /// Under memory pressure fewer are kept.
    #[must_use]
    pub fn ready_workers(mut self, ready: usize) -> Self {
        self.ready = ready;
        self
    }

    /// Lets `callback` decide about connections that neither list of the policy decides; see
    /// [`Sandbox::on_request`](crate::session::sandbox::Sandbox::on_request).
    #[must_use]
    pub fn on_request<F, A>(mut self, patience: Duration, callback: F) -> Self
    where
        F: Fn(NetworkRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Decision> + Send + 'static,
    {
        self.ask = Some(Ask::new(patience, callback));
        self
    }

    /// Prepares the session.
    ///
    /// # Errors
    /// Those of [`Session::prepare`].
    ///
    /// # Panics
    /// Those of [`Session::prepare`].
    pub async fn prepare(&self) -> Result<Session, Error> {
        let live = Arc::new(
            Live::prepare(self.policy, self.ready, self.ask.as_ref().map(Ask::for_new_session)).await?,
        );
        Ok(Session { owner: Arc::new(Owner { live }) })
    }
}
