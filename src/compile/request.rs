//! From a command to a request: the search path applied, strings checked, directory made absolute. Pure.

use std::{
    ffi::{CString, OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use kennel_helper::{
    plan::Request,
    wire::{Field, ListBuf},
};

use super::environment::SYSTEM_PATH;
use crate::Error;

/// A command, checked and owned; [`RequestBuf::encode`] borrows it.
#[derive(Clone, Debug)]
pub(crate) struct RequestBuf {
    cwd: CString,
    programs: ListBuf,
    arguments: ListBuf,
    environment: ListBuf,
    window: Option<(u16, u16)>,
    background: bool,
    limits: Vec<u8>,
}

/// What a command is made from.
pub(crate) struct Wanted<'w> {
    pub(crate) program: &'w OsStr,
    pub(crate) arguments: &'w [OsString],
    pub(crate) environment: &'w [(OsString, OsString)],
    /// Absolute.
    pub(crate) directory: &'w Path,
    /// Rows and columns, when a terminal is wanted.
    pub(crate) terminal: Option<(u16, u16)>,
    /// Whether what it leaves behind lives on.
    pub(crate) background: bool,
    /// Encoded steps right before the program.
    pub(crate) limits: &'w [u8],
}

impl RequestBuf {
    /// # Errors
    /// An empty program name, a NUL anywhere, a variable without a name.
    pub(crate) fn new(wanted: &Wanted<'_>) -> Result<Self, Error> {
        if wanted.program.is_empty() {
            return Err(refused("program", wanted.program, "is empty"));
        }
        let path = wanted.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let programs = places(wanted.program, path.map(OsString::as_os_str), wanted.directory)
            .into_iter()
            .map(|path| c_string("program", path.as_os_str()))
            .collect::<Result<ListBuf, Error>>()?;
        let mut arguments = ListBuf::default();
        arguments.push(&c_string("program", wanted.program)?);
        for argument in wanted.arguments {
            arguments.push(&c_string("argument", argument)?);
        }
        let mut environment = ListBuf::default();
        for (name, value) in wanted.environment {
            environment.push(&variable(name, value)?);
        }
        let cwd = c_string("working directory", wanted.directory.as_os_str())?;
        Ok(Self {
            cwd,
            programs,
            arguments,
            environment,
            window: wanted.terminal,
            background: wanted.background,
            limits: wanted.limits.to_owned(),
        })
    }

    /// The request's bytes, and how much scratch the inside needs to carry it out.
    pub(crate) fn encode(&self) -> (Vec<u8>, usize) {
        let (rows, columns) = self.window.unwrap_or_default();
        let request = Request {
            cwd: &self.cwd,
            programs: self.programs.list(),
            arguments: self.arguments.list(),
            environment: self.environment.list(),
            terminal: self.window.is_some().into(),
            window: u32::from(rows) << 16 | u32::from(columns),
            background: self.background.into(),
            limits: &self.limits,
        };
        let mut bytes = Vec::new();
        request.put(&mut bytes);
        (bytes, request.scratch())
    }
}

/// Where the program could be: itself if its name has a slash, else in every directory of `path`, which is the command's
/// own PATH. Without one in those of the system, as execvp(3) does; not in the working directory.
pub(crate) fn places(program: &OsStr, path: Option<&OsStr>, directory: &Path) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![directory.join(program)];
    }
    // An empty or relative entry means the working directory, as in a shell.
    let entries = std::env::split_paths(path.unwrap_or(OsStr::new(SYSTEM_PATH)));
    entries.map(|entry| directory.join(entry).join(program)).collect()
}

/// # Errors
/// A NUL byte anywhere, no name.
pub(crate) fn variable(name: &OsStr, value: &OsStr) -> Result<CString, Error> {
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(refused("environment variable", name, "is not a name"));
    }
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(b'=');
    bytes.extend_from_slice(value.as_bytes());
    // The value may be a secret: only the name appears in the message.
    CString::new(bytes).map_err(|_| refused("environment variable", name, "contains a NUL byte"))
}

/// # Errors
/// A NUL byte.
pub(crate) fn c_string(what: &'static str, value: &OsStr) -> Result<CString, Error> {
    CString::new(value.to_owned().into_vec()).map_err(|_| refused(what, value, "contains a NUL byte"))
}

fn refused(what: &'static str, value: &OsStr, reason: &str) -> Error {
    let mut value = value.to_string_lossy().into_owned();
    if value.chars().count() > 80 {
        value = value.chars().take(80).chain(['…']).collect();
    }
    Error::Command { what, value, reason: reason.to_owned() }
}
