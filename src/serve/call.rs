//! Decodes a client's request. The client runs as the same user but may be wrong or hostile: nothing is trusted, and
//! nothing can block the session.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use kennel_helper::client_wire;
use kennel_helper::client_wire::{ALL_LINES, Ask, IS_QUIET, WANTS_REPORT};
use kennel_helper::wire::{Cursor, Field};
use nix::fcntl::{FcntlArg, fcntl};

use crate::command::Command;
use crate::plan::pseudoterminal::Pseudoterminal;
use crate::report::error::Error;
use crate::serve::commit::CommitOrder;
use crate::serve::detached::Question;
use crate::session::Session;
use crate::sys::packet;
use crate::sys::packet::Packet;

/// The longest call in a memfd, in bytes: more than execve(2) takes.
const LONGEST: u32 = 8 << 20;

/// A client's request: its first packet.
pub(crate) enum Request {
    /// A command with its standard descriptors.
    Call(Box<Call>, [OwnedFd; 3]),
    /// The arguments are the name of the shell and the snippet.
    Shell(Box<Call>, [OwnedFd; 3]),
    Stats,
    Describe,
    Commit(CommitOrder),
    /// The text of a port to publish.
    Publish(String),
    Ports,
    Stop,
    /// A command that stays, with its log file.
    Detach(Box<Call>, Option<OwnedFd>),
    /// About the command that stays and has this number.
    Question(u32, Question),
    ListDetached,
    ListProcesses,
}

/// The command that a client wants to run. It has no `Debug`: variables may hold secrets.
pub(crate) struct Call {
    arguments: Vec<OsString>,
    /// `NAME=value`.
    environment: Vec<OsString>,
    directory: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) terminal: Option<Pseudoterminal>,
    pub(crate) wants_report: bool,
    pub(crate) is_quiet: bool,
}

impl Request {
    /// Decodes a packet; `None` if it is malformed.
    pub(crate) fn decode(packet: Packet) -> Option<Self> {
        let mut cursor = Cursor::new(&packet.bytes);
        match Ask::take(&mut cursor)? {
            Ask::Inline { length } => {
                let stdio = packet.descriptors.try_into().ok()?;
                let call = Call::read(cursor.bytes(usize::try_from(length).ok()?)?)?;
                Some(Self::Call(call, stdio))
            }
            Ask::Shell { length } => {
                let stdio = packet.descriptors.try_into().ok()?;
                let call = Call::read(cursor.bytes(usize::try_from(length).ok()?)?)?;
                Some(Self::Shell(call, stdio))
            }
            Ask::ShellMemfd { length } => {
                let [input, output, error, memfd]: [OwnedFd; 4] = packet.descriptors.try_into().ok()?;
                Some(Self::Shell(Call::read(&content(memfd, length)?)?, [input, output, error]))
            }
            Ask::Memfd { length } => {
                let [input, output, error, memfd]: [OwnedFd; 4] = packet.descriptors.try_into().ok()?;
                Some(Self::Call(Call::read(&content(memfd, length)?)?, [input, output, error]))
            }
            Ask::Detach { length } => {
                let mut descriptors = packet.descriptors.into_iter();
                let call = Call::read(&content(descriptors.next()?, length)?)?;
                let log = descriptors.next();
                descriptors.next().is_none().then_some(Self::Detach(call, log))
            }
            Ask::Logs { id, follow, lines } => {
                let lines = (lines != ALL_LINES).then_some(lines);
                Some(Self::Question(id, Question::Logs { follows: follow != 0, lines }))
            }
            Ask::Kill { id, signal } => {
                Some(Self::Question(id, Question::Kill { signal: signal_number(signal)? }))
            }
            Ask::Wait { id, report } => {
                Some(Self::Question(id, Question::Wait { wants_report: report != 0 }))
            }
            Ask::Detached {} => Some(Self::ListDetached),
            Ask::Processes {} => Some(Self::ListProcesses),
            Ask::Stats {} => Some(Self::Stats),
            Ask::Describe {} => Some(Self::Describe),
            Ask::Commit { length } => {
                let [memfd]: [OwnedFd; 1] = packet.descriptors.try_into().ok()?;
                serde_json::from_slice(&content(memfd, length)?).ok().map(Self::Commit)
            }
            Ask::Publish { length } => {
                let text = cursor.bytes(usize::try_from(length).ok()?)?;
                String::from_utf8(text.to_owned()).ok().map(Self::Publish)
            }
            Ask::Ports {} => Some(Self::Ports),
            Ask::Stop {} => Some(Self::Stop),
            Ask::Signal { .. } | Ask::Foreground { .. } => None,
        }
    }
}

/// The number of a signal; `None` if there is none with this number.
pub(crate) fn signal_number(number: u32) -> Option<i32> {
    i32::try_from(number).ok().filter(|number| (1..=64).contains(number))
}

/// Reads a memfd. Any other file is refused, because reading it could block.
fn content(memfd: OwnedFd, length: u32) -> Option<Vec<u8>> {
    fcntl(&memfd, FcntlArg::F_GET_SEALS).ok()?;
    let file = File::from(memfd);
    if length > LONGEST || file.metadata().ok()?.len() < length.into() {
        return None;
    }
    packet::content(&file, length).ok()
}

impl Call {
    fn read(bytes: &[u8]) -> Option<Box<Self>> {
        let client_wire::Call { manner, arguments, environment } = Field::take(&mut Cursor::new(bytes))?;
        let owned = |string: &CStr| OsStr::from_bytes(string.to_bytes()).to_owned();
        let call = Self {
            arguments: arguments.iter().map(owned).collect(),
            environment: environment.iter().map(owned).collect(),
            directory: (!manner.cwd.is_empty()).then(|| owned(manner.cwd).into()),
            timeout: (manner.timeout_ms > 0).then(|| Duration::from_millis(manner.timeout_ms)),
            terminal: Pseudoterminal::of_wire(manner.terminal, manner.window, manner.modes),
            wants_report: manner.report & WANTS_REPORT != 0,
            is_quiet: manner.report & IS_QUIET != 0,
        };
        // A malformed list ends early.
        let is_whole =
            call.arguments.len() == arguments.count() && call.environment.len() == environment.count();
        (is_whole && !call.arguments.is_empty()).then(|| Box::new(call))
    }

    /// The name of the shell, the snippet and its timeout; `None` if the arguments are no snippet.
    pub(crate) fn snippet(self) -> Option<(String, OsString, Option<Duration>)> {
        let [name, text] = self.arguments.try_into().ok()?;
        Some((name.into_string().ok()?, text, self.timeout))
    }

    /// Makes the command, without its standard descriptors.
    pub(crate) fn command(
        &mut self,
        session: &Session,
        environment: ClientEnvironment,
    ) -> Result<Command, Error> {
        let mut arguments = std::mem::take(&mut self.arguments).into_iter();
        let mut command = session.command(arguments.next().unwrap_or_default());
        command.args(arguments);
        if environment != ClientEnvironment::Nothing {
            command.replace_environment(self.variables(session, environment));
        }
        if let Some(directory) = &self.directory {
            if !directory.is_absolute() {
                return Err(Error::Command {
                    what: "working directory",
                    value: directory.display().to_string(),
                    reason: "is not absolute".to_owned(),
                });
            }
            command.current_dir(directory);
        }
        if let Some(timeout) = self.timeout {
            command.timeout(timeout);
        }
        if let Some(terminal) = self.terminal.clone() {
            command.pseudoterminal(terminal);
        }
        Ok(command)
    }

    /// The command's variables. With `Variables`, those of the session, overridden by the client's as far as the
    /// policy allows; otherwise the client's alone.
    fn variables(&mut self, session: &Session, environment: ClientEnvironment) -> Vec<(OsString, OsString)> {
        let compiled = &session.prepared().compiled;
        let mut variables: BTreeMap<_, _> = match environment {
            ClientEnvironment::Variables => compiled.environment.0.iter().cloned().collect(),
            ClientEnvironment::Environment | ClientEnvironment::Nothing => BTreeMap::new(),
        };
        // If a name appears twice, the first one counts, as in getenv(3).
        for variable in self.environment.drain(..).rev() {
            if let Some((name, value)) = split(variable)
                && (environment == ClientEnvironment::Environment || compiled.client_variables.allows(&name))
            {
                variables.insert(name, value);
            }
        }
        variables.into_iter().collect()
    }
}

fn split(variable: OsString) -> Option<(OsString, OsString)> {
    let mut bytes = variable.into_vec();
    let at = bytes.iter().position(|&byte| byte == b'=').filter(|&at| at > 0)?;
    let value = bytes.split_off(at + 1);
    bytes.truncate(at);
    Some((OsString::from_vec(bytes), OsString::from_vec(value)))
}

/// What a client may pass to its command, besides descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientEnvironment {
    /// Variables that the policy allows, in addition to the session's.
    Variables,
    /// The whole environment; commands get no other variables. The program that starts the clients decides about it.
    Environment,
    /// No variables: commands get the session's environment.
    Nothing,
}
