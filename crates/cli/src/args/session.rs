//! What `kennel session`, `kennel exec` and `kennel mcp` accept: what makes a session, and what uses one.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args, Subcommand, ValueHint};
use kennel::{Policy, Signal, Span};

use super::{
    help,
    image::{Json, PullFlag},
    owner::AsOwner,
    policy::PolicyFlags,
    values::{self, assignment, interpreter},
};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionAction {
    /// Prepare a session in the background.
    ///
    /// Prints the path of its socket when it takes commands.
    #[command(
        after_help = help::START,
        mut_arg("overlay_size", hidden)
    )]
    Start(Start),
    /// The background process of `start`.
    #[command(hide = true)]
    Host(Start),
    /// List your running sessions; fail if one cannot be inspected.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// List what runs in a session.
    ///
    /// That is every process of its commands, whoever started it, and interpreters that wait for one
    /// (`--warm`), and none of Kennel's own.
    #[command(after_help = help::PS)]
    Ps {
        /// Its name.
        name: String,
        /// Add the commands of `kennel exec -d` that have ended.
        #[arg(short, long)]
        all: bool,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Print what a command of `kennel exec -d` wrote.
    ///
    /// stdout goes to stdout, stderr to stderr. The session keeps the last MiB of both together.
    #[command(after_help = help::LOGS)]
    Logs(Logs),
    /// Send a signal to a command of `kennel exec -d`.
    ///
    /// Does not wait for its end. A command that has ended is no error.
    Kill {
        #[command(flatten)]
        which: Which,
        /// A name such as KILL, or a number.
        #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
        signal: Signal,
    },
    /// Wait for a command of `kennel exec -d`, and end as it ended.
    ///
    /// As kennel exec does. It may have ended before.
    Wait {
        #[command(flatten)]
        which: Which,
        /// Exit with 128+N if signal N ended the command.
        ///
        /// By default Kennel dies of the same signal.
        #[arg(long)]
        exit_code: bool,
        /// Write a report to FILE as JSON.
        ///
        /// It has the exit status, the usage of resources, the protections and the denials.
        #[arg(long, value_name = "FILE", value_parser = values::path())]
        json: Option<PathBuf>,
    },
    /// Let programs outside reach servers in a running session.
    ///
    /// Prints for each PORT where they connect to. Until the session ends.
    #[command(after_help = help::PUBLISH)]
    Publish {
        /// Its name.
        name: String,
        /// As for --publish of kennel run.
        #[arg(required = true, value_name = "[ADDR:]PORT[:INSIDE]", value_delimiter = ',')]
        ports: Vec<String>,
    },
    /// Store the image of a session with what its commands changed, as a new image.
    ///
    /// Only the root is in it, with its /tmp: no grant, no workspace. No command starts meanwhile; the
    /// session goes on then. Prints the digest, then the name.
    #[command(after_help = help::SNAPSHOT)]
    Snapshot(Snapshot),
    /// End a session and every process in it.
    ///
    /// Waits until they are gone.
    Stop {
        /// Its name.
        name: String,
    },
}

/// A command that stays.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the session.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The number that `kennel exec -d` printed.
    #[arg(value_name = "ID")]
    pub(crate) id: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// Name of the session.
    #[arg(value_name = "NAME")]
    pub(crate) session: String,
    /// The name of the new image, as in mine:1.
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) output: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Go on until the command has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin with the last N lines.
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the session.
    ///
    /// It has at most 64 letters, digits, `_`, `.` or `-`, and starts with a letter or digit.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Stay in the foreground, and end with this process.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// With --foreground: end also when the process that started this one has ended.
    ///
    /// Changes of an overlay then end with the session too, unless the policy names a directory for them.
    #[arg(long, requires = "foreground")]
    pub(crate) with_parent: bool,
    /// End the session when nobody has used it for TIME, such as 8h.
    ///
    /// It is used while a command runs, also one that stays, and when a client asks for something else than
    /// its lists. A process that a command left in the background ends with it.
    #[arg(long, value_name = "TIME")]
    pub(crate) idle: Option<Span>,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    #[command(flatten)]
    pub(crate) warm: WarmFlag,
    #[command(flatten)]
    pub(crate) pull: PullFlag,
    /// Do not report degraded protections on stderr.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// For a session that several commands use.
#[derive(Debug, Default, Args)]
pub(crate) struct WarmFlag {
    /// Start PROGRAM before its command is known, with these modules imported.
    ///
    /// PROGRAM is a Python, such as python3 or .venv/bin/python. A command that names it takes it over, and
    /// begins where the imports end; another one then starts. docs/warm.md has what a command notices.
    #[arg(long, value_name = "PROGRAM[=MODULE,…]", value_parser = interpreter)]
    pub(crate) warm: Vec<(String, Vec<String>)>,
}

impl WarmFlag {
    /// Adds the interpreters to a policy.
    pub(crate) fn add_to(&self, policy: &mut Policy) {
        for (program, modules) in &self.warm {
            policy.warm.entry(program.clone()).or_default().extend(modules.iter().cloned());
        }
    }
}

/// Hides a flag that Kennel parses only to refuse it with a reason.
pub(super) fn hidden(flag: Arg) -> Arg {
    flag.hide(true)
}

#[derive(Debug, Default, Args)]
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
    #[arg(long, value_name = "FILE", value_parser = values::path(), requires = "detach")]
    pub(crate) log: Option<PathBuf>,
    /// Start in DIR instead of the session's directory.
    ///
    /// A relative path starts at your current directory.
    #[arg(long, value_name = "DIR", value_parser = values::path())]
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
    /// Execute the program, even if an interpreter waits for it.
    ///
    /// The interpreters of a session are those of `kennel session start --warm`.
    #[arg(long, conflicts_with = "detach")]
    pub(crate) cold: bool,
    /// Write a report to FILE as JSON.
    ///
    /// It has the exit status, the usage of resources, the protections and the denials.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) json: Option<PathBuf>,
    /// The command and its arguments.
    ///
    /// It begins at the first word that is no flag. A `--` before it says the same.
    #[arg(trailing_var_arg = true, required_unless_present = "shell", value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// With --overlay: let the agent apply changes to the workspace.
    ///
    /// This adds the tool `commit`. Without the flag, only you apply changes, with kennel commit.
    #[arg(long)]
    pub(crate) allow_commit: bool,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    #[command(flatten)]
    pub(crate) warm: WarmFlag,
    /// Do not report degraded protections on stderr.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
