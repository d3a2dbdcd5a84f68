//! Names of what is there for a while only.

use std::ffi::OsString;

use crate::sys;

/// A name that nobody else has.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn temporary_name() -> nix::Result<OsString> {
    Ok(format!(".kennel-{:016x}.tmp", sys::random()?).into())
}
