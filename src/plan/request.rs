//! From a command to a request: the search path applied, strings checked, directory made absolute. Pure.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use kennel_helper::plan::Request;
use kennel_helper::wire::{Field, ListBuf, Sink};
use zeroize::{Zeroize, Zeroizing};

use crate::plan::environment::SYSTEM_PATH;
use crate::report::error::Error;
use crate::sys::secret::Secret;

/// A command, checked and owned; [`RequestBuf::encode`] borrows it. What it has of the environment is wiped when it goes.
#[derive(Debug)]
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
    /// What the program is told it is called; `None`: `program`.
    pub(crate) called: Option<&'w OsStr>,
    pub(crate) arguments: &'w [OsString],
    pub(crate) environment: &'w [(OsString, OsString)],
    /// Variables besides, of which no copy may stay.
    pub(crate) secrets: &'w [(OsString, Secret)],
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
        arguments.push(&c_string("program", wanted.called.unwrap_or(wanted.program))?);
        for argument in wanted.arguments {
            arguments.push(&c_string("argument", argument)?);
        }
        let mut environment = environment_with_room(wanted);
        // Of two variables of one name, getenv(3) takes the first.
        let is_secret = |name: &OsString| wanted.secrets.iter().any(|(secret, _)| secret == name);
        for (name, value) in wanted.environment.iter().filter(|(name, _)| !is_secret(name)) {
            environment.push(&variable(name, value)?);
        }
        for (name, secret) in wanted.secrets {
            let bytes = secret_variable(name, secret)?;
            let string = CStr::from_bytes_with_nul(&bytes);
            environment
                .push(string.map_err(|_| refused("environment variable", name, "contains a NUL byte"))?);
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
    pub(crate) fn encode(&self) -> (Zeroizing<Vec<u8>>, usize) {
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
        // Measured first, so that no half of it is left where it was before it grew.
        let mut length = Length(0);
        request.put(&mut length);
        let mut bytes = Zeroizing::new(Vec::with_capacity(length.0));
        request.put(&mut *bytes);
        (bytes, request.scratch())
    }
}

impl Drop for RequestBuf {
    fn drop(&mut self) {
        std::mem::take(&mut self.environment).into_bytes().zeroize();
    }
}

/// Counts what would be written.
struct Length(usize);

impl Sink for Length {
    fn append(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// A list that does not move while the environment is put into it.
fn environment_with_room(wanted: &Wanted<'_>) -> ListBuf {
    let plain = wanted.environment.iter().map(|(name, value)| name.len() + value.len() + 2);
    let secret = wanted.secrets.iter().map(|(name, secret)| name.len() + secret.expose().len() + 2);
    ListBuf::with_room(wanted.environment.len() + wanted.secrets.len(), plain.chain(secret).sum())
}

/// `NAME=VALUE` with its NUL, in one piece that is wiped.
fn secret_variable(name: &OsStr, secret: &Secret) -> Result<Zeroizing<Vec<u8>>, Error> {
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(refused("environment variable", name, "is not a name"));
    }
    let value = secret.expose();
    let mut bytes = Zeroizing::new(Vec::with_capacity(name.len() + value.len() + 2));
    [name.as_bytes(), b"=", value, b"\0"].into_iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
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
