//! Checks of paths by their text alone. Nothing here looks up a path.

use std::path::{Component, Path, PathBuf};

use crate::report::error::policy::PolicyError;

/// Checks that a path is not empty and has no NUL byte, so that the kernel accepts it.
pub(crate) fn check_text(key: &str, path: &Path) -> Result<(), PolicyError> {
    if path.as_os_str().is_empty() {
        return Err(PolicyError::path(key, path, "a path is missing"));
    }
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PolicyError::path(key, path, "a path cannot contain a NUL byte"));
    }
    Ok(())
}

/// Checks a path inside the sandbox.
pub(crate) fn check_target(key: &str, path: &Path) -> Result<(), PolicyError> {
    let refuse = |reason| Err(PolicyError::path(key, path, reason));
    check_text(key, path)?;
    if !path.is_absolute() {
        return refuse("must be absolute");
    }
    if has_parent(path) {
        return refuse("must not contain `..`");
    }
    if path.parent().is_none() {
        return refuse("is the root of the sandbox; name a path below it");
    }
    if path.starts_with("/proc") {
        return refuse("the sandbox has its own /proc; choose another path");
    }
    Ok(())
}

/// Checks a path of the host. It may be relative and may contain `..`: Kennel resolves both before it uses
/// the path.
pub(crate) fn check_source(key: &str, path: &Path, writable: bool) -> Result<(), PolicyError> {
    let refuse = |reason| Err(PolicyError::path(key, path, reason));
    check_text(key, path)?;
    let plain = without_dots(path);
    if plain == Path::new("/") {
        return refuse(
            "would show the host's /proc; name a directory below it (profile full-dev shows the rest read-only)",
        );
    }
    if plain.starts_with("/proc") {
        return refuse("the sandbox has its own /proc; that of the host is never shown");
    }
    if writable && plain.starts_with("/sys") {
        return refuse("/sys can only be shown read-only; mount it as ro");
    }
    Ok(())
}

/// Whether the path contains `..`.
pub(crate) fn has_parent(path: &Path) -> bool {
    path.components().any(|component| component == Component::ParentDir)
}

/// The path without `.` and `..`, by text alone. It is good enough to refuse a path or to look one up, but
/// not to open one: `..` after a symlink leads elsewhere.
pub(crate) fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}
