//! `kennel audit`: verifies audit logs.

use std::process::ExitCode;

use kennel::{
    Error,
    audit::{AuditError, verify_audit},
};

use crate::{FAILED, args::AuditAction, escape::harmless, report};

/// Exit status if a log was changed.
const BROKEN: u8 = 1;

/// Runs `kennel audit`.
pub(crate) fn audit(action: &AuditAction) -> Result<ExitCode, Error> {
    let AuditAction::Verify { head, files } = action;
    if let (Some(head), [_, _, ..]) = (head, &files[..]) {
        let reason = "a hash belongs to one log: name one FILE".to_owned();
        return Err(Error::Command { what: "--head", value: head.clone(), reason });
    }
    let head = head.as_deref().map(hash).transpose()?;
    let mut code = 0;
    for file in files {
        let found = match verify_audit(file, head.as_deref()) {
            Err(error) => {
                let of_this = if matches!(error, AuditError::Broken { .. }) { BROKEN } else { FAILED };
                report::error(&error.into());
                // Check the other logs too. A log that cannot be read outranks one that was changed.
                code = code.max(of_this);
                continue;
            }
            Ok(found) => found,
        };
        let (records, chained) = (found.records, found.chained);
        let line = format!(
            "{}: {records} records, {chained} chained, head {}\n",
            harmless(&file.to_string_lossy()),
            found.head
        );
        report::print(line.as_bytes())?;
    }
    Ok(code.into())
}

/// Parses a hash as logs print it.
fn hash(typed: &str) -> Result<String, Error> {
    match typed.len() == 64 && typed.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(typed.to_ascii_lowercase()),
        false => {
            let reason =
                "is not a SHA-256 hash: expected 64 hexadecimal digits, as `kennel audit verify` prints them"
                    .to_owned();
            Err(Error::Command { what: "--head", value: typed.to_owned(), reason })
        }
    }
}
