//! What a check comes to.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{limits::Effective, manifest::Hash, paths::Resolved};

/// A spawn that was found good: what [`SpawnPolicy::check`](super::SpawnPolicy::check) answers. Values of variables and arguments are not shown.
pub struct CheckedSpawn {
    /// The program's path without links.
    pub(super) program: PathBuf,
    /// Its path as the manifest has it, `~/` expanded: what it is told it is called.
    pub(super) called: PathBuf,
    pub(super) hash: Option<Hash>,
    pub(super) arguments: Vec<String>,
    pub(super) operation: Option<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// Variables that come from the caller's environment, where they are set there.
    pub(super) passed: Vec<String>,
    pub(super) credentials: Vec<String>,
    pub(super) stdin: Option<String>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) reads: Vec<PathBuf>,
    pub(super) writes: Vec<PathBuf>,
    /// The file of the manifest, which stays as it is.
    pub(super) manifest: Option<PathBuf>,
    pub(super) hosts: Vec<String>,
    pub(super) limits: Effective,
}

impl CheckedSpawn {
    /// The program and nothing else: no argument, nothing granted or passed.
    pub(super) fn of(program: Resolved, limits: Effective) -> Self {
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
        }
    }

    /// The program that will be executed, without links.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The operation of the manifest that the arguments are one of, if it has operations.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.operation.as_deref()
    }

    /// Where it will start; `None`: in `/`.
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
