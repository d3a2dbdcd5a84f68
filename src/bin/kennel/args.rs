//! What the command line accepts: commands, flags and help texts. The flags of a policy are in `flags`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use kennel::{Profile, Span};

use crate::{
    config::{
        init::{self, InitArguments},
        trust::{self, TrustArguments},
    },
    flags::PolicyFlags,
    parse::{self, assignment, credential, word},
    style::When,
};

/// Confine commands: own namespaces, a root that shows only what is granted, Landlock, seccomp, limits.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// When to use colours; `auto` means on terminals [default: auto]. NO_COLOR, CLICOLOR and CLICOLOR_FORCE count for
    /// `auto`.
    #[arg(long, value_name = "WHEN", global = true, value_parser = word::<When>(When::WORDS))]
    pub(crate) color: Option<When>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run one confined command; its output, input and exit status are as without Kennel.
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Prepare a sandbox once and run many commands in it: start, list, stop.
    #[command(after_help = SESSION_HELP)]
    Session {
        #[command(subcommand)]
        action: SessionAction,
    },
    /// Run a command in a session that is already running.
    #[command(after_help = EXEC_HELP)]
    Exec(Exec),
    /// Show what commands changed with --overlay, as a unified diff.
    #[command(after_help = DIFF_HELP)]
    Diff(Diff),
    /// Apply changes of --overlay to the workspace: all of them, or those at PATH.
    #[command(after_help = PART_HELP)]
    Commit(Part),
    /// Drop changes of --overlay: all of them, or those at PATH.
    #[command(after_help = PART_HELP)]
    Discard(Part),
    /// Run one operation of a manifest: a program with its credentials, confined to what the manifest grants.
    #[command(after_help = OP_HELP)]
    Op(Op),
    /// Test what this host can enforce, and how to fix what it cannot.
    Probe(Probe),
    /// Show or check a policy without running a command.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Write a commented kennel.toml for the project in the workspace.
    #[command(after_help = init::HELP)]
    Init(InitArguments),
    /// Trust the kennel.toml of the workspace as it is now, so that Kennel uses it.
    #[command(after_help = trust::HELP)]
    Trust(TrustArguments),
    /// Print completions for a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page of Kennel or of one of its commands.
    #[command(after_help = MAN_HELP)]
    Man {
        /// The command: `run`, or `session start`.
        command: Vec<String>,
    },
    /// List or clear what --caches keep has kept.
    #[command(after_help = CACHE_HELP)]
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Verify audit logs.
    Audit {
        #[command(subcommand)]
        action: AuditAction,
    },
}

const COMPLETIONS_HELP: &str = "\
Examples:
  kennel completions bash > ~/.local/share/bash-completion/completions/kennel
  kennel completions zsh > ~/.zfunc/_kennel       with fpath+=~/.zfunc before compinit
  kennel completions fish > ~/.config/fish/completions/kennel.fish";

const MAN_HELP: &str = "\
Examples:
  kennel man | man -l -
  kennel man run > /usr/local/share/man/man1/kennel-run.1";

const RUN_HELP: &str = "\
Examples:
  kennel run -- make test                     the current directory writable, no network
  kennel run --profile read-only -- rg TODO   nothing writable but /tmp
  kennel run --allow @cargo,@github -- cargo build   only these registries can be reached
  kennel run --overlay -- ./install.sh        then kennel diff, kennel commit or kennel discard
  kennel run --ro /srv/models --timeout 30s --memory 2G -- python3 eval.py

Exit status: the command's own; 124 on timeout; if a signal ended the command, Kennel dies of the same signal, which
a shell shows as 128+N, and with --exit-code it exits with 128+N; 125 if Kennel failed, could not commit every change, could not undo a successful command's change of a protected path,
or could not pass its output on;
126 if the command cannot be executed; 127 if it is not found.";

const DIFF_HELP: &str = "\
Examples:
  kennel run --overlay -- ./refactor.sh
  kennel diff --stat                what changed, a line each
  kennel diff src                   only below src
  kennel diff a1                    what the commands of session a1 changed

The form is that of git. Names and lines are escaped, so a diff is safe on a terminal. Nothing is shown of binary files
and of files above 4 MiB. A change that was moved counts as one if the files are similar by half.

Exit status: 0, also if nothing was changed; 125 if the changes cannot be read.";

const PART_HELP: &str = "\
Examples:
  kennel commit                     everything
  kennel commit src Cargo.toml      these, and what is below them
  kennel discard target
  kennel commit a1                  what the commands of session a1 changed; stop it first

A commit overwrites nothing that others changed in the workspace since the command saw it, and nothing that is
protected; it says what it left out, and that stays.

Exit status: 0; 125 if something could not be committed or discarded, or nothing was changed at a PATH.";

/// Where kept changes are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The workspace, or a directory in it [default: the current directory].
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// The directory of --overlay-upper, if the commands ran with that.
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) overlay_upper: Option<PathBuf>,
    /// As root: become the owner of the workspace first, as the commands did.
    #[arg(long)]
    pub(crate) as_owner: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Show a line for each file instead of its contents.
    #[arg(long)]
    pub(crate) stat: bool,
    /// Show N unchanged lines around each change [default: 3].
    #[arg(short = 'U', long, value_name = "N")]
    pub(crate) unified: Option<u32>,
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Part {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}

const OP_HELP: &str = "\
Examples:
  GH_TOKEN=… kennel op gh.toml issue_create --arg title='It works'
  kennel op gh.toml issue_list --credential GH_TOKEN=/run/secrets/gh --json report.json

Kennel takes each credential of the manifest from the variable of that name, or from a file (/dev/fd/N for a
descriptor). Only the environment of the program receives it. The program gets no stdin; Kennel shows its
output after it ends.

Largest files: a manifest 1 MiB, a credential 128 KiB, a program with a hash 512 MiB. Kennel keeps at most
64 MiB each of stdout and stderr (max_stdout_bytes, max_stderr_bytes).

Exit status: the program's own; 128+N if signal N ended it; 124 on timeout; 125 if the manifest does not
allow it, Kennel failed or could not pass its output on; 126 if it cannot be executed; 127 if it is not found.";

#[derive(Debug, Args)]
pub(crate) struct Op {
    /// The manifest, a TOML file.
    #[arg(value_name = "MANIFEST", value_parser = parse::path())]
    pub(crate) manifest: PathBuf,
    /// The name of an operation in it.
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// Value for the placeholder {K}.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) arg: Vec<(String, String)>,
    /// Read credential K from FILE instead of the environment.
    #[arg(long, value_name = "K=FILE", value_parser = credential)]
    pub(crate) credential: Vec<(String, PathBuf)>,
    /// Append requests and decisions to FILE as lines of JSON.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) audit: Option<PathBuf>,
    /// Write a report to FILE as JSON: exit status, resource usage, enforcement.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) json: Option<PathBuf>,
    /// Do not report degraded protections, denials and the limit that ended the command on stderr. Errors and
    /// lost output or records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

const VERIFY_HELP: &str = "\
Examples:
  kennel audit verify exec-2026-01-31.log
  kennel audit verify --head \"$HASH\" exec.log   also checks that the line with HASH remains

Prints the number of records in each log, the number of chained ones (--audit-chain), and the hash of the last.
Checks every log, even after an error.

Exit status: 0 if every log is intact; 1 if one is not; 125 if one cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum AuditAction {
    /// Check that no line of a log was changed, removed or inserted.
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// A hash that an earlier run printed; the log must still contain that line. Takes one FILE.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// The logs.
        #[arg(required = true, value_name = "FILE", value_parser = parse::path())]
        files: Vec<PathBuf>,
    },
}

const CACHE_HELP: &str = "\
Examples:
  kennel cache list
  kennel cache clear ~/.cargo/registry        what commands have added there; the host's own stays
  kennel cache clear                          everything that is kept

Exit status: 0 on success; 125 if a sandbox uses a cache, or nothing is kept for a PATH.";

#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// List the caches with kept changes: size on the disk, time since the last change, path.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove the kept changes of all caches, or of those at PATH. Caches in use stay.
    Clear {
        /// A cache, as commands see it.
        #[arg(value_name = "PATH", value_parser = parse::path())]
        paths: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyAction {
    /// Print the policy that these flags and files make, as JSON.
    Show(PolicyFlags),
    /// Check the policy on this host: start a sandbox, run no command.
    Check(PolicyFlags),
}

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// The profile to test.
    #[arg(long, value_name = "PROFILE", default_value_t = Profile::RepoWrite)]
    #[arg(value_parser = word::<Profile>(Profile::ALL.map(Profile::as_str)))]
    pub(crate) profile: Profile,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// With --overlay: show the diff of the changes on stderr, too.
    #[arg(long)]
    pub(crate) diff: bool,
    /// With --overlay: apply the changes to the workspace if the command succeeded.
    #[arg(long)]
    pub(crate) commit: bool,
    /// With --overlay: keep nothing. The command sees no changes of earlier ones.
    #[arg(long, conflicts_with_all = ["diff", "commit"])]
    pub(crate) discard: bool,
    /// As root: become the owner of the workspace (--workspace, or the current directory) before anything is read,
    /// with that user's groups and HOME. Kennel then has no privilege left.
    #[arg(long)]
    pub(crate) as_owner: bool,
    /// Ask on the terminal about each host that no rule decides: allow it once, for this run, always, or not. No answer
    /// within 30 s is no. The command runs on its own terminal, as with --tty.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) ask: bool,
    /// Take all keys for the command from the start, not only once it reads. All three standard streams are then its
    /// terminal. Needs a terminal; output is not counted.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) tty: bool,
    /// If a signal N ends the command, exit with status 128+N instead of dying of the same signal.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Write a report to FILE as JSON: exit status, resource usage, enforcement.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) json: Option<PathBuf>,
    /// Do not report degraded protections, denials and the limit that ended the command on stderr. Errors and
    /// lost output or records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments. It begins at the first word that is no flag; `--` before it also shows where.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

const SESSION_HELP: &str = "\
Examples:
  kennel session start --name a1        the current directory writable, no network
  kennel exec a1 -- make test           as often as you like
  kennel session list
  kennel session stop a1

`start` takes the flags of `kennel run` except --tty, --json and those that say what becomes of changes (--diff,
--commit, --discard): with --overlay, see kennel diff NAME.
Stopping a session that does not exist is not an error.";

const START_HELP: &str = "\
Examples:
  kennel session start --name a1
  kennel session start --name a2 --workspace ~/repo --ro /srv/models --tmp session

Kennel creates the socket in $XDG_RUNTIME_DIR/kennel or /tmp/kennel-UID, and the small client `kennel-exec` beside it:
`kennel-exec SOCKET CMD` runs a command in the caller's directory and environment. `kennel exec` needs only the name.

Exit status: 0 once the session takes commands; 125 if Kennel cannot prepare it or the name is taken.";

const EXEC_HELP: &str = "\
Examples:
  kennel exec a1 -- make test
  kennel exec a1 --cwd src --setenv RUST_LOG=debug --timeout 30s -- cargo test
  kennel exec a1 --tty -- bash

The command starts in the session's directory, not in yours, with the session's environment.
It has no more access than the session.

Exit status: as with `kennel run`; 125 also if there is no session of that name.";

/// Hides a flag that Kennel parses only to refuse it with a reason.
fn hidden(flag: Arg) -> Arg {
    flag.hide(true)
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionAction {
    /// Prepare a session in the background; print the path of its socket when it takes commands.
    #[command(
        after_help = START_HELP,
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
    /// End a session and every process in it; wait until they are gone.
    Stop {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the session: at most 64 letters, digits, `_`, `.` or `-`, starting with a letter or digit.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Stay in the foreground; the session ends with this process.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// As root: become the owner of the workspace (--workspace, or the current directory) before anything is read,
    /// with that user's groups and HOME. Kennel then has no privilege left.
    #[arg(long)]
    pub(crate) as_owner: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// Do not report degraded protections on stderr.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the session.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Start in DIR, relative to your current directory, instead of the session's directory.
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) cwd: Option<PathBuf>,
    /// Set variable K to V. With profile ci-only the session ignores variables that it does not pass
    /// (--pass-env).
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) setenv: Vec<(String, String)>,
    /// Kill the command after TIME (exit status 124); at most the session's own timeout. If the session then
    /// does not answer for five seconds, give up (125).
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Take all keys for the command from the start, not only once it reads. All three standard streams are then its
    /// terminal. Needs a terminal.
    #[arg(long)]
    pub(crate) tty: bool,
    /// If a signal N ends the command, exit with status 128+N instead of dying of the same signal.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Write a report to FILE as JSON: exit status, resource usage, enforcement.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) json: Option<PathBuf>,
    /// The command and its arguments. It begins at the first word that is no flag; `--` before it also shows where.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
