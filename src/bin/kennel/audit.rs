//! `kennel audit`: whether logs are whole.

use std::process::ExitCode;

use kennel::{AuditError, Error, verify_audit};

use crate::{args::AuditAction, report};

/// A log is not whole.
const BROKEN: u8 = 1;

/// Runs `kennel audit`.
pub(crate) fn audit(action: &AuditAction) -> Result<ExitCode, Error> {
    let AuditAction::Verify { head, files } = action;
    if let (Some(head), [_, _, ..]) = (head, &files[..]) {
        let reason = "a hash is that of a line in one log: name one FILE with it".to_owned();
        return Err(Error::Command { what: "--head", value: head.clone(), reason });
    }
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let found = match verify_audit(file, head.as_deref()) {
            Err(error @ AuditError::Broken { .. }) => {
                report::error(&error.into());
                code = BROKEN.into();
                continue;
            }
            found => found?,
        };
        let (records, chained) = (found.records, found.chained);
        let line = format!("{}: {records} records, {chained} chained, head {}\n", file.display(), found.head);
        report::answer(line.as_bytes())?;
    }
    Ok(code)
}
