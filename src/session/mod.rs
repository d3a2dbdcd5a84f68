//! A session: prepared once, for many commands. A command then takes 1.1 to 1.3 times a bare spawn.
//!
//! A zygote in the sandbox forks workers in advance. Each worker is fully confined, waits for one command and
//! ends with it. This side has no task and no thread: a command that takes a worker orders the next one.

pub(crate) mod changes;
pub(crate) mod confine;
pub(crate) mod files;
pub(crate) mod live;
pub(crate) mod log;
pub(crate) mod mount_state;
pub(crate) mod pool;
pub(crate) mod ports;
pub(crate) mod prepare;
pub(crate) mod processes;
pub(crate) mod sandbox;
pub(crate) mod services;
pub(crate) mod shell;
pub(crate) mod snapshot;
pub(crate) mod warm;
pub(crate) mod zygote;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::command::detached::Detached;
use crate::command::source::WorkerSource;
use crate::command::{Command, CommandSource};
use crate::launch::prepared::Prepared;
use crate::network::ask::{Ask, Decision, NetworkRequest};
use crate::network::namespace::publish::Bound;
use crate::policy::Policy;
use crate::policy::profile::Profile;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::in_force::InForce;
use crate::session::live::Live;
use crate::session::log::stats::{Stats, Using};
use crate::session::prepare::prepare;
use crate::session::processes::SessionProcesses;
use crate::session::shell::Shell;
use crate::session::warm::WarmInterpreter;
use crate::sys::lexical::clean;
use crate::sys::locked;

/// How many workers a session keeps ready by default.
const READY: usize = 2;

/// A sandbox for many commands, one after the other or side by side.
///
/// The commands share the grants of the policy, the loopback interface of their network namespace, and
/// private directories if the policy says so ([`Policy::tmp`]). They share nothing else: each command has its
/// own pid, mount and ipc namespaces, its own `/proc` and, unless the policy says otherwise, its own `/tmp`
/// and `HOME`.
///
/// A clone is the same session. Dropping the last clone kills every process of the session.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Session};
///
/// let session = Session::prepare(&Policy::profile(Profile::RepoWrite, ".")).await?;
/// for target in ["build", "test"] {
///     let out = session.command("make").arg(target).output().await?;
///     println!("{target}: {}", out.outcome.status);
/// }
/// session.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    owner: Arc<Owner>,
}

/// Ends the session when the last handle is dropped. Commands hold only `live`, so they do not keep the
/// session alive.
#[derive(Debug)]
struct Owner {
    live: Arc<Live>,
    /// Those that have a name.
    shells: Mutex<BTreeMap<String, Shell>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.live.end();
    }
}

/// A handle that does not keep the session alive.
#[derive(Clone, Debug)]
pub(crate) struct WeakSession(Weak<Owner>);

impl WeakSession {
    /// The session; `None` after its last handle was dropped.
    pub(crate) fn upgrade(&self) -> Option<Session> {
        self.0.upgrade().map(|owner| Session { owner })
    }
}

impl Session {
    pub(crate) fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.owner))
    }

    /// Prepares a session: checks and compiles the policy, starts the zygote, and orders the first workers.
    ///
    /// It blocks its thread while it looks at the paths of the policy on the host: some milliseconds, or a
    /// second if a repository has a thousand submodules. The first command after somebody replaced a mounted
    /// file blocks as long.
    ///
    /// # Errors
    /// As for [`Sandbox::new`](crate::session::sandbox::Sandbox::new), and everything that keeps the zygote
    /// from setting up. Nothing of the session is left then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn prepare(policy: &Policy) -> Result<Self, Error> {
        Self::builder(policy).prepare().await
    }

    /// Prepares a session with settings other than the defaults.
    #[must_use]
    pub fn builder(policy: &Policy) -> SessionBuilder<'_> {
        SessionBuilder { policy: Cow::Borrowed(policy), ready: READY, ask: None }
    }

    /// A command to run in this session. A `program` without a slash is searched in the command's PATH, in
    /// the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(CommandSource::Session(self.source()), program.as_ref())
    }

    /// A new shell: [`Shell::run`] runs snippets in it, and what they change in the shell lasts. It ends with
    /// its last handle, or with the session. Its bash starts with the first call.
    #[must_use]
    pub fn shell(&self) -> Shell {
        Shell::new(self.source())
    }

    /// The shell with this name; a new one if there is none. It stays until the session ends.
    #[must_use]
    pub fn shell_with_id(&self, id: &str) -> Shell {
        let mut shells = locked(&self.owner.shells);
        shells.entry(id.to_owned()).or_insert_with(|| self.shell()).clone()
    }

    fn source(&self) -> Arc<dyn WorkerSource> {
        Arc::clone(&self.owner.live) as Arc<dyn WorkerSource>
    }

    /// The [detached](Command::detach) commands of this session, by their numbers: all that run, and the 64
    /// that ended last.
    #[must_use]
    pub fn detached(&self) -> Vec<Detached> {
        self.live().services().detached().all()
    }

    /// The detached command with this number; `None` if there was none, or it ended before the 64 that are
    /// remembered.
    #[must_use]
    pub fn detached_command(&self, id: u32) -> Option<Detached> {
        self.live().services().detached().get(id)
    }

    /// The interpreters that start before their command is known
    /// ([`Policy::warm`](field@crate::policy::Policy::warm)), and what became of them. A reason is the
    /// interpreter's own word.
    #[must_use]
    pub fn interpreters(&self) -> Vec<WarmInterpreter> {
        self.live().interpreters().list()
    }

    /// Waits until none of them starts any more: it waits for a command, or failed.
    pub async fn interpreters_started(&self) {
        self.live().interpreters().settled().await;
    }

    /// What runs in this session: every process of its commands, whoever started it, and none of Kennel's
    /// own. It is no snapshot: processes may start and end meanwhile.
    ///
    /// # Errors
    /// `/proc` of the host cannot be read; `ETIMEDOUT` if that takes longer than three seconds.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn processes(&self) -> Result<SessionProcesses, Error> {
        let keys =
            self.detached().iter().filter_map(|command| Some((command.id(), command.key()?))).collect();
        let listed = processes::processes(self.live().zygote().pidfd().cloned(), keys).await;
        let mut listed = listed.map_err(Error::io("list the processes of the session"))?;
        listed.interpreters = self.interpreters();
        Ok(listed)
    }

    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.owner.live
    }

    pub(crate) fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(self.live().zygote().prepared())
    }

    /// Waits until the session has no processes any more, for whatever reason.
    pub(crate) async fn closed(&self) {
        self.live().zygote().closed().await;
    }

    /// Starts no more commands, asks every process to end, and waits a moment until they have.
    pub(crate) async fn terminate(&self) {
        self.live().close();
        self.live().zygote().terminate().await;
    }

    /// Kills every process of the session and does not wait until they are gone.
    pub(crate) fn end(&self) {
        self.live().end();
    }

    /// What the session enforces for its next command.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.live().zygote().enforcement()
    }

    /// What holds for its commands, as far as it is known before one starts.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        self.prepared().compiled.in_force()
    }

    /// Checks that somebody else may set this variable of a command, as clients of [`Session::listen`] do.
    ///
    /// # Errors
    /// The session keeps the variable as it is, and the value is another one. That holds for `HOME` and the
    /// names of temporary directories, and for the variables of the proxy where there is one. With profile
    /// `ci-only`, it holds for all but those that the policy passes.
    pub fn check_client_variable(
        &self,
        name: impl AsRef<OsStr>,
        value: impl AsRef<OsStr>,
    ) -> Result<(), Error> {
        self.prepared().compiled.commands.check_client_variable(name.as_ref(), value.as_ref())
    }

    /// Whether the session takes no more commands: it was shut down, or somebody killed its zygote.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.live().zygote().is_gone()
    }

    /// The numbers of the session.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.live().zygote().stats()
    }

    /// How long nobody has used the session, as in [`Stats::idle`].
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        self.live().log().counts().idle()
    }

    /// Waits until nobody has used the session for that long.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn idle_for(&self, time: Duration) {
        const SHORTEST: Duration = Duration::from_millis(10);
        loop {
            let idle = self.idle();
            if idle.is_some_and(|idle| idle >= time) {
                return;
            }
            // If it is in use now, it is idle for that long after that time at the earliest.
            tokio::time::sleep(time.saturating_sub(idle.unwrap_or_default()).max(SHORTEST)).await;
        }
    }

    /// Ends the workers that wait for a command, for a session that nobody uses: two processes each, some
    /// 150 KiB with what the kernel keeps for them. The next command waits until it has a worker of its own,
    /// about as long as a bare spawn, and then the session keeps workers ready again.
    /// [Interpreters](Self::interpreters) go on waiting: starting one again is what takes long.
    pub fn end_ready_workers(&self) {
        self.live().zygote().end_ready_workers();
    }

    /// Keeps the session from being idle.
    pub(crate) fn begin_use(&self) -> Using {
        Using::new(self.live().log().counts())
    }

    /// The profile and the absolute workspace of its policy.
    pub(crate) fn origin(&self) -> (Profile, PathBuf) {
        let inputs = self.live().zygote().inputs();
        (inputs.policy.profile, clean(inputs.caller.absolute(&inputs.policy.workspace)))
    }

    /// Ends the session. Every process gets SIGTERM, 0.2 s later SIGHUP, and a second after the first
    /// SIGKILL; then this waits until they are gone. Running commands end with [`Error::SessionEnded`],
    /// unless they end by themselves in that second. Dropping the last handle kills at once. Idempotent.
    pub async fn shutdown(&self) {
        self.terminate().await;
        self.end();
        self.live().gone().await;
    }
}

/// Settings of a session to prepare.
#[derive(Clone, Debug)]
pub struct SessionBuilder<'p> {
    policy: Cow<'p, Policy>,
    ready: usize,
    ask: Option<Ask>,
}

impl SessionBuilder<'_> {
    /// How many workers the session keeps ready. Each needs some 100 KiB. Default: 2. With 0, each command
    /// waits for its own worker.
    ///
    /// This is the number of commands that can start at the same moment without waiting. Any number can run.
    /// Under memory pressure, the session keeps fewer workers ready.
    #[must_use]
    pub fn ready_workers(mut self, ready: usize) -> Self {
        self.ready = ready;
        self
    }

    /// Adds an interpreter that starts before its command is known; see
    /// [`Policy::warm`](field@crate::policy::Policy::warm).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), kennel::Error> {
    /// let policy = kennel::Policy::default();
    /// let session = kennel::Session::builder(&policy).warm("python3", ["numpy"]).prepare().await?;
    /// session.interpreters_started().await;
    /// let out = session.command("python3").args(["-c", "import numpy; print(numpy.pi)"]).output().await?;
    /// assert_eq!(out.outcome.start, kennel::Start::Warm);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn warm<M: Into<String>>(
        mut self,
        program: impl Into<String>,
        modules: impl IntoIterator<Item = M>,
    ) -> Self {
        self.policy = Cow::Owned(self.policy.into_owned().warm(program, modules));
        self
    }

    /// Lets `callback` decide about connections that no rule of the policy decides; see
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
    /// As for [`Session::prepare`].
    ///
    /// # Panics
    /// As for [`Session::prepare`].
    pub async fn prepare(&self) -> Result<Session, Error> {
        // Before the start: a port that another program has is an error of the caller.
        let bound = match self.policy.network.publish.is_empty() {
            true => Vec::new(),
            false => {
                self.policy.validate()?;
                Bound::all(&self.policy.network.published())?
            }
        };
        let live = prepare(&self.policy, self.ready, self.ask.as_ref().map(Ask::for_new_session)).await?;
        let session =
            Session { owner: Arc::new(Owner { live: Arc::clone(&live), shells: Mutex::default() }) };
        for bound in bound {
            live.publish(bound)?;
        }
        Ok(session)
    }
}
