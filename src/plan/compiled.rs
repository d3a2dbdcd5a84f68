//! What compiling a policy comes to.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::plan::bridge::BridgePlan;
use crate::plan::environment::ClientVariables;
use crate::plan::explain::Terms;
use crate::plan::mount_state::Footing;
use crate::plan::proxy_settings::Settings;
use crate::plan::restrict::Grants;
use crate::plan::{Section, cgroup, overlay};
use crate::policy::audit::Audit;
use crate::policy::limits::Limits;
use crate::protect::recheck::Watch;
use crate::report::enforcement::Enforcement;
use crate::view::View;
use crate::view::tmpfs_size::Room;

/// Variables of an environment. Values may be secrets: only names are ever printed.
#[derive(Clone, Default)]
pub(crate) struct Variables(pub(crate) Vec<(OsString, OsString)>);

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// A policy that was checked against a host and turned into steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    /// The first steps of PID 1, which need not wait for the others.
    pub(crate) namespaces: Section,
    /// Steps of PID 1, shared by all commands.
    pub(crate) setup: Section,
    /// Steps of each worker and command of a session, for places that commands share.
    pub(crate) modes: Section,
    /// Steps of each worker of a session.
    pub(crate) worker: Section,
    /// Steps of each worker that end its privileges.
    pub(crate) walls: Section,
    /// Steps of the payload.
    pub(crate) payload: Section,
    /// What will be in force if every step succeeds.
    pub(crate) enforcement: Enforcement,
    /// Environment of commands that do not change it.
    pub(crate) environment: Variables,
    /// Which variables a client of the session may set.
    pub(crate) client_variables: ClientVariables,
    /// Where commands start that do not say.
    pub(crate) directory: PathBuf,
    /// What all of it stands on in directories of the host's: where that is not what it was, later commands need other
    /// walls. Where there are none, nobody has looked.
    pub(crate) ground: Option<Footing>,
    /// What the walls of a one-shot stand on there, which is looked at once more after the command.
    pub(crate) footing: Footing,
    /// Steps of a worker of a session that puts up again what its zygote has lost of them.
    pub(crate) again: Section,
    /// Everything visible.
    pub(crate) view: Arc<View>,
    /// Steps of a worker of a session that shows its view to calls for files.
    pub(crate) files: Section,
    /// What a command can go without.
    pub(crate) grants: Grants,
    /// The workspace, where changes are kept apart from it.
    pub(crate) overlay: Option<overlay::Merged>,
    /// Paths to look at after a command.
    pub(crate) watches: Arc<[Watch]>,
    /// Private file systems that are looked at after a command that failed, in the order of their steps.
    pub(crate) rooms: Vec<Room>,
    /// Limits that the outside keeps: wall time and output.
    pub(crate) limits: Limits,
    /// Soft and hard limit of a command's descriptors, where none is asked for.
    pub(crate) descriptors: [u64; 2],
    /// Cgroups of the commands, where there are some.
    pub(crate) groups: cgroup::Groups,
    /// Where what happens is written down; its path is absolute.
    pub(crate) audit: Option<Audit>,
    /// What a proxy has to know, where there shall be one.
    pub(crate) network: Option<Settings>,
    /// What leads to a proxy that is not ours.
    pub(crate) bridge: Option<Arc<BridgePlan>>,
    /// What errors are explained by, where they shall be.
    pub(crate) terms: Option<Arc<Terms>>,
}
