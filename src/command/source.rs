//! A session as its commands see it. It lives in a higher layer and implements this trait.

use std::fmt;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kennel_helper::control::Report;

use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::launch::inside::{CommandHold, CommandInit};
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::launch::request::RequestBuf;
use crate::launch::supervisor::Supervisor;
use crate::network::serving::{BoxFuture, DenialCursor};
use crate::plan::Section;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::published::PublishedPort;

/// A session: where its commands get their workers, and what they share.
pub(crate) trait WorkerSource: fmt::Debug + Send + Sync {
    /// Its plan.
    fn prepared(&self) -> &Arc<Prepared>;

    /// Its audit trail.
    fn trail(&self) -> &Arc<Trail>;

    /// The parent span of its commands.
    fn span(&self) -> Option<tracing::Id>;

    /// The commands that stay.
    fn detached(&self) -> &Arc<DetachedCommands>;

    /// Whether commands share their processes. Then background processes always live on.
    fn is_shared(&self) -> bool;

    /// Checks the host's files before a command or a file call.
    ///
    /// # Errors
    /// [`Error::SessionEnded`]; the workspace was replaced or removed, or a grant was removed; a protected
    /// path on the host cannot be protected any more.
    fn enter(&self) -> BoxFuture<'_, Result<Ticket, Error>>;

    /// A worker for one command. `own_steps` are steps of this worker alone. With `fail_fast`, the worker
    /// must be ready now.
    fn worker<'s>(
        &'s self,
        ticket: Ticket,
        own_steps: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>>;

    /// Whether the policy names interpreters that start ahead.
    fn has_interpreters(&self) -> bool;

    /// An interpreter that becomes the command.
    fn warm<'s>(&'s self, call: WarmCall<'s>) -> BoxFuture<'s, Warmth>;

    /// Counts a command that a worker has received, and orders the next worker.
    fn command_begins(&self, user: SessionUser);

    /// Counts its end.
    fn command_ends(&self, user: SessionUser);

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

    /// Serves the proxy again if the runtime that served it has ended. Returns what collects its refusals
    /// from now on; `None` if there is no proxy.
    fn renew_proxy(&self) -> Option<DenialCursor>;

    /// Whether this program ended the session.
    fn has_ended(&self) -> bool;
}

/// The permission to run a command of a session, after the check of its mounts.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) hold: CommandHold,
    /// The generation of the mounts.
    pub(crate) generation: u64,
}

/// A worker for a command.
#[derive(Debug)]
pub(crate) struct ReadyWorker {
    pub(crate) init: CommandInit,
    /// Reports that the command has to know.
    pub(crate) reports: Vec<Report>,
    /// The listener of its seccomp filter, if it has arrived.
    pub(crate) seccomp_listener: Option<OwnedFd>,
    /// Its steps that are not in the plan.
    pub(crate) own: Option<Arc<OwnSteps>>,
}

/// A command for an interpreter that has started already.
#[derive(Clone, Copy)]
pub(crate) struct WarmCall<'c> {
    pub(crate) request: &'c RequestBuf,
    /// The generation of the mounts.
    pub(crate) generation: u64,
    /// Why a command of this kind is executed in any case.
    pub(crate) unfit: Option<&'static str>,
}

/// Whether an interpreter that has started already becomes a command.
pub(crate) enum Warmth {
    /// This one, which has agreed.
    Warm(Box<ReadyInterpreter>),
    /// The command names none of them.
    Other,
    /// It names one, and has to be executed for this reason.
    Executed(String),
}

/// An interpreter for a command.
#[derive(Debug)]
pub(crate) struct ReadyInterpreter {
    pub(crate) init: CommandInit,
    /// Where it waits for the command.
    pub(crate) link: OwnedFd,
    /// What is enforced, with what its start reported.
    pub(crate) enforcement: Enforcement,
    /// Answers for its seccomp filter.
    pub(crate) supervisor: Option<Supervisor>,
}

/// For whom a worker of a session works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionUser {
    /// A command of the caller.
    Command,
    /// The shell of the caller's snippets, which runs as long as the session.
    Keeper,
    /// Nobody yet: an interpreter that waits for a command.
    Interpreter,
}

/// The session of a command that a worker has. The session counts the command until this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    session: Arc<dyn WorkerSource>,
    user: SessionUser,
}

impl Membership {
    pub(crate) fn new(session: Arc<dyn WorkerSource>, user: SessionUser) -> Self {
        session.command_begins(user);
        Self { session, user }
    }
}

impl Deref for Membership {
    type Target = dyn WorkerSource;

    fn deref(&self) -> &Self::Target {
        &*self.session
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.session.command_ends(self.user);
    }
}
