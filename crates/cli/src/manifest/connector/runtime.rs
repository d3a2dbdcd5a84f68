//! What the commands of connectors share: a manifest, a runtime with its cache, an error.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use kennel::{
    Error,
    broker::{Manifest, SpawnError, SpawnPolicy},
    connector::{ConnectorError, Runtime, RuntimeBuilder, default_cache},
    internal::escape::harmless,
    report::Note,
};

use crate::report::{self, remedy::FLAGS};

/// Reads a manifest.
///
/// # Errors
/// It cannot be read, or is malformed.
pub(super) fn load(manifest: &Path) -> Result<SpawnPolicy, Error> {
    Ok(Manifest::load(manifest).map(SpawnPolicy::new).map_err(SpawnError::from)?)
}

/// The directory for compiled code.
///
/// # Errors
/// The user has no home.
pub(super) fn cache_directory() -> Result<PathBuf, Error> {
    let reason = "is not set, and neither the password database nor XDG_CACHE_HOME names a directory";
    default_cache().ok_or_else(|| Error::Command {
        what: "environment variable",
        value: "HOME".to_owned(),
        reason: reason.to_owned(),
    })
}

/// Builds a runtime that keeps compiled code. If the cache cannot be used, the runtime has none, and a note
/// says why.
pub(super) fn with_cache(
    set_up: impl Fn() -> RuntimeBuilder,
    policy: &SpawnPolicy,
) -> Result<(Runtime, Option<Note>), ConnectorError> {
    let built = cache_directory().map_err(ConnectorError::from).and_then(|directory| {
        let runtime = set_up().cache(&directory).build()?;
        policy.check_outside("compiled code", &directory.join("code")).map_err(Error::from)?;
        Ok(runtime)
    });
    let unusable = match built {
        Ok(runtime) => return Ok((runtime, None)),
        Err(error) => error,
    };
    // If something else is wrong, it is still.
    let runtime = set_up().build()?;
    Ok((runtime, Some(without_cache(&unusable))))
}

/// The note that compiled code is not kept.
pub(super) fn without_cache(error: &ConnectorError) -> Note {
    let text = format!("compiled code is not kept: {}", error.failure().message);
    Note::new("cache", &text, error.remedy().cloned())
}

/// A path in messages.
pub(super) fn escaped_path(path: &Path) -> String {
    harmless(&path.display().to_string())
}

/// Prints an error of a connector. Returns its exit status.
pub(super) fn failed(error: &ConnectorError) -> ExitCode {
    report::error_lines(&error.lines(FLAGS));
    error.exit_code().into()
}
