//! The audit log: a line of JSON for each session, command, decision, denial and limit. Names, paths and numbers only;
//! nothing of what passes, no value of the environment, and arguments only where the policy says so.

pub(crate) mod chain;
pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod trail;

use std::fs::DirBuilder;
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::policy::audit::{Audit, DATE};

// Where the log of a user lies who named none.

/// The usual log of that day, UTC: `$XDG_STATE_HOME/kennel/audit/exec-YYYY-MM-DD.log`, or below `~/.local/state` where
/// that is not set. `None` where there is no home either. Nothing is made; who opens the log makes its directory with
/// mode 0700.
///
/// ```
/// use std::time::SystemTime;
///
/// if let Some(path) = kennel::audit_log_path(SystemTime::UNIX_EPOCH) {
///     assert!(path.ends_with("kennel/audit/exec-1970-01-01.log"));
/// }
/// ```
#[must_use]
pub fn audit_log_path(date: SystemTime) -> Option<PathBuf> {
    Some(directory()?.join(format!("exec-{}.log", day(date))))
}

impl Audit {
    /// The usual log, a file for each day: that of [`audit_log_path`]. `None` where neither `XDG_STATE_HOME` nor `HOME`
    /// says where.
    #[must_use]
    pub fn usual() -> Option<Self> {
        Some(Self::new(directory()?.join(format!("exec-{DATE}.log"))))
    }
}

fn directory() -> Option<PathBuf> {
    // What is not absolute is to be ignored (XDG base directory specification).
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")))?;
    Some(state.join("kennel/audit"))
}

/// A day, UTC, as file names have it.
pub(crate) fn day(time: SystemTime) -> String {
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.truncate("2026-01-31".len());
    text
}

/// Makes the directory of a log where it is the usual one and missing.
///
/// # Errors
/// Those of making it; `PermissionDenied` where others could put a log of theirs into it.
pub(crate) fn make(log: &Path) -> io::Result<()> {
    let Some(directory) = directory().filter(|usual| log.parent() == Some(usual)) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let found = directory.metadata()?;
    let is_ours = found.uid() == nix::unistd::geteuid().as_raw() || found.uid() == 0;
    if is_ours && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, "others can write to its directory"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_day_is_a_day() {
        assert_eq!(day(SystemTime::UNIX_EPOCH + Duration::from_secs(86_399)), "1970-01-01");
        assert_eq!(day(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400)), "1970-01-02");
    }

    #[test]
    fn a_directory_that_is_not_the_usual_one_is_not_made() {
        let place = tempfile::tempdir().expect("a directory");
        make(&place.path().join("absent/log")).expect("left alone");
        assert!(!place.path().join("absent").exists());
    }
}
