//! The error of the Rust API. Its text names the object, `source()` is the cause, and `remedy()` says what a
//! person can do.

pub(crate) mod audit;
pub(crate) mod image;
pub(crate) mod import;
pub(crate) mod listen;
pub(crate) mod overlay;
pub(crate) mod policy;
pub(crate) mod pull;
pub(crate) mod spawn;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::report::enforcement::Protection;
use crate::report::error::audit::AuditError;
use crate::report::error::image::ImageError;
use crate::report::error::listen::ListenError;
use crate::report::error::overlay::OverlayError;
use crate::report::error::policy::PolicyError;
use crate::report::error::spawn::SpawnError;
use crate::report::escape::harmless;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, exit, failure_of, shown};
use crate::report::missing_program;
use crate::report::remedy::{Remedy, SettingKey, Wording, remedy};
use crate::report::shortage::{of_call, of_terminal, of_writing};

/// Why a sandbox could not be prepared, or a command could not run in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy contradicts itself or has an invalid value.
    #[error("policy")]
    Policy(#[from] PolicyError),
    /// A path that the policy grants cannot be granted.
    #[error("{what} {}", shown(path))]
    Grant {
        /// What the path is in the policy: `workspace`, `read-only grant`, …
        what: &'static str,
        /// The path as the user wrote it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
        /// What can be done.
        remedy: Option<Remedy>,
    },
    /// Two places of the view exclude each other.
    #[error("{what} {}: {reason}", shown(path))]
    View {
        /// What the path is in the policy.
        what: &'static str,
        /// The path in the sandbox.
        path: PathBuf,
        /// Why not.
        reason: String,
        /// What can be done.
        remedy: Option<Remedy>,
    },
    /// This host cannot provide a required protection.
    #[error("{protection}: {reason}")]
    Unavailable {
        /// The protection.
        protection: Protection,
        /// What the host lacks or refused.
        reason: String,
        /// What can be done.
        remedy: Option<Remedy>,
    },
    /// A step of the set-up failed inside, before the command ran. Nothing of it remains.
    #[error("{}", harmless(step))]
    Step {
        /// The step in words, with the user's path.
        step: String,
        /// The protection that the step belongs to.
        protection: Protection,
        /// The kernel's answer.
        source: io::Error,
        /// What can be done.
        remedy: Option<Remedy>,
    },
    /// The program was not found in the sandbox.
    #[error("{}: not found in the sandbox", harmless(program))]
    NotFound {
        /// The program as the caller named it.
        program: String,
    },
    /// The program was found, but the sandbox lacks the interpreter that a script's first line names, or the
    /// loader of a program.
    #[error("{}: the interpreter that it names was not found in the sandbox", harmless(program))]
    NoInterpreter {
        /// The program as the caller named it.
        program: String,
    },
    /// The program of a command that runs outside of a sandbox was not found.
    #[error("{}: not found", harmless(program))]
    NoProgram {
        /// The program as the caller named it.
        program: String,
    },
    /// The program exists but cannot be executed.
    #[error("{}", harmless(program))]
    NotExecutable {
        /// The program as the caller named it.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An argument, variable or directory of the command is not usable.
    #[error("{what} `{}`: {reason}", harmless(value))]
    Command {
        /// `argument`, `environment variable`, `working directory`, …
        what: &'static str,
        /// The value, shortened.
        value: String,
        /// Why not.
        reason: String,
    },
    /// A system call in the embedding program failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A port cannot be published: nothing can listen at that address of the host.
    #[error("publish {address}")]
    Publish {
        /// The address as the policy or the caller wrote it.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A file of a sandbox cannot be read or changed.
    #[error("{what} {}", shown(path))]
    File {
        /// What was being done: `read`, `write`, `list`, …
        what: &'static str,
        /// The path in the sandbox, as the caller wrote it.
        path: PathBuf,
        /// The cause. A command would get the same `raw_os_error`.
        source: io::Error,
        /// What can be done.
        remedy: Option<Remedy>,
    },
    /// A session cannot be offered to clients, or one that is offered cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A program was not spawned.
    #[error(transparent)]
    Spawn(Box<SpawnError>),
    /// The changes of an overlay cannot be listed, committed or discarded.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// An image cannot be read, stored, removed or used.
    #[error(transparent)]
    Image(Box<ImageError>),
    /// Kennel cannot write the audit log, and the policy requires it.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No worker of the session is ready, and the caller asked not to wait for one.
    #[error("no worker of the session is ready")]
    Busy,
    /// The session has ended: it was shut down, or its zygote was killed.
    #[error("the session has ended")]
    SessionEnded,
    /// The sandbox ended without a report: init was killed from outside.
    #[error("the sandbox ended without a report")]
    Lost,
    /// The command has killed its process of Kennel, or somebody else did, and Kennel could not end all that
    /// it started.
    #[error("the sandbox ended without a report, and processes of the command may still run")]
    StillRuns,
}

impl From<SpawnError> for Error {
    fn from(error: SpawnError) -> Self {
        Self::Spawn(Box::new(error))
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        Self::Image(Box::new(error))
    }
}

/// `what` of an [`Error::Command`] about the directory in which a command starts.
pub(crate) const WORKING_DIRECTORY: &str = "working directory";

/// `what` of an [`Error::Command`] about a variable.
pub(crate) const VARIABLE: &str = "environment variable";

/// The reason if somebody sets a variable that only the policy sets.
pub(crate) const KEPT_VARIABLE: &str = "the sandbox keeps it as it is";

/// `what` of an [`Error::Io`] about a command's terminal.
pub(crate) const TERMINAL: &str = "open a terminal for the command";

/// End of the reason if a command may not enter its working directory.
pub(crate) const NOT_PERMITTED: &str = "its permissions keep the command out";

/// `what` of an [`Error::Io`] about a standard stream that cannot be passed to a command, by descriptor
/// number.
pub(crate) const STREAMS: [&str; 3] =
    ["stdin of the command", "stdout of the command", "stderr of the command"];

/// The remedy for such a stream.
fn of_stream(source: &io::Error) -> Option<&'static str> {
    match source.raw_os_error() {
        Some(libc::EISDIR) => {
            Some("give it a file, a pipe or a terminal: with a directory, a command could leave the sandbox")
        }
        Some(libc::EBADF) => Some("open it for reading or writing, not with O_PATH; /dev/null will do"),
        _ => of_call(source),
    }
}

/// The remedy for a port of the host that cannot be listened on.
fn of_publish(port: u16, source: &io::Error) -> Option<&'static str> {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) if port == 0 => Some("no port is free: end programs that listen on many"),
        Some(libc::EADDRINUSE) => Some(
            "another program listens there: end it, or publish another port; with 0 as in 0:8080, one that is free",
        ),
        Some(libc::EACCES) => Some("ports below 1024 need root: publish a higher one, as in 8080:3000"),
        Some(libc::EADDRNOTAVAIL) => {
            Some("this machine does not have that address: leave it out for 127.0.0.1, or see ip address")
        }
        _ => of_call(source),
    }
}

/// Whether the sandbox itself forbids the access.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES | libc::EPERM | libc::EOPNOTSUPP))
}

failure_of!(Error);

impl Error {
    /// For a descriptor that was lost on its way because this process could not open more.
    pub(crate) fn no_descriptor() -> Self {
        Self::io("take a descriptor of the sandbox")(nix::errno::Errno::EMFILE.into())
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Grant { remedy, .. }
            | Self::View { remedy, .. }
            | Self::Unavailable { remedy, .. }
            | Self::Step { remedy, .. }
            | Self::File { remedy, .. } => remedy.clone(),
            Self::Policy(error) => error.remedy(),
            Self::Listen(error) => error.remedy(),
            Self::Spawn(error) => error.remedy(),
            Self::Audit(error) => error.remedy().map(Remedy::from),
            Self::Overlay(error) => error.remedy(),
            Self::Image(error) => error.remedy(),
            Self::NotFound { program } => Some(missing_program::remedy(program)),
            Self::NoInterpreter { .. } => Some(remedy![
                "correct the first line of a script (#!/bin/sh, for example), or grant the directory of the interpreter with ",
                SettingKey::Ro,
                "; a program that is no script names its loader",
            ]),
            Self::StillRuns => {
                Some(remedy!["end the session (", SettingKey::StopSession, "), which ends them too"])
            }
            Self::Command { what: WORKING_DIRECTORY, reason, .. } if !reason.ends_with(NOT_PERMITTED) => {
                Some(remedy![
                    "name a directory that is visible inside: in the workspace, or in a grant of ",
                    SettingKey::Ro,
                    " or ",
                    SettingKey::Rw,
                ])
            }
            Self::Command { what: VARIABLE, reason, .. } if reason == KEPT_VARIABLE => {
                Some(remedy!["leave it out, or set it for all commands: ", SettingKey::SetEnv])
            }
            _ => self.plain_remedy().map(Remedy::from),
        }
    }

    /// A remedy without settings.
    fn plain_remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoProgram { .. } => Some("check PATH, or name the program by its path"),
            Self::Busy => Some("let the command wait, or keep more workers ready"),
            Self::SessionEnded => Some("prepare a new session"),
            Self::NotExecutable { source, .. } => Some(match source.raw_os_error() {
                Some(libc::EACCES) => {
                    "name a file, make it executable (chmod +x) or run a script by its interpreter (python3 FILE), and put it on a \
                     file system without noexec; the same goes for the interpreter that a script's first line names"
                }
                Some(libc::ENOEXEC) => {
                    "begin a script with a line such as #!/bin/sh, or run it by its interpreter (sh FILE); a program must be for \
                     this machine"
                }
                _ => of_call(source)?,
            }),
            Self::Command { what: WORKING_DIRECTORY, .. } => Some(
                "run kennel as the owner, or change its mode (chmod): permissions also apply to commands of root",
            ),
            Self::Publish { address, source } => of_publish(address.port(), source),
            Self::Io { what, source } if STREAMS.contains(what) => of_stream(source),
            Self::Io { what: TERMINAL, source } => of_terminal(source),
            Self::Io { what, source } if what.starts_with("write ") => of_writing(source),
            Self::Io { source, .. } => of_call(source),
            _ => None,
        }
    }

    /// The error and its causes in one line, joined by `: `.
    #[must_use]
    pub fn chain(&self) -> String {
        failure::chain(self)
    }

    /// The lines for people: the error with its causes, and a hint, with settings in the words of a front
    /// end. Characters that a terminal obeys or that reorder text are escaped.
    #[must_use]
    pub fn lines(&self, wording: Wording) -> Vec<String> {
        self.sentences().iter().map(|line| line.in_words(wording)).collect()
    }

    /// The lines of [`lines`](Self::lines).
    pub(crate) fn sentences(&self) -> Vec<Remedy> {
        let hint = self.remedy().map(|remedy| remedy!["kennel: hint: ", remedy]);
        [format!("kennel: {}", self.chain()).into()].into_iter().chain(hint).collect()
    }

    /// Its exit status: 127 not found, 126 not executable, 125 everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } | Self::NoInterpreter { .. } | Self::NoProgram { .. } => exit::NOT_FOUND,
            Self::NotExecutable { .. } => exit::NOT_EXECUTABLE,
            Self::Spawn(error) => error.exit_code(),
            _ => exit::FAILED,
        }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary) = match self {
            Self::Policy(error) => return error.failure().with_message(self.chain()),
            Self::Grant { .. } | Self::View { .. } => (Class::CapabilityDenied, Boundary::Manifest),
            Self::Unavailable { .. } | Self::Step { .. } => {
                (Class::SpawnSandboxUnavailable, Boundary::Sandbox)
            }
            Self::NotFound { .. } | Self::NoInterpreter { .. } | Self::NotExecutable { .. } => {
                (Class::LoadFailed, Boundary::Sandbox)
            }
            Self::NoProgram { .. } => (Class::LoadFailed, Boundary::External),
            Self::Command { .. } => (Class::CapabilityDenied, Boundary::Action),
            Self::Listen(error) => return error.failure(),
            Self::Spawn(error) => return error.failure(),
            Self::Audit(error) => return error.failure(),
            Self::Image(error) => return error.failure(),
            Self::Overlay(_) => (Class::RuntimeError, Boundary::Runtime),
            Self::File { source, .. } if is_refusal(source) => (Class::CapabilityDenied, Boundary::Sandbox),
            Self::File { .. } => (Class::RuntimeError, Boundary::Sandbox),
            Self::Io { .. }
            | Self::Publish { .. }
            | Self::Busy
            | Self::SessionEnded
            | Self::Lost
            | Self::StillRuns => (Class::RuntimeError, Boundary::Runtime),
        };
        let details = match self {
            Self::Unavailable { .. } | Self::Step { .. } => failure::platform(self.chain(), self.remedy()),
            _ => Details::None,
        };
        Failure::new(class, boundary, self.chain(), details)
    }
}
