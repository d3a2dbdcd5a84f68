//! Of sessions: starting, listing and stopping them, and running commands in one.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args, Subcommand};
use kennel::Span;

use super::{PolicyFlags, assignment};
use crate::home;

pub(super) const HELP: &str = "\
Examples:
  kennel session start --name a1        the current directory writable, no network
  kennel exec a1 -- make test           as often as you like
  kennel session list
  kennel session stop a1

`start` takes the flags of `kennel run`, except --tty, --json and those of an overlay.
Stopping a session that does not exist is not an error.";

const START_HELP: &str = "\
Examples:
  kennel session start --name a1
  kennel session start --name a2 --workspace ~/repo --ro /srv/models --tmp session

The socket lies in $XDG_RUNTIME_DIR/kennel or /tmp/kennel-UID, and beside it `kennel-exec`, a small client:
`kennel-exec SOCKET CMD` runs a command in its own directory and environment. `kennel exec` needs the name only.

Exit status: 0 when the session takes commands; 125 when it could not be prepared or the name is taken.";

pub(super) const EXEC_HELP: &str = "\
Examples:
  kennel exec a1 -- make test
  kennel exec a1 --cwd src --setenv RUST_LOG=debug --timeout 30s -- cargo test
  kennel exec a1 --tty -- bash

The command starts in the session's directory, wherever you are, with the session's environment.
It has at most the access that the session was started with.

Exit status: as with `kennel run`; 125 also if there is no session of that name.";

/// A flag that is refused with its reason, and so not offered.
fn hidden(flag: Arg) -> Arg {
    flag.hide(true)
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionAction {
    /// Prepare a session in the background; print the path of its socket when it takes commands.
    #[command(
        after_help = START_HELP,
        mut_arg("overlay", hidden),
        mut_arg("overlay_upper", hidden),
        mut_arg("overlay_size", hidden)
    )]
    Start(Start),
    /// What `start` starts.
    #[command(hide = true)]
    Host(Start),
    /// List your running sessions; fail where one could not be looked at.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// End a session and everything in it, and wait until it is gone.
    Stop {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the session: letters, digits, `_`, `.`, `-`, the first a letter or digit; 64 at most.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Stay in the foreground; the session ends with this process.
    #[arg(long)]
    pub(crate) foreground: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// Say nothing on stderr about degraded protections.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the session.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Start in DIR (relative to your directory) instead of the session's directory.
    #[arg(long, value_name = "DIR", value_parser = home::path())]
    pub(crate) cwd: Option<PathBuf>,
    /// Set variable K to V. With profile ci-only only one that the session passes (--pass-env); others are left out.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) setenv: Vec<(String, String)>,
    /// Kill the command after TIME (exit status 124); at most the session's own timeout. If the session does not answer
    /// then, give up five seconds later (125).
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Run on its own terminal, with job control. Needs a terminal.
    #[arg(long)]
    pub(crate) tty: bool,
    /// Write a report to FILE as JSON: exit status, resource usage, enforcement.
    #[arg(long, value_name = "FILE", value_parser = home::path())]
    pub(crate) json: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
