//! The spawn broker: checks a request to run a program against a manifest, then runs the program in a
//! sandbox.
//!
//! The manifest lists the allowed programs, arguments, variables, credentials, files and hosts. The sandbox
//! grants just these.
//!
//! ```text
//! Manifest ─┐
//! action   ─┼─ check ─► CheckedSpawn ─ load, hash ─► policy ─► compile ─► credentials ─► Command ─► Output
//! Envelope ─┘                                                (resolver)
//! ```
//!
//! The broker builds no sandbox itself: it hands a checked request to the engine that runs all other
//! commands.

pub(crate) mod check;
pub(crate) mod checked;
pub(crate) mod envelope;
pub(crate) mod executor;
pub(crate) mod help;
pub(crate) mod hosts;
pub(crate) mod manifest;
pub(crate) mod operation;
pub(crate) mod paths;
pub(crate) mod pattern;
pub(crate) mod run;
#[cfg(feature = "testing")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use crate::broker::checked::{CheckedSpawn, CredentialResolver, NoCredentials, Resolving, SpawnLimits};
pub use crate::broker::envelope::Envelope;
pub use crate::broker::executor::{SpawnExecutor, Spawned, Spawning};
pub use crate::broker::help::{Unavailable, run_help, run_help_by_name, sandbox_available};
pub use crate::broker::manifest::Manifest;
pub use crate::report::error::spawn::{CredentialError, SpawnError};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fmt};

use crate::audit::trail::Origin;
use crate::caller::Caller;
use crate::policy::audit::Audit;
#[cfg(feature = "wasm")]
use crate::policy::network::destination::Destination;
#[cfg(feature = "wasm")]
use crate::policy::network::rule::Rules;
use crate::report::failure::Boundary;
use crate::report::outcome::Output;

/// Checks requests to run programs against a manifest, and runs them.
///
/// ```no_run
/// use kennel::broker::{CredentialResolver, Manifest, SpawnError, SpawnPolicy};
///
/// # async fn example(resolver: &dyn CredentialResolver) -> Result<(), SpawnError> {
/// let policy = SpawnPolicy::new(Manifest::load("gh.toml".as_ref())?);
/// let envelope = policy.operation("issue_create", &[("title", "It works")])?;
/// let output = policy.spawn(&envelope, resolver).await?;
/// println!("{:?} {}", output.outcome.status, String::from_utf8_lossy(&output.stdout));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SpawnPolicy {
    manifest: Manifest,
    /// The programs of the action, if the caller narrowed the manifest.
    narrower: Option<Vec<String>>,
    limits: SpawnLimits,
    home: PathBuf,
    audit: Option<run::BrokerAudit>,
    variables: Variables,
}

/// The value of a variable.
type VariableValue = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// The function that has the values of variables.
#[derive(Clone)]
struct Variables(Arc<VariableValue>);

impl Variables {
    fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(name)
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Variables")
    }
}

impl SpawnPolicy {
    /// A policy that allows everything in the manifest.
    #[must_use]
    pub fn new(manifest: Manifest) -> Self {
        let home = Caller::current_home();
        let variables = Variables(Arc::new(|name| env::var_os(name)));
        Self { manifest, narrower: None, limits: SpawnLimits::default(), home, audit: None, variables }
    }

    /// Narrows the manifest to the programs of one action, given by name or path. An empty list allows no
    /// program. If several programs are the same file, as with busybox, only the named ones stay allowed.
    ///
    /// ```
    /// use kennel::{broker::{Envelope, Manifest, SpawnPolicy}, report::Boundary};
    ///
    /// let programs = "capabilities.spawn.programs = [{ path = '/bin/sh' }, { path = '/bin/ls' }]";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(programs)?).action(["ls"]);
    /// policy.check(&Envelope::new("ls", &[]))?;
    /// let error = policy.check(&Envelope::new("sh", &[])).unwrap_err();
    /// assert_eq!(error.failure().boundary, Boundary::Action);
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// ```
    #[must_use]
    pub fn action(mut self, programs: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.narrower = Some(programs.into_iter().map(Into::into).collect());
        self
    }

    /// Leaves programs only the hosts of the manifest that `rules` allow, too.
    #[cfg(feature = "wasm")]
    pub(crate) fn narrow_hosts(mut self, rules: &Rules) -> Self {
        let is_left = |host: &String| Destination::parse(host).is_ok_and(|host| rules.find(&host).is_some());
        self.manifest.hosts.retain(is_left);
        self
    }

    /// Sets limits. They override the limits of the manifest.
    #[must_use]
    pub fn limits(mut self, limits: SpawnLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets where values of `env_passthrough` come from, for the variables that an envelope does not set. By
    /// default, they come from the environment of this process. A program does not get a variable without a
    /// value, or with an empty one.
    ///
    /// ```
    /// use std::ffi::OsStr;
    /// use kennel::broker::{Envelope, Manifest, SpawnPolicy};
    ///
    /// let manifest = "[capabilities.spawn]\nprograms = [{ path = '/bin/sh' }]\n\
    ///     env_passthrough = ['LINE', 'X']";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?)
    ///     .variables(|name| (name == "LINE").then(|| "4".into()));
    /// let checked = policy.check(&Envelope::new("sh", &["-c", "echo $LINE"]))?;
    /// assert_eq!(checked.environment().collect::<Vec<_>>(), [("LINE", OsStr::new("4"))]);
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// ```
    #[must_use]
    pub fn variables(mut self, value: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        self.variables = Variables(Arc::new(value));
        self
    }

    /// Records every decision and every program that runs in an audit log. A record holds the names of
    /// variables, the number and lengths of arguments or the pattern of their operation. It never holds a
    /// value, even if [`Audit::arguments`] is set.
    ///
    /// ```no_run
    /// use kennel::{Audit, broker::{Manifest, SpawnPolicy}};
    ///
    /// let policy = SpawnPolicy::new(Manifest::load("gh.toml".as_ref())?);
    /// let policy = policy.audit(Audit { fail_closed: true, ..Audit::new("/var/log/kennel/spawn.log") })?;
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// ```
    ///
    /// # Errors
    /// The log cannot be opened, or programs of the manifest could replace it: see
    /// [`check_outside`](Self::check_outside).
    pub fn audit(self, audit: impl Into<Audit>) -> Result<Self, SpawnError> {
        let connector = self.manifest.name().map(Arc::from);
        self.audited(audit.into(), connector)
    }

    /// As [`audit`](Self::audit), for a connector of this name.
    pub(crate) fn audited(mut self, audit: Audit, connector: Option<Arc<str>>) -> Result<Self, SpawnError> {
        // Check the path before anything is created there.
        self.check_outside("audit log", &audit.path)?;
        self.audit = Some(run::BrokerAudit::open(audit, connector)?);
        Ok(self)
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Builds the envelope of an operation: its program, its argument vector with `values` filled in, and all
    /// credentials of the manifest.
    ///
    /// ```
    /// use kennel::broker::{Manifest, SpawnPolicy};
    ///
    /// let manifest = "[capabilities.spawn]\nprograms = [{ path = '/usr/bin/gh' }]\n\
    ///     [capabilities.spawn.operations]\nclose = 'gh issue close {number} [--comment {comment}]'";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
    /// assert_eq!(policy.operation("close", &[("number", "7")])?.argv, ["gh", "issue", "close", "7"]);
    /// assert!(policy.operation("close", &[("number", "--web")]).is_err());
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// ```
    ///
    /// # Errors
    /// The operation does not exist; a value is missing, unknown, given twice, or would become an option.
    pub fn operation(&self, name: &str, values: &[(&str, &str)]) -> Result<Envelope, SpawnError> {
        self.rendered(name, values).or_else(|error| {
            let known = self.manifest.spawn.operations.get(name).map(|operation| operation.program.clone());
            let asked = Envelope { program: known.unwrap_or_default(), ..Envelope::default() };
            let id = self.record(&asked, Err(&error), "denied", None)?;
            Err(error.recorded(id))
        })
    }

    fn rendered(&self, name: &str, values: &[(&str, &str)]) -> Result<Envelope, SpawnError> {
        let operations = &self.manifest.spawn.operations;
        let nothing: [&str; 0] = [];
        let operation = operations.get(name).ok_or_else(|| {
            let known = operations.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none" } else { &known };
            let reason = format!("is not in the manifest; it has {known}");
            SpawnError::denied(Boundary::Manifest, "operation", name, reason, operations.keys())
        })?;
        let mut given = BTreeMap::new();
        for &(value_name, value) in values {
            if given.insert(value_name.to_owned(), value.to_owned()).is_some() {
                let reason = format!("`{value_name}` is given twice");
                return Err(SpawnError::denied(Boundary::Action, "operation", name, reason, nothing));
            }
        }
        let argv = operation.render(&given).map_err(|error| {
            let reason = format!("{error}; it is `{operation}`");
            SpawnError::denied(Boundary::Action, "operation", name, reason, [operation.to_string()])
        })?;
        let keys = self.manifest.spawn.credential_env_keys.iter();
        Ok(Envelope {
            program: operation.program.clone(),
            argv,
            credential_env_keys: keys.map(|key| key.0.clone()).collect(),
            ..Envelope::default()
        })
    }

    /// Checks an envelope against the manifest, then against the programs of the action, then checks its
    /// credentials. Reads paths on the host. Starts nothing and resolves no credential.
    ///
    /// # Errors
    /// The envelope asks for something that is not allowed. The error names it, and says who forbids it.
    pub fn check(&self, envelope: &Envelope) -> Result<CheckedSpawn, SpawnError> {
        let checked = self.checked(envelope);
        let decision = if checked.is_ok() { "allowed" } else { "denied" };
        let id = self.record(envelope, checked.as_ref(), decision, None)?;
        match checked {
            Ok(spawn) => Ok(CheckedSpawn {
                origin: self.audit.as_ref().map(|own| own.origin(id)).unwrap_or_default(),
                ..spawn
            }),
            Err(error) => Err(error.recorded(id)),
        }
    }

    /// Checks an envelope and runs its program to the end, in a sandbox with exactly what the manifest
    /// grants. If the manifest has a hash for the program, Kennel executes the copy that it hashed. It asks
    /// `resolver` for the values of credentials last, and passes them to the program's environment only.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); the program cannot be loaded or does not match its hash; a credential
    /// is missing; the sandbox could not be prepared. A program that fails or times out is not an error: see
    /// [`Outcome`](crate::report::outcome::Outcome).
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn spawn(
        &self,
        envelope: &Envelope,
        resolver: &dyn CredentialResolver,
    ) -> Result<Output, SpawnError> {
        let spawn = self.check(envelope)?;
        let ended = spawn.run(resolver).await;
        self.recorded(envelope, &spawn.origin, ended)
    }

    /// Checks an envelope like [`spawn`](Self::spawn), and lets `executor` run its program.
    ///
    /// ```
    /// use kennel::broker::{
    ///     CheckedSpawn, CredentialResolver, Envelope, Manifest, NoCredentials, SpawnExecutor, SpawnPolicy,
    ///     Spawned, Spawning,
    /// };
    ///
    /// /// Runs nothing.
    /// struct DryRun;
    ///
    /// impl SpawnExecutor for DryRun {
    ///     fn spawn<'s>(&'s self, _: &'s CheckedSpawn, _: &'s dyn CredentialResolver) -> Spawning<'s> {
    ///         Box::pin(async { Ok(Spawned::default()) })
    ///     }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let manifest = Manifest::from_toml("capabilities.spawn.programs = [{ path = '/bin/sh' }]")?;
    /// let policy = SpawnPolicy::new(manifest);
    /// policy.execute(&Envelope::new("sh", &["-c", "exit 7"]), &NoCredentials, &DryRun).await?;
    /// policy.execute(&Envelope::new("ls", &[]), &NoCredentials, &DryRun).await.unwrap_err();
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Those of [`check`](Self::check), and those of the executor.
    pub async fn execute(
        &self,
        envelope: &Envelope,
        resolver: &dyn CredentialResolver,
        executor: &dyn SpawnExecutor,
    ) -> Result<Spawned, SpawnError> {
        let spawn = self.check(envelope)?;
        let ended = executor.spawn(&spawn, resolver).await;
        self.recorded(envelope, &spawn.origin, ended)
    }

    /// How a checked spawn ended. A failure is in the audit log, too.
    fn recorded<T>(
        &self,
        envelope: &Envelope,
        origin: &Origin,
        ended: Result<T, SpawnError>,
    ) -> Result<T, SpawnError> {
        ended.or_else(|error| {
            let id = self.record(envelope, Err(&error), "failed", origin.spawn.as_deref())?;
            Err(error.recorded(id))
        })
    }
}
