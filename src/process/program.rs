//! The program of a command: where it is looked for, and which strings a process can have.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::policy::known_variables::SYSTEM_PATH;
use crate::report::error::Error;

/// The paths at which the program is looked for: itself, if its name has a slash; otherwise one in each
/// directory of `path`, the command's own PATH. Without a PATH the system's directories count, as in
/// execvp(3), but not the working directory.
pub(crate) fn candidates(program: &OsStr, path: Option<&OsStr>, directory: &Path) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![directory.join(program)];
    }
    // An empty or relative entry means the working directory, as in a shell.
    let entries = std::env::split_paths(path.unwrap_or(OsStr::new(SYSTEM_PATH)));
    entries.map(|entry| directory.join(entry).join(program)).collect()
}

/// The path of the program that starts, if a process without Kennel in it looked for it as
/// [`candidates`] says. If none can be executed, the first that exists: starting it reports the right error.
/// Else one that certainly does not exist, because a directory of PATH that cannot be entered says nothing
/// about the program.
pub(crate) fn executable(program: &OsStr, path: Option<&OsStr>, directory: &Path) -> PathBuf {
    let places = candidates(program, path, directory);
    let place = places
        .iter()
        .find(|place| place.is_file() && access(*place, AccessFlags::X_OK).is_ok())
        .or_else(|| places.iter().find(|place| place.exists()))
        .or_else(|| places.iter().find(|place| place.try_exists().is_ok()))
        .or(places.first());
    place.map_or_else(|| program.into(), PathBuf::clone)
}

/// Checks the words of a command before there is a process.
///
/// # Errors
/// The program is empty, or a word has a NUL byte.
pub(crate) fn check_words(program: &OsStr, arguments: &[OsString]) -> Result<(), Error> {
    if program.is_empty() {
        let reason = "is empty".to_owned();
        return Err(Error::Command { what: "program", value: String::new(), reason });
    }
    c_string("program", program)?;
    arguments.iter().try_for_each(|argument| c_string("argument", argument).map(drop))
}

/// `NAME=VALUE` for execve(2).
///
/// # Errors
/// A NUL byte anywhere, no name.
pub(crate) fn variable(name: &OsStr, value: &OsStr) -> Result<CString, Error> {
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(refused("environment variable", name, "is not a name"));
    }
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(b'=');
    bytes.extend_from_slice(value.as_bytes());
    // The value may be a secret, so the message has the name only.
    CString::new(bytes).map_err(|_| refused("environment variable", name, "contains a NUL byte"))
}

/// A string for execve(2).
///
/// # Errors
/// A NUL byte.
pub(crate) fn c_string(what: &'static str, value: &OsStr) -> Result<CString, Error> {
    CString::new(value.to_owned().into_vec()).map_err(|_| refused(what, value, "contains a NUL byte"))
}

/// The error for a part of a command that no process can have.
pub(crate) fn refused(what: &'static str, value: &OsStr, reason: &str) -> Error {
    let mut value = value.to_string_lossy().into_owned();
    if value.chars().count() > 80 {
        value = value.chars().take(80).chain(['…']).collect();
    }
    Error::Command { what, value, reason: reason.to_owned() }
}
