//! How a program spawns others: the trait, and the default, which is Kennel's broker.

use std::future::Future;
use std::pin::Pin;

use crate::broker::SpawnPolicy;
use crate::broker::checked::CredentialResolver;
use crate::broker::envelope::Envelope;
use crate::report::error::spawn::SpawnError;
use crate::report::outcome::Ended;

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

/// The future that [`SpawnExecutor::spawn`] returns.
pub type Spawning<'s> = Pin<Box<dyn Future<Output = Result<Spawned, SpawnError>> + Send + 's>>;

/// Runs the programs that connectors spawn. The default checks the request and runs it in a sandbox, with
/// [`SpawnPolicy::spawn`]; another one serves tests, or another sandbox.
///
/// ```
/// use kennel::{CredentialResolver, Envelope, SpawnPolicy};
/// use kennel::connector::{Runtime, Spawned, SpawnExecutor, Spawning};
///
/// /// Checks requests, and runs nothing.
/// struct DryRun;
///
/// impl SpawnExecutor for DryRun {
///     fn spawn<'s>(
///         &'s self,
///         policy: &'s SpawnPolicy,
///         envelope: &'s Envelope,
///         _: &'s dyn CredentialResolver,
///     ) -> Spawning<'s> {
///         Box::pin(async { policy.check(envelope).map(|_| Spawned::default()) })
///     }
/// }
///
/// let runtime = Runtime::builder().spawn_executor(DryRun).build()?;
/// # Ok::<(), kennel::connector::ConnectorError>(())
/// ```
pub trait SpawnExecutor: Send + Sync {
    /// Runs the program of `envelope`, if `policy` allows it. The policy is the connector's manifest,
    /// narrowed by the call.
    fn spawn<'s>(
        &'s self,
        policy: &'s SpawnPolicy,
        envelope: &'s Envelope,
        credentials: &'s dyn CredentialResolver,
    ) -> Spawning<'s>;
}

/// Spawns with the broker.
pub(crate) struct Broker;

impl SpawnExecutor for Broker {
    fn spawn<'s>(
        &'s self,
        policy: &'s SpawnPolicy,
        envelope: &'s Envelope,
        credentials: &'s dyn CredentialResolver,
    ) -> Spawning<'s> {
        Box::pin(async {
            let output = policy.spawn(envelope, credentials).await?;
            let status = match output.outcome.ended {
                Ended::TimedOut => crate::report::failure::exit::TIMED_OUT,
                _ => output.outcome.exit_code(),
            };
            Ok(Spawned { status: status.into(), stdout: output.stdout, stderr: output.stderr })
        })
    }
}
