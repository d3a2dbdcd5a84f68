//! The manifest: the programs that a caller may run, with their arguments, files, hosts and credentials, and
//! what a connector may use. Plain data. Values are read strictly; a key that Kennel does not know is ignored
//! and noted.

pub(crate) mod connector;
#[cfg(test)]
mod tests;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};

use crate::broker::checked::SpawnLimits;
use crate::broker::manifest::connector::{About, Credential, ManifestLimits};
use crate::broker::operation::Operation;
use crate::policy::network::rule::Rule;
use crate::policy::text;
use crate::report::enforcement::Note;
use crate::report::error::policy::PolicyError;
use crate::report::error::spawn::Hash;
use crate::sys::packet::inherited_descriptor;

/// What a caller may run. Read from TOML; `docs/broker.md` shows a complete manifest.
///
/// ```
/// use kennel::broker::Manifest;
///
/// let manifest = Manifest::from_toml(
///     r#"
///     [capabilities.network]
///     hosts = ["api.github.com:443"]
///     [capabilities.spawn]
///     programs = [{ path = "/usr/bin/gh" }]
///     credential_env_keys = ["GH_TOKEN"]
///     [capabilities.spawn.operations]
///     issue_list = "gh issue list [--state {state}]"
///     "#,
/// )?;
/// assert_eq!(manifest.operations().collect::<Vec<_>>(), ["issue_list"]);
///
/// let manifest = Manifest::from_toml("[capabilities.spawn]\nforwarder = 'ssh'")?;
/// assert_eq!(manifest.notes()[0].subject, "manifest:2:1");
/// assert_eq!(manifest.notes()[0].text, "Kennel does not know the key `forwarder` and ignores it");
/// # Ok::<(), kennel::report::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The hosts that the proxy allows. Empty: no network.
    pub(crate) hosts: Vec<String>,
    pub(crate) spawn: Spawn,
    /// The credential that a connector may use in its requests.
    pub(crate) credential: Option<Credential>,
    /// The limits of a connector's call.
    pub(crate) limits: ManifestLimits,
    pub(crate) connector: About,
    pub(crate) notes: Vec<Note>,
    /// The absolute path of the manifest file. `None`: read from text, or through a descriptor.
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Spawn {
    pub(crate) programs: Vec<Program>,
    pub(crate) env_passthrough: Vec<VariableName>,
    pub(crate) credential_env_keys: Vec<VariableName>,
    pub(crate) fs_read: Vec<String>,
    pub(crate) fs_write: Vec<String>,
    pub(crate) cwd: Option<String>,
    #[serde(deserialize_with = "text::unique_map")]
    pub(crate) operations: BTreeMap<String, Operation>,
    pub(crate) limits: SpawnLimits,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Program {
    /// Absolute, or below `~/`.
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) hash: Option<Hash>,
}

/// The name of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VariableName(pub(crate) String);

/// A whole manifest.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Whole {
    connector: About,
    capabilities: Capabilities,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    network: Network,
    spawn: Spawn,
    credential: Option<Credential>,
    limits: ManifestLimits,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    hosts: Vec<HostAndPort>,
}

/// Exactly one host and one port.
struct HostAndPort(String);

/// The message for an empty manifest.
const EMPTY: &str = "the manifest is empty; list at least one program";

impl Manifest {
    /// Parses a manifest. Does not check whether its paths exist.
    ///
    /// # Errors
    /// [`PolicyError::Syntax`] with line and column; [`PolicyError::Value`] for an invalid or contradictory
    /// value.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        Self::parse("manifest", text)
    }

    /// Reads a manifest file of at most 1 MiB. Programs cannot write to this file, even if it is inside
    /// `fs_write`. Kennel cannot protect a file that it reads through an inherited descriptor.
    ///
    /// # Errors
    /// Those of [`from_toml`](Self::from_toml), and [`PolicyError::Read`] if the file cannot be read.
    ///
    /// ```no_run
    /// let manifest = kennel::broker::Manifest::load("gh.toml".as_ref())?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let manifest = Self::parse(&path.display().to_string(), &text::read("manifest", path)?)?;
        let is_file = inherited_descriptor(path).is_none();
        Ok(Self { file: is_file.then(|| text::absolute(path, path)).transpose()?, ..manifest })
    }

    /// The names of its operations, sorted.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.spawn.operations.keys().map(String::as_str)
    }

    /// The name of the connector, if the manifest has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.connector.name.as_deref()
    }

    /// The version of the connector.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.connector.version.as_deref()
    }

    /// The publisher of the connector.
    #[must_use]
    pub fn publisher(&self) -> Option<&str> {
        self.connector.publisher.as_deref()
    }

    /// What Kennel ignores in the manifest: one note for each key that it does not know. Show them: the key
    /// may be a misspelled restriction. Tables of other tools get no note at the top, in `[connector]` and in
    /// `[capabilities.credential]`.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn parse(file: &str, contents: &str) -> Result<Self, PolicyError> {
        let whole: Whole = text::parse_toml(file, contents, EMPTY)?;
        let Capabilities { network, spawn, credential, limits } = whole.capabilities;
        let hosts = network.hosts.into_iter().map(|HostAndPort(host)| host).collect();
        let manifest = Self {
            hosts,
            spawn,
            credential,
            limits,
            connector: whole.connector,
            notes: unknown::notes(file, contents),
            file: None,
        };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), PolicyError> {
        let spawn = &self.spawn;
        let programs = spawn.programs.iter().map(|program| ("programs", &program.path));
        let paths = spawn.fs_read.iter().map(|path| ("fs_read", path));
        let paths = paths.chain(spawn.fs_write.iter().map(|path| ("fs_write", path)));
        for (key, path) in paths.chain(spawn.cwd.iter().map(|path| ("cwd", path))).chain(programs) {
            if !(path.starts_with('/') || path == "~" || path.starts_with("~/")) || path.contains('\0') {
                let key = format!("capabilities.spawn.{key}");
                return Err(PolicyError::value(key, path, "must be absolute, or begin with ~/"));
            }
        }
        for (name, operation) in &spawn.operations {
            if spawn.programs.iter().all(|program| !program.is_called(&operation.program)) {
                let key = format!("capabilities.spawn.operations.{name}");
                let reason = "is not one of the programs; list it there, or correct the name";
                return Err(PolicyError::value(key, &operation.program, reason));
            }
        }
        let limits = [
            ("spawn.limits.max_memory_bytes", spawn.limits.max_memory_bytes),
            ("spawn.limits.max_wall_seconds", spawn.limits.max_wall_seconds),
            ("limits.memory_bytes", self.limits.memory_bytes),
            ("limits.wall_seconds", self.limits.wall_seconds),
        ];
        match limits.into_iter().find(|(_, value)| *value == Some(0)) {
            Some((key, _)) => Err(PolicyError::value(format!("capabilities.{key}"), 0, "must be at least 1")),
            None => Ok(()),
        }
    }
}

impl Program {
    /// Whether `name` means this program: by its path as written, or by the last component of the path.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        if name.contains('/') { self.path == name } else { self.path.rsplit('/').next() == Some(name) }
    }
}

impl<'de> Deserialize<'de> for VariableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(de::Error::custom(format!("`{name}` is not a name of an environment variable")));
        }
        Ok(Self(name))
    }
}

impl<'de> Deserialize<'de> for HostAndPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let host = String::deserialize(deserializer)?.to_ascii_lowercase();
        if host.contains('*') || host.contains('/') {
            return Err(de::Error::custom(format!("`{host}`: a host is exact, such as api.github.com:443")));
        }
        match host.parse::<Rule>() {
            Ok(_) => Ok(Self(host)),
            Err(error) => Err(de::Error::custom(format!("`{host}`: {error}"))),
        }
    }
}
