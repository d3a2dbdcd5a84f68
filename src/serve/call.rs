//! Decodes a client's request. The client runs as the same user but may be wrong or hostile: nothing is
//! trusted, and nothing can block the session.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use kennel_helper::client_wire;
use kennel_helper::client_wire::{
    ALL_LINES, AS_DATA, Ask, COLD, COLLECTS, IS_QUIET, KEEPS, NAMES_VARIABLES, UNMARKED, VERSION,
    WANTS_REPORT,
};
use kennel_helper::wire::{Cursor, Field};
use tokio::sync::mpsc::Sender;

use crate::command::Command;
use crate::plan::pseudoterminal::Pseudoterminal;
use crate::report::error::Error;
use crate::serve::connection::Form;
use crate::serve::question::{AboutDetached, Question, content, json_of};
use crate::session::Session;
use crate::sys::closing::HeldFd;
use crate::sys::packet::Packet;
use crate::sys::signal::Signal;

/// How much of each stream is collected if the policy has no cap, in bytes: commands must not fill the memory
/// of this process.
pub(crate) const MOST_COLLECTED: u64 = 64 << 20;

/// A client's request: its first packet.
pub(crate) enum Request {
    Call(Box<CommandCall>, CallStreams),
    /// The arguments are the name of the shell and the snippet.
    Shell(Box<CommandCall>, CallStreams),
    Stop,
    /// A command that stays, with its log file.
    Detach(Box<CommandCall>, Option<HeldFd>),
    /// About the command that stays and has this number.
    About(u32, AboutDetached),
    Question(Question),
}

/// The standard descriptors that come with a call.
pub(crate) enum CallStreams {
    /// Stdin, stdout and stderr.
    Given([HeldFd; 3]),
    /// Stdin, or nothing. The session collects the output.
    Collected(Option<HeldFd>),
}

/// The command that a client wants to run. It has no `Debug`: variables may hold secrets.
pub(crate) struct CommandCall {
    arguments: Vec<OsString>,
    /// `NAME=value`.
    environment: Vec<OsString>,
    directory: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) terminal: Option<Pseudoterminal>,
    pub(crate) wants_report: bool,
    pub(crate) is_quiet: bool,
    wants_data: bool,
    collects: bool,
    keeps: bool,
    is_cold: bool,
    /// Whether no line of Kennel's follows output that a cap cuts.
    pub(crate) is_unmarked: bool,
    /// Whether a variable that the session keeps as it is makes the call fail.
    names_variables: bool,
}

impl Request {
    /// Decodes a packet; `None` if it is malformed.
    pub(crate) fn decode(packet: Packet) -> Option<Self> {
        let mut cursor = Cursor::new(&packet.bytes);
        match Ask::take(&mut cursor)? {
            Ask::Inline { length } => {
                let call = CommandCall::read(cursor.bytes(usize::try_from(length).ok()?)?)?;
                CallStreams::of(&call, packet.descriptors).map(|streams| Self::Call(call, streams))
            }
            Ask::Shell { length } => {
                let call = CommandCall::read(cursor.bytes(usize::try_from(length).ok()?)?)?;
                CallStreams::of(&call, packet.descriptors).map(|streams| Self::Shell(call, streams))
            }
            Ask::Memfd { length } => {
                let (call, streams) = in_memfd(packet.descriptors, length)?;
                Some(Self::Call(call, streams))
            }
            Ask::ShellMemfd { length } => {
                let (call, streams) = in_memfd(packet.descriptors, length)?;
                Some(Self::Shell(call, streams))
            }
            Ask::Detach { length } => {
                let mut descriptors = packet.descriptors.into_iter();
                let call = CommandCall::read(&content(descriptors.next()?, length)?)?;
                let log = descriptors.next();
                descriptors.next().is_none().then_some(Self::Detach(call, log))
            }
            Ask::Logs { id, follow, lines } => {
                let lines = (lines != ALL_LINES).then_some(lines);
                Some(Self::About(id, AboutDetached::Logs { follows: follow != 0, lines }))
            }
            Ask::Kill { id, signal } => {
                Some(Self::About(id, AboutDetached::Kill { signal: Signal::received(signal)? }))
            }
            Ask::Wait { id, report } => Some(Self::About(
                id,
                AboutDetached::Wait {
                    wants_report: report & WANTS_REPORT != 0,
                    wants_data: report & AS_DATA != 0,
                },
            )),
            Ask::Question { version: VERSION, length } => {
                let memfd = packet.descriptors.into_iter().next();
                let json = json_of(cursor.remaining(), memfd, length)?;
                serde_json::from_slice(&json).ok().map(Self::Question)
            }
            Ask::Stop {} => Some(Self::Stop),
            Ask::Question { .. } | Ask::Signal { .. } | Ask::Foreground { .. } | Ask::Keep {} => None,
        }
    }
}

impl Request {
    /// Whether the connection serves another request after this one.
    pub(crate) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Call(call, CallStreams::Collected(_)) if call.keeps)
    }

    /// Whether it keeps the session from being idle: it does not only ask what is known.
    pub(crate) fn uses_session(&self) -> bool {
        match self {
            Self::Call(..) | Self::Shell(..) | Self::Detach(..) => true,
            Self::About(_, question) => matches!(question, AboutDetached::Kill { .. }),
            Self::Question(question) => !question.asks_what_is_known(),
            Self::Stop => false,
        }
    }
}

impl CallStreams {
    fn of(call: &CommandCall, descriptors: Vec<HeldFd>) -> Option<Self> {
        if call.collects {
            let mut descriptors = descriptors.into_iter();
            let stdin = descriptors.next();
            return descriptors.next().is_none().then_some(Self::Collected(stdin));
        }
        descriptors.try_into().ok().map(Self::Given)
    }

    /// Each keeps a clone of `open` until it is closed.
    pub(crate) fn known_open(self, open: &Sender<()>) -> Self {
        match self {
            Self::Given(stdio) => Self::Given(stdio.map(|fd| fd.known_open(open))),
            Self::Collected(stdin) => Self::Collected(stdin.map(|fd| fd.known_open(open))),
        }
    }
}

/// A call in a memfd, which comes after the standard descriptors.
fn in_memfd(mut descriptors: Vec<HeldFd>, length: u32) -> Option<(Box<CommandCall>, CallStreams)> {
    let call = CommandCall::read(&content(descriptors.pop()?, length)?)?;
    let streams = CallStreams::of(&call, descriptors)?;
    Some((call, streams))
}

impl CommandCall {
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
            wants_data: manner.report & AS_DATA != 0,
            collects: manner.report & COLLECTS != 0,
            keeps: manner.report & KEEPS != 0,
            is_cold: manner.report & COLD != 0,
            is_unmarked: manner.report & UNMARKED != 0,
            names_variables: manner.report & NAMES_VARIABLES != 0,
        };
        // A malformed list ends early.
        let is_whole =
            call.arguments.len() == arguments.count() && call.environment.len() == environment.count();
        (is_whole && !call.arguments.is_empty()).then(|| Box::new(call))
    }

    /// In which form the client gets remedies.
    pub(crate) fn form(&self, session: &Session) -> Form {
        Form::of(session, self.wants_data)
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
        command.args(arguments).warm(!self.is_cold);
        if environment != ClientEnvironment::Nothing {
            command.replace_environment(self.variables(session, environment)?);
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

    /// The command's variables. With `Variables`, those of the session, overridden by the client's as far as
    /// the policy allows; otherwise the client's alone.
    ///
    /// # Errors
    /// The client has named a variable that the session keeps as it is. One that comes with the client's own
    /// environment is left out instead. So is TERM, which comes with a terminal.
    fn variables(
        &mut self,
        session: &Session,
        environment: ClientEnvironment,
    ) -> Result<BTreeMap<OsString, OsString>, Error> {
        let compiled = &session.prepared().compiled;
        let mut variables: BTreeMap<_, _> = match environment {
            ClientEnvironment::Variables => (*compiled.commands.environment.0).clone(),
            ClientEnvironment::Environment | ClientEnvironment::Nothing => BTreeMap::new(),
        };
        // If a name appears twice, the first one counts, as in getenv(3).
        for variable in self.environment.drain(..).rev() {
            let Some((name, value)) = split(variable) else { continue };
            let checked = match environment {
                ClientEnvironment::Environment => Ok(()),
                _ => compiled.commands.check_client_variable(&name, &value),
            };
            match checked {
                Ok(()) => drop(variables.insert(name, value)),
                Err(error) if self.names_variables && !(name == "TERM" && self.terminal.is_some()) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok(variables)
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
    /// The whole environment; commands get no other variables. The program that starts the clients decides
    /// about it.
    Environment,
    /// No variables: commands get the session's environment.
    Nothing,
}

/// What a client may ask for while its command starts, runs or ends.
pub(crate) enum Order {
    Signal(Signal),
    /// Whether the command has its terminal.
    Foreground(bool),
}

/// The order that a packet carries; `None` for any other packet.
pub(crate) fn order(packet: &Packet) -> Option<Order> {
    match Ask::take(&mut Cursor::new(&packet.bytes))? {
        Ask::Signal { number } => Signal::received(number).map(Order::Signal),
        Ask::Foreground { has } => Some(Order::Foreground(has != 0)),
        _ => None,
    }
}

/// Whether a signal's purpose is to end the process.
pub(crate) fn is_ending(signal: Signal) -> bool {
    matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM)
}
