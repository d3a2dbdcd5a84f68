//! A command for a session of another process, as its client asks for it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel_helper::client_wire;
use kennel_helper::client_wire::Manner;
use kennel_helper::wire::{Field, ListBuf};

use crate::plan::request::{c_string, variable};
use crate::report::error::Error;

/// A command to be run in a session that listens; see [`Client`](crate::serve::client::Client). Nothing of it is checked before
/// [`Client::start`](crate::serve::client::Client::start).
#[derive(Clone)]
pub struct Call {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    timeout: Option<Duration>,
    terminal: Option<(u16, u16)>,
    report: bool,
}

impl Call {
    /// A `program` without a slash is looked for in the command's PATH, inside.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            arguments: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            directory: PathBuf::new(),
            timeout: None,
            terminal: None,
            report: false,
        }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable, over what the session's commands have anyway. Under profile `ci-only` those that the policy does
    /// not pass are left out.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Where the command starts, an absolute path in the sandbox. Default: where the session's commands do.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = directory.as_ref().to_owned();
        self
    }

    /// The command's wall time. The policy's own is an upper bound.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs the command on a pseudoterminal of its own, of the given size in characters, in place of the standard
    /// descriptors; its master side comes as [`Event::Terminal`](crate::serve::client::Event).
    pub fn terminal(&mut self, rows: u16, columns: u16) -> &mut Self {
        self.terminal = Some((rows, columns));
        self
    }

    /// Whether a [`Report`](crate::report::Report) is wanted, as JSON.
    pub fn report(&mut self, report: bool) -> &mut Self {
        self.report = report;
        self
    }

    /// # Errors
    /// A NUL byte anywhere, a variable without a name.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let arguments: Result<ListBuf, Error> =
            self.arguments.iter().map(|argument| c_string("argument", argument)).collect();
        let environment: Result<ListBuf, Error> =
            self.environment.iter().map(|(name, value)| variable(name, value)).collect();
        let cwd = c_string("working directory", self.directory.as_os_str())?;
        let (rows, columns) = self.terminal.unwrap_or_default();
        // Zero stands for none.
        let timeout =
            self.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
        let mut bytes = Vec::new();
        client_wire::Call {
            manner: Manner {
                cwd: &cwd,
                timeout_ms: timeout.unwrap_or(0),
                terminal: self.terminal.is_some().into(),
                window: u32::from(rows) << 16 | u32::from(columns),
                report: self.report.into(),
            },
            arguments: arguments?.list(),
            environment: environment?.list(),
        }
        .put(&mut bytes);
        Ok(bytes)
    }
}

/// Names only: values of variables may be secrets.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("arguments", &self.arguments)
            .field("variables", &self.environment.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
