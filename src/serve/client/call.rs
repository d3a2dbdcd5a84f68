//! A command that a client asks a session to run.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel_helper::client_wire;
use kennel_helper::client_wire::{Ask, COLD, IS_QUIET, Manner, NAMES_VARIABLES, WANTS_REPORT};
use kennel_helper::wire::{Field, ListBuf};

use crate::plan::pseudoterminal::Pseudoterminal;
use crate::process::program::{c_string, variable};
use crate::report::error::Error;

/// A command to run in a listening session; see [`Client`](crate::serve::client::Client). Its values are
/// checked by [`Client::start`](crate::serve::client::Client::start).
#[derive(Clone)]
pub struct Call {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    timeout: Option<Duration>,
    terminal: Option<Pseudoterminal>,
    report: bool,
    is_snippet: bool,
    quiet: bool,
    cold: bool,
}

impl Call {
    /// Makes a call. A `program` without a slash is looked up in the command's PATH, in the sandbox.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            arguments: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            directory: PathBuf::new(),
            timeout: None,
            terminal: None,
            report: false,
            is_snippet: false,
            quiet: false,
            cold: false,
        }
    }

    /// A snippet for the shell with this name, as
    /// [`Session::shell_with_id`](crate::session::Session::shell_with_id). Signals that end commands
    /// interrupt it. Of the settings, only the timeout and the report count, and of the standard descriptors
    /// only the two for output.
    pub fn snippet(shell: impl AsRef<OsStr>, text: impl AsRef<OsStr>) -> Self {
        let mut call = Self::new(shell);
        call.args([text]);
        call.is_snippet = true;
        call
    }

    /// The message that carries the call, inline or with a memfd.
    pub(crate) fn ask(&self, length: u32, is_inline: bool) -> Ask {
        match (self.is_snippet, is_inline) {
            (false, true) => Ask::Inline { length },
            (false, false) => Ask::Memfd { length },
            (true, true) => Ask::Shell { length },
            (true, false) => Ask::ShellMemfd { length },
        }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable, in addition to those of the session or in place of one. The session keeps some as
    /// they are: `HOME` and the names of temporary directories, the variables of its proxy, and with profile
    /// `ci-only` all that the policy does not pass. A call with another value for one of them fails.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory, an absolute path in the sandbox. Default: the session's.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = directory.as_ref().to_owned();
        self
    }

    /// Sets the command's time limit. The policy's own limit is an upper bound.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs the command on a new pseudoterminal of this size in characters, instead of the standard
    /// descriptors. Its master side arrives as [`Event::Terminal`](crate::serve::client::Event).
    pub fn terminal(&mut self, rows: u16, columns: u16) -> &mut Self {
        self.pseudoterminal(Pseudoterminal::new(rows, columns))
    }

    /// Runs the command on a pseudoterminal that is not, or not only, all three standard descriptors.
    pub fn pseudoterminal(&mut self, terminal: Pseudoterminal) -> &mut Self {
        self.terminal = Some(terminal);
        self
    }

    /// Whether a standard descriptor is the command's own terminal.
    pub(crate) fn is_own_terminal(&self, number: usize) -> bool {
        self.terminal.as_ref().is_some_and(|terminal| terminal.is_stream(number))
    }

    /// Requests a [`Report`](crate::report::Report), as JSON.
    pub fn report(&mut self, report: bool) -> &mut Self {
        self.report = report;
        self
    }

    /// Requests errors only: without the remarks about denials, limits and weaker protections.
    pub fn quiet(&mut self, quiet: bool) -> &mut Self {
        self.quiet = quiet;
        self
    }

    /// Whether the program is executed even if an interpreter waits for the command, as after
    /// [`Command::warm(false)`](crate::command::Command::warm).
    pub fn cold(&mut self, cold: bool) -> &mut Self {
        self.cold = cold;
        self
    }

    /// # Errors
    /// A string contains a NUL byte, or a variable has no name.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let arguments: Result<ListBuf, Error> =
            self.arguments.iter().map(|argument| c_string("argument", argument)).collect();
        let environment: Result<ListBuf, Error> =
            self.environment.iter().map(|(name, value)| variable(name, value)).collect();
        let cwd = c_string("working directory", self.directory.as_os_str())?;
        // Zero means no timeout.
        let timeout =
            self.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
        let mut bytes = Vec::new();
        client_wire::Call {
            manner: Manner {
                cwd: &cwd,
                timeout_ms: timeout.unwrap_or(0),
                terminal: self.terminal.as_ref().map_or(0, Pseudoterminal::bits),
                window: self.terminal.as_ref().map_or(0, Pseudoterminal::window),
                modes: self.terminal.as_ref().map_or(&[], Pseudoterminal::modes),
                report: wish(self.report, WANTS_REPORT)
                    | wish(self.quiet, IS_QUIET)
                    | wish(self.cold, COLD)
                    | NAMES_VARIABLES,
            },
            arguments: arguments?.list(),
            environment: environment?.list(),
        }
        .put(&mut bytes);
        Ok(bytes)
    }
}

fn wish(is_wanted: bool, bit: u32) -> u32 {
    if is_wanted { bit } else { 0 }
}

/// Shows the names of variables only: values may be secrets.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("arguments", &self.arguments)
            .field("variables", &self.environment.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
