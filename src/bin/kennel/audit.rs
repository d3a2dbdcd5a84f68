//! `kennel audit`: whether logs are whole.

use std::{path::Path, process::ExitCode};

use kennel::{AuditError, Error, verify_audit};

use crate::{args::AuditAction, report};

/// A log is not whole.
const BROKEN: u8 = 1;

/// Runs `kennel audit`.
pub(crate) fn audit(action: &AuditAction) -> Result<ExitCode, Error> {
    let AuditAction::Verify { head, files } = action;
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match verify(file, head.as_deref()) {
            Err(error @ AuditError::Broken { .. }) => {
                report::error(&error.into());
                code = BROKEN.into();
            }
            found => found?,
        }
    }
    Ok(code)
}

fn verify(file: &Path, head: Option<&str>) -> Result<(), AuditError> {
    let found = verify_audit(file, head)?;
    println!("{}: {} records, {} chained, head {}", file.display(), found.records, found.chained, found.head);
    Ok(())
}
