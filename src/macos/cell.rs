//! What the commands of one policy share on macOS.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::OnceCell;

use crate::audit::log::Log;
use crate::audit::trail::{Origin, Trail};
use crate::caller::Caller;
use crate::macos::places::Places;
use crate::macos::proxy::LoopbackProxy;
use crate::macos::temporary::TemporaryDirectory;
use crate::macos::{environment, unsupported};
use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::policy::profile::TmpLife;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::seatbelt::{Grants, Reach, SeatbeltPath, Use};

/// A fixed path, the same on every macOS. The caller may have changed PATH, so Kennel does not search it.
pub(crate) const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// A policy that was checked, resolved and is ready for commands.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) policy: Policy,
    pub(crate) places: Places,
    pub(crate) variables: BTreeMap<OsString, OsString>,
    pub(crate) enforcement: Enforcement,
    pub(crate) trail: Arc<Trail>,
    pub(crate) caller: Caller,
    /// The port of the proxy, if another process holds the session.
    pub(crate) elsewhere: Option<Option<u16>>,
    pub(crate) own_proxy: OnceCell<Option<LoopbackProxy>>,
    /// The directory that all commands share, if the policy wants one.
    pub(crate) shared: Option<Arc<TemporaryDirectory>>,
    pub(crate) sandbox_exec: PathBuf,
}

/// What one command has of its own.
pub(crate) struct Confinement {
    /// The text for `sandbox-exec -p`.
    pub(crate) profile: String,
    pub(crate) variables: BTreeMap<OsString, OsString>,
    pub(crate) temporary: Arc<TemporaryDirectory>,
}

impl Cell {
    /// # Errors
    /// The policy is invalid, macOS cannot hold it, a path of it does not exist, or the audit log cannot be
    /// opened.
    pub(crate) fn new(policy: &Policy) -> Result<Self, Error> {
        Self::with(policy, SANDBOX_EXEC.into())
    }

    /// The same with another `sandbox-exec`.
    pub(crate) fn with(policy: &Policy, sandbox_exec: PathBuf) -> Result<Self, Error> {
        policy.validate()?;
        let enforcement = unsupported::checked(policy)?;
        let caller = Caller::current();
        // The log makes its file, which is a place.
        let log = policy.audit.as_ref().map(Log::open).transpose()?.map(Arc::new);
        let places = Places::of(policy, &caller)?;
        let shared = match policy.tmp {
            TmpLife::Session => Some(Arc::new(TemporaryDirectory::make()?)),
            TmpLife::Exec => None,
        };
        Ok(Self {
            variables: environment::variables(policy, &caller),
            enforcement,
            trail: Trail::new(log.as_ref(), Origin::default()),
            policy: policy.clone(),
            elsewhere: None,
            own_proxy: OnceCell::new(),
            places,
            caller,
            shared,
            sandbox_exec,
        })
    }

    /// The proxy of this process, which starts with the first command.
    ///
    /// # Errors
    /// Those of [`LoopbackProxy::start`].
    pub(crate) async fn proxy(&self) -> Result<Option<&LoopbackProxy>, Error> {
        if self.elsewhere.is_some() {
            return Ok(None);
        }
        let start = async || LoopbackProxy::start(&self.policy, &self.caller, &self.trail);
        Ok(self.own_proxy.get_or_try_init(start).await?.as_ref())
    }

    /// What the next command has of its own.
    ///
    /// # Errors
    /// No temporary directory can be made.
    pub(crate) fn confinement(&self, proxy: Option<u16>) -> Result<Confinement, Error> {
        let proxy = proxy.or(self.elsewhere.flatten());
        let temporary = match &self.shared {
            Some(shared) => Arc::clone(shared),
            None => Arc::new(TemporaryDirectory::make()?),
        };
        let mut places = self.places.grants.places.clone();
        places.extend(SeatbeltPath::new(temporary.path()).map(|path| (path, Use::Write)));
        let reach = match (self.policy.effective_network(), proxy) {
            (_, Some(port)) => Reach::Loopback(port),
            (NetworkMode::Host, None) => Reach::Everywhere,
            _ => Reach::Nowhere,
        };
        let profile = Grants { places, reach, ..self.places.grants.clone() }.profile();
        let variables = environment::of_command(&self.policy, temporary.path(), proxy);
        Ok(Confinement { profile, variables, temporary })
    }
}
