//! The result of a check, the limits of a spawn, and the credential resolver.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::audit::trail::Origin;
use crate::broker::paths::Resolved;
use crate::policy::units::Size;
use crate::report::error::spawn::{CredentialError, Hash};
use crate::sys::secret::Secret;

/// A spawn that passed the check of [`SpawnPolicy::check`](crate::broker::SpawnPolicy::check). Its `Debug`
/// output shows no values of variables or arguments.
pub struct CheckedSpawn {
    /// The program's path, with links resolved.
    pub(crate) program: PathBuf,
    /// The program's path as the manifest has it, with `~/` expanded. The program gets it as `argv[0]`.
    pub(crate) called: PathBuf,
    pub(crate) hash: Option<Hash>,
    pub(crate) arguments: Vec<String>,
    pub(crate) operation: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// Variables to take from the caller's environment, if they are set there.
    pub(crate) passed: Vec<String>,
    pub(crate) credentials: Vec<String>,
    pub(crate) stdin: Option<String>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) reads: Vec<PathBuf>,
    pub(crate) writes: Vec<PathBuf>,
    /// The manifest file. Programs cannot write to it.
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: Effective,
    /// What its records in the audit log name.
    pub(crate) origin: Origin,
}

impl CheckedSpawn {
    /// A spawn of the program alone: no arguments, nothing granted or passed.
    pub(crate) fn of(program: Resolved, limits: Effective) -> Self {
        Self {
            program: program.path,
            called: program.named,
            hash: None,
            arguments: Vec::new(),
            operation: None,
            environment: BTreeMap::new(),
            passed: Vec::new(),
            credentials: Vec::new(),
            stdin: None,
            cwd: None,
            reads: Vec::new(),
            writes: Vec::new(),
            manifest: None,
            hosts: Vec::new(),
            limits,
            origin: Origin::default(),
        }
    }

    /// The program to execute, with links resolved.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The operation that the arguments match, if the manifest has operations.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.operation.as_deref()
    }

    /// The working directory; `None` means `/`.
    #[must_use]
    pub fn cwd(&self) -> Option<&Path> {
        self.cwd.as_deref()
    }
}

impl fmt::Debug for CheckedSpawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedSpawn")
            .field("program", &self.program)
            .field("operation", &self.operation)
            .field("arguments", &self.arguments.len())
            .field("variables", &self.environment.keys().collect::<Vec<_>>())
            .field("credentials", &self.credentials)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

// Limits of a spawn.

/// Limits of a spawn, set by the manifest (`[capabilities.spawn.limits]`) or by the caller. The caller's
/// value overrides the manifest's. `None` means the other side's value, or the default. Values above the
/// maximum become the maximum.
///
/// ```
/// use kennel::broker::{Manifest, SpawnLimits, SpawnPolicy};
///
/// let manifest = Manifest::from_toml("capabilities.spawn.programs = [{ path = '/usr/bin/git' }]")?;
/// let limits = SpawnLimits { max_memory_bytes: Some(256 << 20), ..SpawnLimits::default() };
/// let policy = SpawnPolicy::new(manifest).limits(limits);
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpawnLimits {
    /// Memory, in bytes: 64 MiB by default, 1 GiB at most. Enforced like
    /// [`Limits::memory`](crate::policy::limits::Limits::memory).
    pub max_memory_bytes: Option<u64>,
    /// Wall time, in seconds: 30 by default, 300 at most.
    pub max_wall_seconds: Option<u64>,
    /// Bytes kept of stdout: 1 MiB by default, 64 MiB at most.
    pub max_stdout_bytes: Option<u64>,
    /// Bytes kept of stderr: 256 KiB by default, 64 MiB at most.
    pub max_stderr_bytes: Option<u64>,
}

/// Default and maximum of each limit.
const MEMORY: (u64, u64) = (64 << 20, 1 << 30);
const WALL_SECONDS: (u64, u64) = (30, 300);
const STDOUT: (u64, u64) = (1 << 20, 64 << 20);
const STDERR: (u64, u64) = (256 << 10, 64 << 20);

/// The limits that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) memory: Size,
    pub(crate) wall: Duration,
    /// Bytes kept of stdout and stderr.
    pub(crate) output: [u64; 2],
}

impl Effective {
    pub(crate) fn of(caller: &SpawnLimits, manifest: &SpawnLimits) -> Self {
        let choose = |pick: fn(&SpawnLimits) -> Option<u64>, (default, ceiling): (u64, u64)| {
            pick(caller).or(pick(manifest)).unwrap_or(default).min(ceiling)
        };
        Self {
            memory: Size::from_bytes(choose(|limits| limits.max_memory_bytes, MEMORY)),
            wall: Duration::from_secs(choose(|limits| limits.max_wall_seconds, WALL_SECONDS)),
            output: [
                choose(|limits| limits.max_stdout_bytes, STDOUT),
                choose(|limits| limits.max_stderr_bytes, STDERR),
            ],
        }
    }

    /// The maximum of memory and of output, with the given wall time.
    pub(crate) fn ceiling(wall: Duration) -> Self {
        Self { memory: Size::from_bytes(MEMORY.1), wall, output: [STDOUT.0, STDERR.0] }
    }
}

// Credentials. A value goes from its resolver into the environment of one child, and nowhere else.

/// The future that [`CredentialResolver::resolve`] returns.
pub type Resolving<'r> = Pin<Box<dyn Future<Output = Result<Option<Secret>, CredentialError>> + Send + 'r>>;

/// Provides credentials from a key ring, a vault or a file. Kennel asks it anew for each spawn, once for each
/// key, after it has accepted everything else about the spawn.
///
/// ```
/// use kennel::{Secret, broker::{CredentialResolver, Resolving}};
///
/// struct KeyRing;
///
/// impl CredentialResolver for KeyRing {
///     fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
///         Box::pin(async move {
///             Ok(match key {
///                 "GH_TOKEN" => Some(Secret::from(std::fs::read("/run/secrets/gh")?)),
///                 _ => None,
///             })
///         })
///     }
/// }
/// ```
pub trait CredentialResolver: Send + Sync {
    /// Returns the value for `key`, the name of the child's environment variable; `None` if there is no such
    /// credential.
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r>;
}

/// A resolver that has no credentials.
///
/// ```
/// use kennel::broker::{CredentialResolver, NoCredentials};
///
/// let resolver: &dyn CredentialResolver = &NoCredentials;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredentials;

impl CredentialResolver for NoCredentials {
    fn resolve<'r>(&'r self, _: &'r str) -> Resolving<'r> {
        Box::pin(async { Ok(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: u64) -> SpawnLimits {
        SpawnLimits {
            max_memory_bytes: Some(value),
            max_wall_seconds: Some(value),
            max_stdout_bytes: Some(value),
            max_stderr_bytes: Some(value),
        }
    }

    fn numbers(limits: Effective) -> [u64; 4] {
        [limits.memory.bytes(), limits.wall.as_secs(), limits.output[0], limits.output[1]]
    }

    #[test]
    fn caller_then_manifest_then_default_below_the_ceiling() {
        let none = SpawnLimits::default();
        assert_eq!(numbers(Effective::of(&none, &none)), [64 << 20, 30, 1 << 20, 256 << 10]);
        assert_eq!(numbers(Effective::of(&none, &all(7))), [7; 4]);
        assert_eq!(numbers(Effective::of(&all(3), &all(7))), [3; 4]);
        assert_eq!(
            numbers(Effective::of(&all(9), &all(7))),
            [9; 4],
            "the caller's value overrides a lower one"
        );
        let ceilings = [1 << 30, 300, 64 << 20, 64 << 20];
        assert_eq!(numbers(Effective::of(&all(u64::MAX), &none)), ceilings);
        assert_eq!(numbers(Effective::of(&none, &all(u64::MAX))), ceilings);
    }
}

#[cfg(test)]
mod credential_tests {
    use super::*;

    #[test]
    fn debug_output_shows_nothing() {
        let secret = Secret::from("hidden".to_owned());
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "Secret Some(\n    Secret,\n)");
        assert_eq!(secret.expose(), b"hidden");
    }
}
