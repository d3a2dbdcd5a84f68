//! A command becomes a request: the search path is applied, strings are checked, the directory is made
//! absolute. This file reads nothing of the host.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kennel_helper::plan::Request;
use kennel_helper::wire::{Field, ListBuf, Sink};
use zeroize::{Zeroize, Zeroizing};

use crate::plan::pseudoterminal::Pseudoterminal;
use crate::process::program::{c_string, candidates, refused, variable};
use crate::report::error::Error;
use crate::sys::secret::Secret;

/// A command, checked and owned. [`encode`](Self::encode) borrows it. Dropping it wipes its copy of the
/// environment.
#[derive(Debug)]
pub(crate) struct RequestBuf {
    cwd: CString,
    programs: ListBuf,
    arguments: ListBuf,
    environment: ListBuf,
    terminal: Option<Pseudoterminal>,
    background: bool,
    limits: Vec<u8>,
}

/// The parts of a command.
pub(crate) struct RequestFields<'w> {
    pub(crate) program: &'w OsStr,
    /// The program's `argv[0]`; `None` means `program`.
    pub(crate) called: Option<&'w OsStr>,
    pub(crate) arguments: &'w [OsString],
    pub(crate) environment: &'w BTreeMap<OsString, OsString>,
    /// Variables with secret values. No copy of them may stay in memory.
    pub(crate) secrets: &'w [(OsString, Secret)],
    /// An absolute path.
    pub(crate) directory: &'w Path,
    /// Its terminal, if it gets one.
    pub(crate) terminal: Option<&'w Pseudoterminal>,
    /// Whether its children may outlive it.
    pub(crate) background: bool,
    /// Encoded steps that the payload carries out right before execve(2).
    pub(crate) limits: &'w [u8],
}

impl RequestBuf {
    /// # Errors
    /// An empty program name, a NUL byte anywhere, a variable without a name.
    pub(crate) fn new(fields: &RequestFields<'_>) -> Result<Self, Error> {
        if fields.program.is_empty() {
            return Err(refused("program", fields.program, "is empty"));
        }
        let path = fields.environment.get(OsStr::new("PATH"));
        let programs = candidates(fields.program, path.map(OsString::as_os_str), fields.directory)
            .into_iter()
            .map(|path| c_string("program", path.as_os_str()))
            .collect::<Result<ListBuf, Error>>()?;
        let mut arguments = ListBuf::default();
        arguments.push(&c_string("program", fields.called.unwrap_or(fields.program))?);
        for argument in fields.arguments {
            arguments.push(&c_string("argument", argument)?);
        }
        let mut environment = environment_with_room(fields);
        // If a name is there twice, getenv(3) returns the first.
        let is_secret = |name: &OsString| fields.secrets.iter().any(|(secret, _)| secret == name);
        for (name, value) in fields.environment.iter().filter(|(name, _)| !is_secret(name)) {
            environment.push(&variable(name, value)?);
        }
        for (name, secret) in fields.secrets {
            let bytes = secret_variable(name, secret)?;
            let string = CStr::from_bytes_with_nul(&bytes);
            environment
                .push(string.map_err(|_| refused("environment variable", name, "contains a NUL byte"))?);
        }
        let cwd = c_string("working directory", fields.directory.as_os_str())?;
        Ok(Self {
            cwd,
            programs,
            arguments,
            environment,
            terminal: fields.terminal.cloned(),
            background: fields.background,
            limits: fields.limits.to_owned(),
        })
    }

    /// The terminal that the command gets.
    pub(crate) fn terminal(&self) -> Option<&Pseudoterminal> {
        self.terminal.as_ref()
    }

    /// Its working directory.
    pub(crate) fn directory(&self) -> &CStr {
        &self.cwd
    }

    /// The paths of its program, in the order of the search path.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &CStr> {
        self.programs.list().iter()
    }

    /// Its arguments, with the name of the program.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &CStr> {
        self.arguments.list().iter()
    }

    /// Its variables, as `NAME=value`.
    pub(crate) fn environment(&self) -> impl Iterator<Item = &CStr> {
        self.environment.list().iter()
    }

    /// Whether execve(2) surely takes its arguments and variables: 128 KiB each (`MAX_ARG_STRLEN`), and a
    /// part of what a stack of usual size allows for all.
    pub(crate) fn fits_execve(&self) -> bool {
        const LONGEST: usize = 128 << 10;
        const MOST: usize = 1 << 20;
        let lengths = || self.arguments().chain(self.environment()).map(|word| word.count_bytes() + 1);
        lengths().all(|length| length <= LONGEST) && lengths().sum::<usize>() <= MOST
    }

    /// The number of its arguments, the arguments and the variables, with NUL between them.
    pub(crate) fn words(&self) -> Zeroizing<Vec<u8>> {
        let count = self.arguments.list().count().to_string().into_bytes();
        let words = || self.arguments().chain(self.environment()).map(CStr::to_bytes);
        let length = count.len() + words().map(|word| word.len() + 1).sum::<usize>();
        let mut bytes = Zeroizing::new(Vec::with_capacity(length));
        bytes.extend_from_slice(&count);
        for word in words() {
            bytes.push(0);
            bytes.extend_from_slice(word);
        }
        bytes
    }

    /// The encoded request, and how many bytes of scratch the inside needs to carry it out.
    pub(crate) fn encode(&self) -> (Zeroizing<Vec<u8>>, usize) {
        let request = Request {
            cwd: &self.cwd,
            programs: self.programs.list(),
            arguments: self.arguments.list(),
            environment: self.environment.list(),
            terminal: self.terminal.as_ref().map_or(0, Pseudoterminal::bits),
            background: self.background.into(),
            limits: &self.limits,
        };
        // Measure first: a buffer that grows would leave a copy of secrets behind.
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

/// A sink that counts bytes.
struct Length(usize);

impl Sink for Length {
    fn append(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// An empty list with room for the whole environment, so that it never moves while it is filled.
fn environment_with_room(fields: &RequestFields<'_>) -> ListBuf {
    let plain = fields.environment.iter().map(|(name, value)| name.len() + value.len() + 2);
    let secret = fields.secrets.iter().map(|(name, secret)| name.len() + secret.expose().len() + 2);
    ListBuf::with_room(fields.environment.len() + fields.secrets.len(), plain.chain(secret).sum())
}

/// `NAME=VALUE` and NUL in one buffer that is wiped.
fn secret_variable(name: &OsStr, secret: &Secret) -> Result<Zeroizing<Vec<u8>>, Error> {
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(refused("environment variable", name, "is not a name"));
    }
    let value = secret.expose();
    let mut bytes = Zeroizing::new(Vec::with_capacity(name.len() + value.len() + 2));
    [name.as_bytes(), b"=", value, b"\0"].into_iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}
