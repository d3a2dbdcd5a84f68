//! A pager for long texts on a terminal, as git has one: `$KENNEL_PAGER`, `$PAGER` or `less`. Where there is
//! none, the text goes to stdout.

use std::{
    env, io,
    process::{Child, ChildStdin, Command, Stdio},
};

use kennel::Error;
use nix::sys::signal::{SigSet, Signal};

use crate::{process::descriptor::write_all, report};

/// Where a text goes, piece by piece.
pub(crate) enum Output {
    Stdout,
    /// The pager, and the pipe to it, until it has ended or the text has.
    Pager(Child, Option<ChildStdin>),
}

impl Output {
    /// Starts a pager, if stdout is a terminal and the user wants one.
    pub(crate) fn open(is_wanted: bool) -> Self {
        use io::IsTerminal;
        let pager = (is_wanted && io::stdout().is_terminal()).then(command).flatten();
        let Some(mut child) = pager.and_then(|mut pager| pager.stdin(Stdio::piped()).spawn().ok()) else {
            return Self::Stdout;
        };
        // ^C is for the pager: it goes on, or ends, and then this program ends.
        let mut keys = SigSet::empty();
        keys.add(Signal::SIGINT);
        keys.add(Signal::SIGQUIT);
        let _ = keys.thread_block();
        let pipe = child.stdin.take();
        Self::Pager(child, pipe)
    }

    /// Whether somebody still reads. A pager that was left needs no more.
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self, Self::Pager(_, None))
    }

    /// # Errors
    /// stdout could not be written.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Error> {
        match self {
            Self::Stdout => report::print(text.as_bytes()),
            Self::Pager(_, pipe) => {
                if pipe.as_ref().is_some_and(|pipe| write_all(pipe, text.as_bytes()).is_err()) {
                    *pipe = None;
                }
                Ok(())
            }
        }
    }

    /// Waits until the reader has left the pager.
    pub(crate) fn close(self) {
        if let Self::Pager(mut child, pipe) = self {
            drop(pipe);
            let _ = child.wait();
        }
    }
}

/// The pager of the user. `None`: `cat`, or an empty name, is none.
fn command() -> Option<Command> {
    let named = env::var_os("KENNEL_PAGER").or_else(|| env::var_os("PAGER"));
    let mut command = match named {
        Some(named) if named.is_empty() || named == "cat" => return None,
        Some(named) => {
            let mut command = Command::new("sh");
            command.arg("-c").arg(named);
            command
        }
        None => Command::new("less"),
    };
    if env::var_os("LESS").is_none() {
        // Ends at once if the text fits, passes colours on, and leaves the text on the screen.
        command.env("LESS", "FRX");
    }
    Some(command)
}
