//! Where commands get their workers. A sandbox starts one for each command, a session has them ready; both stand above this
//! folder and implement these traits.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kennel_helper::control::Report;

use crate::audit::trail::Trail;
use crate::launch::inside::Inside;
use crate::launch::prepared::{OwnSteps, Prepared};
use crate::network::serving::{BoxFuture, Serving, Witness};
use crate::plan::Section;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;

/// A sandbox or a session, as its commands see it.
pub(crate) trait WorkerSource: fmt::Debug + Send + Sync {
    /// The plan of the last start, or of the first.
    fn prepared(&self) -> Arc<Prepared>;

    /// The plan for a start now.
    ///
    /// # Errors
    /// The workspace or a writable grant that was replaced or is gone, and what is there now cannot be protected.
    fn renewed(&self) -> Result<Arc<Prepared>, Error>;

    /// The audit trail of one start.
    fn trail(&self) -> Arc<Trail>;

    /// The tracing span that its commands belong to.
    fn span(&self) -> Option<tracing::Id>;

    /// Whether what a command leaves in the background can live on.
    fn keeps_background(&self) -> bool;

    /// A worker for one command; what its network does goes to `trail`. `narrow` are steps of this worker alone; with `fail_fast` it must be ready now.
    fn worker<'s>(
        &'s self,
        prepared: &'s Prepared,
        trail: &'s Arc<Trail>,
        narrow: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>>;

    /// Whether another worker can take the place of one that was killed before it got a command.
    ///
    /// # Errors
    /// [`Error::SessionEnded`].
    fn has_others(&self) -> Result<bool, Error>;

    /// Counts a command that was handed over as one of a session's; `None` where there is no session.
    fn join(self: Arc<Self>) -> Option<Box<dyn Membership>>;
}

/// A command that runs, as one of a session's: it counts until this is dropped.
pub(crate) trait Membership: fmt::Debug + Send + Sync {
    /// What is in force in the session.
    fn enforcement(&self) -> Enforcement;

    /// Counts how long its worker took, where that came after the command.
    fn refilled(&self, took_us: u64);

    /// Keeps what the command left behind, as long as the session lives.
    fn keep(&self, inside: Inside);

    /// Follows what the session's proxy refuses.
    fn witness(&self) -> Option<Witness>;

    /// Whether the session was ended from this side.
    fn session_has_ended(&self) -> bool;
}

/// A worker for a command.
#[derive(Debug)]
pub(crate) struct ReadyWorker {
    pub(crate) inside: Inside,
    /// What it said that its command has to know.
    pub(crate) said: Vec<Report>,
    /// The proxy of a one-shot.
    pub(crate) serving: Option<Serving>,
    /// What its filter of system calls tells its refusals by, where that has come already.
    pub(crate) listener: Option<OwnedFd>,
    /// Its steps that are not in the plan.
    pub(crate) own: Option<Arc<OwnSteps>>,
}

impl ReadyWorker {
    /// Its steps that are not in the plan.
    pub(crate) fn steps(&self) -> Option<Section> {
        self.own.as_ref().map(|own| own.section.clone())
    }
}
