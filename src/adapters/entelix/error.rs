//! Errors, as the trait's crate tells them apart: what the caller can do otherwise is shown to the model, the rest is for
//! whoever runs it.

use crate::Error;

/// What a call comes to that Kennel has refused.
pub(super) fn told(error: Error) -> entelix_core::Error {
    let words = error.chain();
    match error {
        Error::NotFound { .. } | Error::NotExecutable { .. } | Error::Command { .. } | Error::File { .. } => {
            entelix_core::Error::invalid_request(words)
        }
        _ => match error.remedy() {
            Some(remedy) => entelix_core::Error::config(format!("{words}; hint: {remedy}")),
            None => entelix_core::Error::config(words),
        },
    }
}
