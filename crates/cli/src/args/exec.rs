//! What `kennel exec` accepts.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueHint};
use kennel::Span;

use crate::parse::{self, assignment};

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the session.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Let the command stay, and print its number.
    ///
    /// It runs on in the session until it ends or the session does. stdin is /dev/null. `kennel session` has
    /// logs, kill and wait for it.
    #[arg(short, long, conflicts_with_all = ["tty", "json", "exit_code"])]
    pub(crate) detach: bool,
    /// With --detach: write its whole output to FILE, too.
    ///
    /// FILE is emptied first. No link may be on the way to it.
    #[arg(long, value_name = "FILE", value_parser = parse::path(), requires = "detach")]
    pub(crate) log: Option<PathBuf>,
    /// Start in DIR instead of the session's directory.
    ///
    /// A relative path starts at your current directory.
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) cwd: Option<PathBuf>,
    /// Set variable K to V.
    ///
    /// The session keeps HOME, TMPDIR and the proxy's as they are, and with profile ci-only all that it does
    /// not pass (--pass-env).
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) setenv: Vec<(String, String)>,
    /// Kill the command after TIME, such as 30s.
    ///
    /// The exit status is then 124. The session's own timeout holds too. If the session then does not answer
    /// for five seconds, give up (125).
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Pass stdin on, as kennel exec always does.
    ///
    /// For those who know the flag from other programs.
    #[arg(short, long, conflicts_with = "detach")]
    pub(crate) interactive: bool,
    /// Take all keys for the command from the start.
    ///
    /// Not only once it reads. All three standard streams are then its terminal. Needs a terminal.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Run a snippet in the shell named ID, which keeps its state.
    ///
    /// CMD is then the snippet, one word in quotes; without it the snippet is read from stdin. The shell,
    /// bash or sh, starts with the first snippet and stays until the session ends. ^C and --timeout interrupt
    /// the snippet, not the shell.
    #[arg(long, value_name = "ID", conflicts_with_all = ["cwd", "setenv", "tty", "detach"])]
    pub(crate) shell: Option<String>,
    /// Print errors, but no remarks.
    ///
    /// Remarks are denials, notes, hints, and the limit that ended the command. Lost output or records are
    /// still reported.
    #[arg(short, long, conflicts_with = "detach")]
    pub(crate) quiet: bool,
    /// Exit with 128+N if signal N ends the command.
    ///
    /// By default Kennel dies of the same signal.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Write a report to FILE as JSON.
    ///
    /// It has the exit status, the usage of resources, the protections and the denials.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) json: Option<PathBuf>,
    /// The command and its arguments.
    ///
    /// It begins at the first word that is no flag. A `--` before it says the same.
    #[arg(trailing_var_arg = true, required_unless_present = "shell", value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
