//! Where commands get their workers: a sandbox starts one for each command, a session keeps some ready. Both
//! live in a higher layer and implement these traits.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kennel_helper::control::Report;

use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::launch::inside::{CommandHold, CommandInit};
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::network::publish::Publishing;
use crate::network::serving::{BoxFuture, DenialCursor, Serving};
use crate::plan::Section;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::published::PublishedPort;

/// A sandbox or a session, as its commands see it.
pub(crate) trait WorkerSource: fmt::Debug + Send + Sync {
    /// The plan of the last start; before the first start, the plan it will use.
    fn prepared(&self) -> Arc<Prepared>;

    /// What one command runs in: fits the host's files now.
    ///
    /// # Errors
    /// The workspace was replaced or removed, or a grant was removed; a protected path on the host cannot be
    /// protected any more.
    fn turn(self: Arc<Self>) -> BoxFuture<'static, Result<Turn, Error>>;

    /// Whether commands share their processes. Then background processes always live on.
    fn is_shared(&self) -> bool;

    /// The commands that stay, in a session. Outside of one, nothing of a command can live on.
    fn detached(&self) -> Option<&Arc<DetachedCommands>>;
}

/// What one command runs in.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) workers: Arc<dyn Workers>,
    /// The place of the command in its session.
    pub(crate) entered: Option<Entered>,
}

/// The permission to run a command of a session, after the check of its mounts.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) hold: CommandHold,
    /// The generation of the mounts.
    pub(crate) generation: u64,
}

/// Where one command gets its worker.
pub(crate) trait Workers: fmt::Debug + Send + Sync {
    /// The audit trail of one start.
    fn trail(&self) -> Arc<Trail>;

    /// The parent span of its commands.
    fn span(&self) -> Option<tracing::Id>;

    /// A worker for one command. A command of a session passes what it got from [`WorkerSource::turn`] as
    /// `entered`, once. The worker's proxy, if it gets one, writes to `trail`. `own_steps` are steps of this
    /// worker alone. With `fail_fast`, the worker must be ready now.
    fn worker<'s>(
        &'s self,
        prepared: &'s Prepared,
        trail: &'s Arc<Trail>,
        entered: Option<Entered>,
        own_steps: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>>;

    /// Whether there is another worker after one was killed before it received its command.
    ///
    /// # Errors
    /// [`Error::SessionEnded`].
    fn has_others(&self) -> Result<bool, Error>;

    /// Counts a command that a worker has received; `None` outside of a session. The keeper of a shell is not
    /// what uses the session.
    fn join(self: Arc<Self>, is_keeper: bool) -> Option<Box<dyn Membership>>;
}

/// A running command of a session. The session counts it until this is dropped.
pub(crate) trait Membership: fmt::Debug + Send + Sync {
    /// What the session enforces.
    fn enforcement(&self) -> Enforcement;

    /// Records how long the worker took to get ready, if it reported that after it received the command.
    fn refilled(&self, took_us: u64);

    /// Keeps background processes of the command until the session ends.
    fn keep(&self, init: CommandInit);

    /// Takes a worker back that waits for another command.
    fn give_back(&self, init: CommandInit);

    /// The published ports of the session.
    fn published(&self) -> Vec<PublishedPort>;

    /// Collects what the proxy of the session refuses.
    fn denial_cursor(&self) -> Option<DenialCursor>;

    /// Whether this program ended the session.
    fn session_has_ended(&self) -> bool;
}

/// A worker for a command.
#[derive(Debug)]
pub(crate) struct ReadyWorker {
    pub(crate) init: CommandInit,
    /// Reports that the command has to know.
    pub(crate) reports: Vec<Report>,
    /// The proxy of a command without a session.
    pub(crate) proxy: Option<Serving>,
    /// The published ports of a command without a session.
    pub(crate) published: Option<Publishing>,
    /// The listener of its seccomp filter, if it has arrived.
    pub(crate) seccomp_listener: Option<OwnedFd>,
    /// Its steps that are not in the plan.
    pub(crate) own: Option<Arc<OwnSteps>>,
}
