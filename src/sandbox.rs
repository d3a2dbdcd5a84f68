//! The one-shot: every command in a sandbox of its own.

use std::{ffi::OsStr, sync::Arc};

use crate::{
    Command, Enforcement, Error, Host, Policy,
    caller::Caller,
    command::Source,
    compile::{self, Shape},
    prepared::Prepared,
    start::{self, Images},
};

/// A policy made ready for this host: every command of it runs in a fresh sandbox of its own.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Sandbox};
///
/// let sandbox = Sandbox::new(&Policy::profile(Profile::ReadOnly, "."))?;
/// let outcome = sandbox.command("ls").arg("-l").status().await?;
/// assert!(outcome.status.success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sandbox {
    prepared: Arc<Prepared>,
}

impl Sandbox {
    /// Checks the policy against this host and compiles it. Starts nothing.
    ///
    /// # Errors
    /// A policy that contradicts itself, a path that cannot be granted, a required protection that this host
    /// does not have.
    pub fn new(policy: &Policy) -> Result<Self, Error> {
        let compiled = compile::compile(policy, &Host::detect(), &Caller::current(), Shape::OneShot)?;
        Ok(Self { prepared: Arc::new(Prepared::new(compiled, Images::new()?)) })
    }

    /// As [`new`](Self::new), but starts the first command's sandbox at once: it makes its namespaces while the policy
    /// is compiled. For a program that runs one command and is gone, as `kennel run` does.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and those of a start. Nothing of the sandbox is left then.
    pub fn eager(policy: &Policy) -> Result<Self, Error> {
        let (host, caller, shape) = (Host::detect(), Caller::current(), Shape::OneShot);
        let begun = compile::begin(policy, &host, &caller, shape)?;
        let images = Images::new()?;
        let started = start::start(&images, shape, &begun.namespaces)?;
        let compiled = compile::finish(begun, policy, &host, &caller, shape)?;
        Ok(Self { prepared: Arc::new(Prepared::begun(compiled, images, started)) })
    }

    /// A command to run in this sandbox. A `program` without a slash is looked for in the command's PATH, inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(Source::Alone(Arc::clone(&self.prepared)), program.as_ref())
    }

    /// What will be in force if every step of the start succeeds.
    #[must_use]
    pub fn enforcement(&self) -> &Enforcement {
        &self.prepared.compiled.enforcement
    }
}
