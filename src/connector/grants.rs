//! What a manifest grants a connector, as plain data for people who decide about it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::broker::manifest::Manifest;
use crate::broker::manifest::connector::Credential;
use crate::connector::limits::{CallLimits, LimitsInForce};

/// What a manifest grants a connector. What a program can use of it depends on its
/// [imports](crate::connector::Imports).
///
/// ```
/// use kennel::broker::Manifest;
/// use kennel::connector::Grants;
///
/// let manifest = "[capabilities]\nnetwork.hosts = ['api.example.com:443']\ncredential.kind = 'api_key'";
/// let grants = Grants::of(&Manifest::from_toml(manifest)?);
/// assert_eq!(grants.hosts, ["api.example.com:443"]);
/// assert_eq!(grants.credential.unwrap().format, "Bearer {key}");
/// # Ok::<(), kennel::report::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Grants {
    /// The hosts of its requests, as `host:port`. Programs that it spawns reach these, too.
    pub hosts: Vec<String>,
    /// The credential of its requests.
    pub credential: Option<GrantedCredential>,
    /// The programs that it may spawn.
    pub programs: Vec<GrantedProgram>,
    /// The patterns of their arguments, by the names of operations. Empty: any arguments.
    pub operations: BTreeMap<String, String>,
    /// Variables that a spawn may set.
    pub variables: Vec<String>,
    /// Variables of spawned programs that hold credentials.
    pub credential_variables: Vec<String>,
    /// What spawned programs may read besides the system.
    pub read: Vec<String>,
    /// What spawned programs may read and write.
    pub write: Vec<String>,
    /// Memory of a call, in bytes, unless the call sets another limit.
    pub memory_bytes: u64,
    /// Wall time of a call, in seconds, unless the call sets another limit.
    pub wall_seconds: u64,
}

/// The credential of a connector's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrantedCredential {
    /// Its kind, by which a request and [`CredentialResolver`](crate::broker::CredentialResolver) name it:
    /// `oauth2` or `api_key`.
    pub kind: String,
    /// The header that Kennel sets.
    pub header: String,
    /// The text of the header; `{key}` stands for the value.
    pub format: String,
}

/// A program that a connector may spawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrantedProgram {
    /// Its path, as in the manifest.
    pub path: String,
    /// Its hash, if only these very bytes may run.
    pub hash: Option<String>,
}

impl Grants {
    /// What `manifest` grants.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        let spawn = &manifest.spawn;
        let LimitsInForce { memory, wall_time } = LimitsInForce::of(&CallLimits::default(), manifest);
        let credential =
            |Credential { kind, header, around: [before, after] }: &Credential| GrantedCredential {
                kind: kind.as_str().to_owned(),
                header: header.clone(),
                format: format!("{before}{{key}}{after}"),
            };
        let programs = spawn.programs.iter().map(|program| GrantedProgram {
            path: program.path.clone(),
            hash: program.hash.map(|hash| hash.to_string()),
        });
        let operations = spawn.operations.iter();
        Self {
            hosts: manifest.hosts.clone(),
            credential: manifest.credential.as_ref().map(credential),
            programs: programs.collect(),
            operations: operations.map(|(name, pattern)| (name.clone(), pattern.to_string())).collect(),
            variables: spawn.env_passthrough.iter().map(|name| name.0.clone()).collect(),
            credential_variables: spawn.credential_env_keys.iter().map(|name| name.0.clone()).collect(),
            read: spawn.fs_read.clone(),
            write: spawn.fs_write.clone(),
            memory_bytes: memory as u64,
            wall_seconds: wall_time.as_secs(),
        }
    }
}
