//! Sandboxes and sessions on macOS.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use crate::macos::cell::Cell;
use crate::macos::command::Command;
use crate::macos::places::Places;
use crate::policy::Policy;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::in_force::InForce;

/// A sandbox for one command at a time, without a common temporary directory.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Sandbox};
///
/// let sandbox = Sandbox::new(&Policy::profile(Profile::RepoWrite, "/Users/me/repo"))?;
/// let output = sandbox.command("make").output().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sandbox(Arc<Cell>);

impl Sandbox {
    /// Checks a policy and resolves its paths. Starts nothing.
    ///
    /// # Errors
    /// The policy is invalid, or macOS cannot hold it; a path of it does not exist.
    pub fn new(policy: &Policy) -> Result<Self, Error> {
        Ok(Self(Arc::new(Cell::new(policy)?)))
    }

    #[cfg(test)]
    pub(crate) fn of(cell: Cell) -> Self {
        Self(Arc::new(cell))
    }

    /// A command that runs in a sandbox of its own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(&self.0, program.as_ref())
    }

    /// Runs `/usr/bin/true` in a sandbox.
    ///
    /// # Errors
    /// `sandbox-exec` is missing or refuses the profile.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn try_start(&self) -> Result<(), Error> {
        crate::macos::probe::try_start(&self.0).await
    }

    /// What is enforced for each command.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.0.enforcement
    }

    /// What the policy comes to on this machine, for people.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        self.0.in_force()
    }

    /// For programs that run on Linux, too: here, nothing is left to wait for.
    #[expect(clippy::unused_async, reason = "as on Linux, where it waits")]
    pub async fn shutdown(&self) {}
}

/// Many commands with one policy, and one proxy.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Session};
///
/// let session = Session::prepare(&Policy::profile(Profile::RepoWrite, "/Users/me/repo")).await?;
/// let output = session.command("cargo").args(["test"]).output().await?;
/// println!("{} {:?}", output.outcome.status, output.outcome.enforcement.level());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Session(Arc<Cell>);

impl Session {
    /// Checks a policy, resolves its paths, starts its proxy, and runs `/usr/bin/true` in a sandbox.
    ///
    /// # Errors
    /// As [`Sandbox::new`]; `sandbox-exec` is missing or refuses the profile.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn prepare(policy: &Policy) -> Result<Self, Error> {
        Self::with(Cell::new(policy)?).await
    }

    pub(crate) async fn with(cell: Cell) -> Result<Self, Error> {
        let session = Self(Arc::new(cell));
        crate::macos::probe::try_start(&session.0).await?;
        Ok(session)
    }

    pub(crate) fn of(cell: Arc<Cell>) -> Self {
        Self(cell)
    }

    pub(crate) fn cell(&self) -> &Cell {
        &self.0
    }

    /// A command of this session.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(&self.0, program.as_ref())
    }

    /// What is enforced for each command.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        self.0.enforcement.clone()
    }

    /// The directory in which commands start.
    #[must_use]
    pub fn directory(&self) -> &Path {
        let Places { directory, .. } = &self.0.places;
        directory
    }
}
