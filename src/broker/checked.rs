//! The result of a check, the limits of a spawn, and the credential resolver.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::audit::trail::Origin;
use crate::broker::paths::Resolved;
use crate::policy::audit::Audit;
use crate::report::error::spawn::{CredentialError, Hash};
use crate::sys::secret::Secret;

/// A spawn that passed [`SpawnPolicy::check`](crate::broker::SpawnPolicy::check): what the program gets, and
/// no more. Its `Debug` output shows no values of variables or arguments.
///
/// ```
/// use kennel::broker::{Envelope, Manifest, SpawnPolicy};
///
/// let manifest = "[capabilities.network]\nhosts = ['API.github.com:443']\n\
///     [capabilities.spawn]\nprograms = [{ path = '/bin/sh' }]\nfs_read = ['/usr']\ncwd = '/usr'";
/// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
/// let spawn = policy.check(&Envelope::new("sh", &["-c", "pwd"]))?;
/// assert_eq!(spawn.arguments(), ["-c", "pwd"]);
/// assert_eq!(spawn.hosts(), ["api.github.com:443"]);
/// assert_eq!((spawn.cwd(), spawn.stdout_cap()), (Some("/usr".as_ref()), 1 << 20));
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
pub struct CheckedSpawn {
    /// The program's path, with links resolved.
    pub(crate) program: PathBuf,
    /// The program's path as the manifest has it, with `~/` expanded. The program gets it as `argv[0]`.
    pub(crate) called: PathBuf,
    pub(crate) hash: Option<Hash>,
    /// The whole argument vector. Its first element is only compared with operations.
    pub(crate) argv: Vec<String>,
    pub(crate) operation: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// The variables of `env_passthrough` that the envelope does not set, with their values.
    pub(crate) passed: BTreeMap<String, OsString>,
    pub(crate) credentials: Vec<String>,
    pub(crate) stdin: Option<String>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) reads: Vec<PathBuf>,
    pub(crate) writes: Vec<PathBuf>,
    /// The manifest file. Programs cannot write to it.
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) hosts: Vec<String>,
    /// The limits of the caller, then of the manifest.
    pub(crate) limits: SpawnLimits,
    /// The log in which a sandbox of Kennel's records what happens.
    pub(crate) audit: Option<Audit>,
    /// What its records in the audit log name.
    pub(crate) origin: Origin,
}

impl CheckedSpawn {
    /// A spawn of the program alone: no arguments, nothing granted or passed.
    pub(crate) fn of(program: Resolved, limits: SpawnLimits) -> Self {
        Self {
            program: program.path,
            called: program.named,
            hash: None,
            argv: Vec::new(),
            operation: None,
            environment: BTreeMap::new(),
            passed: BTreeMap::new(),
            credentials: Vec::new(),
            stdin: None,
            cwd: None,
            reads: Vec::new(),
            writes: Vec::new(),
            manifest: None,
            hosts: Vec::new(),
            limits,
            audit: None,
            origin: Origin::default(),
        }
    }

    /// The program to execute, with links resolved.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The program's path as the manifest has it, with `~/` expanded: what the program gets as `argv[0]`.
    /// Programs such as busybox do what this name says.
    #[must_use]
    pub fn called(&self) -> &Path {
        &self.called
    }

    /// The hash that the bytes of the program must have, as `sha256:` and 64 hexadecimal digits. Read the
    /// file once, compare, and execute what was read: the file may change meanwhile.
    #[must_use]
    pub fn hash(&self) -> Option<String> {
        self.hash.map(|hash| hash.to_string())
    }

    /// The argument vector as the envelope has it, with `argv[0]`.
    #[must_use]
    pub fn argv(&self) -> &[String] {
        &self.argv
    }

    /// The arguments of the program, without `argv[0]`.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        self.argv.get(1..).unwrap_or_default()
    }

    /// The variables of the manifest that the program gets, with their values: those of the envelope, and the
    /// others of `env_passthrough`. Credentials are not among them, nor is what every program gets, such as
    /// PATH.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &OsStr)> {
        let asked = self.environment.iter().map(|(name, value)| (&**name, OsStr::new(value)));
        asked.chain(self.passed.iter().map(|(name, value)| (&**name, &**value)))
    }

    /// The operation that the arguments match, if the manifest has operations.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.operation.as_deref()
    }

    /// The variables whose values are credentials, in the order of the envelope.
    #[must_use]
    pub fn credentials(&self) -> &[String] {
        &self.credentials
    }

    /// The text for standard input. `None`: no input.
    #[must_use]
    pub fn stdin(&self) -> Option<&str> {
        self.stdin.as_deref()
    }

    /// The working directory, with links resolved; `None` means `/`.
    #[must_use]
    pub fn cwd(&self) -> Option<&Path> {
        self.cwd.as_deref()
    }

    /// The paths that the program may read beside the system, with links resolved. Those that it may also
    /// write are not among them.
    #[must_use]
    pub fn fs_read(&self) -> &[PathBuf] {
        &self.reads
    }

    /// The paths that the program may read and write, with links resolved.
    #[must_use]
    pub fn fs_write(&self) -> &[PathBuf] {
        &self.writes
    }

    /// The file of the manifest, which the program must not be able to write. `None`: the manifest was read
    /// from text, or through a descriptor.
    #[must_use]
    pub fn manifest_file(&self) -> Option<&Path> {
        self.manifest.as_deref()
    }

    /// The hosts that the program may reach, as `host:port`: those of the manifest, as far as the action
    /// leaves them. Empty: no network.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The limits, of the caller where it sets them, else of the manifest. Its methods give the values in
    /// force.
    #[must_use]
    pub fn limits(&self) -> &SpawnLimits {
        &self.limits
    }

    /// How many bytes of stdout are kept, at least 1. The program can write more.
    #[must_use]
    pub fn stdout_cap(&self) -> u64 {
        self.limits.stdout_cap()
    }

    /// How many bytes of stderr are kept, at least 1. The program can write more.
    #[must_use]
    pub fn stderr_cap(&self) -> u64 {
        self.limits.stderr_cap()
    }
}

impl fmt::Debug for CheckedSpawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedSpawn")
            .field("program", &self.program)
            .field("operation", &self.operation)
            .field("arguments", &self.arguments().len())
            .field("variables", &self.environment().map(|(name, _)| name).collect::<Vec<_>>())
            .field("credentials", &self.credentials)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

// Limits of a spawn.

/// Limits of a spawn, set by the manifest (`[capabilities.spawn.limits]`) or by the caller. The caller's
/// value overrides the manifest's. `None` means the other side's value, or the default, and so does 0. Values
/// above the maximum become the maximum. The methods give the values in force.
///
/// ```
/// use kennel::broker::{Manifest, SpawnLimits, SpawnPolicy};
///
/// let manifest = Manifest::from_toml("capabilities.spawn.programs = [{ path = '/usr/bin/git' }]")?;
/// let limits = SpawnLimits { max_memory_bytes: Some(256 << 20), ..SpawnLimits::default() };
/// assert_eq!(limits.memory_bytes(), 256 << 20);
/// assert_eq!(limits.stdout_cap(), SpawnLimits::DEFAULT_STDOUT_BYTES);
/// let policy = SpawnPolicy::new(manifest).limits(limits);
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

impl SpawnLimits {
    /// Memory, if nobody sets it: 64 MiB.
    pub const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;
    /// The most memory: 1 GiB.
    pub const MAX_MEMORY_BYTES: u64 = 1 << 30;
    /// Wall time in seconds, if nobody sets it.
    pub const DEFAULT_WALL_SECONDS: u64 = 30;
    /// The longest wall time, in seconds.
    pub const MAX_WALL_SECONDS: u64 = 300;
    /// Bytes kept of stdout, if nobody sets it: 1 MiB.
    pub const DEFAULT_STDOUT_BYTES: u64 = 1 << 20;
    /// Bytes kept of stderr, if nobody sets it: 256 KiB.
    pub const DEFAULT_STDERR_BYTES: u64 = 256 << 10;
    /// The most bytes kept of stdout and of stderr: 64 MiB each.
    pub const MAX_OUTPUT_BYTES: u64 = 64 << 20;

    /// The memory in force, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        in_force(self.max_memory_bytes, Self::DEFAULT_MEMORY_BYTES, Self::MAX_MEMORY_BYTES)
    }

    /// The wall time in force.
    #[must_use]
    pub fn wall_time(&self) -> Duration {
        let seconds = in_force(self.max_wall_seconds, Self::DEFAULT_WALL_SECONDS, Self::MAX_WALL_SECONDS);
        Duration::from_secs(seconds)
    }

    /// How many bytes of stdout are kept, at least 1.
    #[must_use]
    pub fn stdout_cap(&self) -> u64 {
        in_force(self.max_stdout_bytes, Self::DEFAULT_STDOUT_BYTES, Self::MAX_OUTPUT_BYTES)
    }

    /// How many bytes of stderr are kept, at least 1.
    #[must_use]
    pub fn stderr_cap(&self) -> u64 {
        in_force(self.max_stderr_bytes, Self::DEFAULT_STDERR_BYTES, Self::MAX_OUTPUT_BYTES)
    }

    /// These limits, and those of `other` where these are not set.
    pub(crate) fn or(&self, other: &Self) -> Self {
        let choose = |own: Option<u64>, other: Option<u64>| own.filter(|own| *own > 0).or(other);
        Self {
            max_memory_bytes: choose(self.max_memory_bytes, other.max_memory_bytes),
            max_wall_seconds: choose(self.max_wall_seconds, other.max_wall_seconds),
            max_stdout_bytes: choose(self.max_stdout_bytes, other.max_stdout_bytes),
            max_stderr_bytes: choose(self.max_stderr_bytes, other.max_stderr_bytes),
        }
    }

    /// The most memory, and a wall time.
    pub(crate) fn most(wall_seconds: u64) -> Self {
        Self {
            max_memory_bytes: Some(Self::MAX_MEMORY_BYTES),
            max_wall_seconds: Some(wall_seconds),
            ..Self::default()
        }
    }
}

fn in_force(value: Option<u64>, default: u64, most: u64) -> u64 {
    value.filter(|value| *value > 0).unwrap_or(default).min(most)
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

    fn numbers(own: &SpawnLimits, manifest: &SpawnLimits) -> [u64; 4] {
        let limits = own.or(manifest);
        [limits.memory_bytes(), limits.wall_time().as_secs(), limits.stdout_cap(), limits.stderr_cap()]
    }

    #[test]
    fn caller_then_manifest_then_default_below_the_ceiling() {
        let none = SpawnLimits::default();
        assert_eq!(numbers(&none, &none), [64 << 20, 30, 1 << 20, 256 << 10]);
        assert_eq!(numbers(&none, &all(7)), [7; 4]);
        assert_eq!(numbers(&all(3), &all(7)), [3; 4]);
        assert_eq!(numbers(&all(9), &all(7)), [9; 4], "the caller's value overrides a lower one");
        let ceilings = [1 << 30, 300, 64 << 20, 64 << 20];
        assert_eq!(numbers(&all(u64::MAX), &none), ceilings);
        assert_eq!(numbers(&all(0), &all(7)), [7; 4], "0 is no limit");
        assert_eq!(numbers(&all(0), &all(0)), [64 << 20, 30, 1 << 20, 256 << 10]);
        assert_eq!(numbers(&none, &all(u64::MAX)), ceilings);
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
