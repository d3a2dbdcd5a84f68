//! Who runs a checked spawn: the trait, and the default, which is Kennel's sandbox.

use std::future::Future;
use std::pin::Pin;

use crate::broker::checked::{CheckedSpawn, CredentialResolver};
use crate::report::error::spawn::SpawnError;
use crate::report::failure::exit;
use crate::report::outcome::{Ended, Output};

/// How a spawned program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spawned {
    /// Its exit status: 128+n if signal n ended it, 124 if it ran into its timeout.
    pub status: i32,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

impl From<Output> for Spawned {
    fn from(output: Output) -> Self {
        let status = match output.outcome.ended {
            Ended::TimedOut => exit::TIMED_OUT,
            _ => output.outcome.exit_code(),
        };
        Self { status: status.into(), stdout: output.stdout, stderr: output.stderr }
    }
}

/// The future that [`SpawnExecutor::spawn`] returns.
pub type Spawning<'s> = Pin<Box<dyn Future<Output = Result<Spawned, SpawnError>> + Send + 's>>;

/// Runs programs that Kennel has checked: in another sandbox, on another machine, or not at all, for tests.
///
/// Kennel checks each request against the manifest and the action, and records the decision. An executor gets
/// only those that are allowed, so it never checks a request itself. What it gets is everything that it
/// needs: a program with [`environment`](CheckedSpawn::environment), [`fs_read`](CheckedSpawn::fs_read),
/// [`fs_write`](CheckedSpawn::fs_write), [`hosts`](CheckedSpawn::hosts) and [`limits`](CheckedSpawn::limits).
/// To enforce these is up to the executor. Kennel records an error of it.
///
/// ```
/// use kennel::broker::{CheckedSpawn, CredentialResolver, Spawned, SpawnExecutor, Spawning};
///
/// /// Logs what runs, and lets Kennel run it.
/// struct Logs;
///
/// impl SpawnExecutor for Logs {
///     fn spawn<'s>(
///         &'s self,
///         spawn: &'s CheckedSpawn,
///         credentials: &'s dyn CredentialResolver,
///     ) -> Spawning<'s> {
///         Box::pin(async move {
///             println!("{} as {:?}", spawn.program().display(), spawn.operation());
///             Ok(Spawned::from(spawn.run(credentials).await?))
///         })
///     }
/// }
/// ```
pub trait SpawnExecutor: Send + Sync {
    /// Runs a program to its end. `credentials` has the values of [`CheckedSpawn::credentials`], and
    /// [`CheckedSpawn::resolve`] asks it.
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, credentials: &'s dyn CredentialResolver) -> Spawning<'s>;
}

/// Runs programs in Kennel's sandbox: the default of connectors.
#[cfg(feature = "wasm")]
pub(crate) struct OwnSandbox;

#[cfg(feature = "wasm")]
impl SpawnExecutor for OwnSandbox {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, credentials: &'s dyn CredentialResolver) -> Spawning<'s> {
        Box::pin(async { Ok(spawn.run(credentials).await?.into()) })
    }
}
