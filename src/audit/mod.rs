//! The audit log: a line of JSON for each session, command, decision, denial and limit.
//!
//! The log has names, paths and numbers. It never has the data of connections or the values of environment
//! variables. It has the arguments of commands only if the policy asks for them.

pub(crate) mod chain;
pub(crate) mod file;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod trail;

pub use crate::audit::chain::{Verified, verify_audit};
pub use crate::report::error::audit::AuditError;

use std::fs::DirBuilder;
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::caller::writers::another_writer;
use crate::policy::audit::{Audit, DATE};

/// The default log of the day (UTC) that contains `date`: `$XDG_STATE_HOME/kennel/audit/exec-YYYY-MM-DD.log`,
/// or the same below `~/.local/state` if `XDG_STATE_HOME` is not set.
///
/// It makes the directory with mode 0700 if that does not exist, so that any program can write there. The
/// log itself is made by who writes it; Kennel makes it with mode 0600. [`Audit::usual`] makes nothing.
///
/// ```no_run
/// use std::time::SystemTime;
///
/// let path = kennel::audit::audit_log_path(SystemTime::now())?;
/// println!("{}", path.display());
/// # Ok::<(), kennel::audit::AuditError>(())
/// ```
///
/// # Errors
/// [`AuditError::Write`]: neither `XDG_STATE_HOME` nor `HOME` is set, the directory cannot be made, or others
/// can write to it.
pub fn audit_log_path(date: SystemTime) -> Result<PathBuf, AuditError> {
    let name = format!("exec-{}.log", day(date));
    let failed = |path: PathBuf| |source| AuditError::Write { path, source };
    let Some(directory) = default_directory() else {
        let source = io::Error::new(ErrorKind::NotFound, "neither XDG_STATE_HOME nor HOME is set");
        return Err(failed(name.into())(source));
    };
    let path = directory.join(name);
    create_default_directory(&path).map_err(failed(path.clone()))?;
    Ok(path)
}

impl Audit {
    /// The default log, with a file for each day, as [`audit_log_path`] names it. `None` if neither
    /// `XDG_STATE_HOME` nor `HOME` is set. Kennel makes its directory when it opens the log.
    #[must_use]
    pub fn usual() -> Option<Self> {
        Some(Self::new(default_directory()?.join(format!("exec-{DATE}.log"))))
    }
}

fn default_directory() -> Option<PathBuf> {
    // The XDG base directory specification ignores relative paths.
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("kennel/audit"))
}

/// The day in UTC, as in file names: `2026-01-31`.
pub(crate) fn day(time: SystemTime) -> String {
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.truncate("2026-01-31".len());
    text
}

/// Creates the directory of a log if it is the default directory and does not exist.
///
/// # Errors
/// The directory cannot be created; `PermissionDenied` if other users could put their own log into it.
pub(crate) fn create_default_directory(log: &Path) -> io::Result<()> {
    let Some(directory) = default_directory().filter(|default| log.parent() == Some(default)) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let metadata = directory.metadata()?;
    let trusted = [0, nix::unistd::geteuid().as_raw()];
    match another_writer(&directory, &metadata, &trusted) {
        None => Ok(()),
        Some(who) => {
            let reason = format!("others can write to its directory: {who}");
            Err(io::Error::new(ErrorKind::PermissionDenied, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_day_is_in_utc() {
        assert_eq!(day(SystemTime::UNIX_EPOCH + Duration::from_secs(86_399)), "1970-01-01");
        assert_eq!(day(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400)), "1970-01-02");
    }

    #[test]
    fn only_the_default_directory_is_created() {
        let place = tempfile::tempdir().expect("a directory");
        create_default_directory(&place.path().join("absent/log")).expect("nothing to do");
        assert!(!place.path().join("absent").exists());
    }
}
