//! What the command line accepts: commands, flags and help texts. The flags of a policy are in `flags`.

pub(crate) mod connector;
mod exec;
pub(crate) mod help;
mod mcp;

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use kennel::{Profile, Span};

pub(crate) use exec::Exec;
pub(crate) use mcp::Mcp;

use crate::{
    config::{
        init::{self, InitArguments},
        trust::{self, TrustArguments},
    },
    owner::Step,
    parse::{self, assignment, credential, word},
    policy::flags::PolicyFlags,
    terminal::style::When,
};

/// Run commands so that they see, use and reach only what you grant.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, arg_required_else_help = true, after_help = help::KENNEL)]
pub(crate) struct Arguments {
    /// Use colours: auto, always or never [default: auto].
    ///
    /// `auto` means on terminals; NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM=dumb change that.
    #[arg(long, value_name = "WHEN", global = true, display_order = 1000, value_parser = word::<When>(When::WORDS))]
    pub(crate) color: Option<When>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command confined.
    ///
    /// Its output, input and exit status are as without Kennel. It sees the system, read-only, and an empty
    /// home and /tmp; it can change the workspace. Flags grant more.
    #[command(after_help = help::RUN)]
    Run(Run),
    /// Keep a sandbox ready for many commands: start, list, stop.
    #[command(after_help = help::SESSION)]
    Session {
        #[command(subcommand)]
        action: SessionAction,
    },
    /// Run a command in a session.
    #[command(after_help = help::EXEC)]
    Exec(Exec),
    /// Serve a sandbox to an agent, by the Model Context Protocol.
    ///
    /// The agent starts this command and speaks to its stdin and stdout. Its tools run commands and read and
    /// write files in one sandbox, which ends with stdin.
    #[command(after_help = help::MCP, mut_arg("overlay_size", hidden))]
    Mcp(Mcp),
    /// Show what commands changed with --overlay.
    ///
    /// The form is a unified diff.
    #[command(after_help = help::DIFF)]
    Diff(Diff),
    /// Apply changes of --overlay to the workspace.
    ///
    /// That is all of them, or those at PATH.
    #[command(after_help = help::COMMIT)]
    Commit(CommitArguments),
    /// Drop changes of --overlay.
    ///
    /// That is all of them, or those at PATH.
    #[command(after_help = help::DISCARD)]
    Discard(Part),
    /// Run an operation of a manifest.
    ///
    /// That is a program with its credentials, confined to what the manifest grants.
    #[command(after_help = help::OP)]
    Op(Op),
    /// Check, run and compile WebAssembly connectors.
    #[command(after_help = connector::CONNECTOR)]
    Connector {
        #[command(subcommand)]
        action: connector::Action,
    },
    /// Test what this machine enforces, and how to get the rest.
    Probe(Probe),
    /// Show or check what flags and policy files allow.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Write a commented kennel.toml for the project in the workspace.
    #[command(after_help = init::HELP)]
    Init(InitArguments),
    /// Trust the kennel.toml of the workspace as it is now.
    ///
    /// Kennel then uses it.
    #[command(after_help = trust::HELP)]
    Trust(TrustArguments),
    /// Print completions for a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page.
    #[command(after_help = help::MAN)]
    Man {
        /// The command: `run`, or `session start`.
        command: Vec<String>,
    },
    /// List or clear what --caches keep has kept.
    #[command(after_help = help::CACHE)]
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

/// Where kept changes are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The workspace, or a directory in it [default: the current directory].
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// The directory of --overlay-upper, if the commands ran with that.
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) overlay_upper: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
}

/// Whose rights Kennel and its commands have.
#[derive(Debug, Args)]
pub(crate) struct AsOwner {
    /// As root: become the owner of the workspace first.
    ///
    /// The workspace is that of --workspace, or the current directory. It happens before anything is read,
    /// with the groups and HOME of that user. Nothing of root's goes along: no privilege, terminal,
    /// descriptor or unknown variable.
    #[arg(long)]
    pub(crate) as_owner: bool,
    /// The next step of --as-owner, in another process.
    #[arg(long, hide = true, conflicts_with = "as_owner")]
    pub(crate) owner_step: Option<Step>,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Show a line for each file instead of its contents.
    #[arg(long)]
    pub(crate) stat: bool,
    /// Show N unchanged lines around each change [default: 3].
    #[arg(short = 'U', long, value_name = "N")]
    pub(crate) unified: Option<u32>,
    /// Do not start a pager. On a terminal it is $KENNEL_PAGER, $PAGER or less.
    #[arg(long)]
    pub(crate) no_pager: bool,
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a
    /// session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CommitArguments {
    /// Replace what others changed at PATH since the command saw it.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) part: Part,
}

#[derive(Debug, Args)]
pub(crate) struct Part {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a
    /// session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}

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
    /// Write a report to FILE as JSON.
    ///
    /// It has the exit status, the usage of resources, the protections and the denials.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) json: Option<PathBuf>,
    /// Print errors, but no remarks.
    ///
    /// Remarks are weaker protections, denials, notes, and the limit that ended the command. Lost output or
    /// records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditAction {
    /// Check that no line of a log was changed, removed or inserted.
    #[command(after_help = help::VERIFY)]
    Verify {
        /// A hash that an earlier run printed; the log must still contain that line. Takes one FILE.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// The logs.
        #[arg(required = true, value_name = "FILE", value_parser = parse::path())]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// List the caches with kept changes.
    ///
    /// Shows the size on the disk, the time since the last change, and the path.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove the kept changes of caches.
    ///
    /// That is of all, or of those at PATH. Caches in use stay.
    Clear {
        /// A cache, as commands see it.
        #[arg(value_name = "PATH", value_parser = parse::path())]
        paths: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyAction {
    /// Show what commands may read, write and reach.
    ///
    /// Shows where each of that comes from too: the profile, a file, a flag.
    #[command(after_help = help::SHOW)]
    Show(Show),
    /// Start a sandbox without a command, and list its protections.
    Check(PolicyFlags),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Print everything as JSON.
    ///
    /// That is the policy, where its keys come from, every place of the view and the name of every variable.
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// Print a policy file that says the same, in JSON.
    #[arg(long, group = "form")]
    pub(crate) as_file: bool,
    /// Show what only one of two policies has.
    ///
    /// A and B are profiles or policy files. The other flags are added to both.
    #[arg(long, num_args = 2, value_names = ["A", "B"], group = "form", conflicts_with_all = ["policy", "profile"])]
    pub(crate) diff: Vec<OsString>,
    #[command(flatten)]
    pub(crate) flags: PolicyFlags,
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
    #[command(flatten)]
    pub(crate) owner: AsOwner,
    /// Ask on the terminal about each host that no rule decides.
    ///
    /// Allow it once, for this run, always, or not. No answer within 30 s is no. The command runs on its own
    /// terminal, as with --tty.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) ask: bool,
    /// Let the command read and reach nearly everything, and write to FILE a policy that allows what it used.
    ///
    /// For review: FILE says what it cannot see. Known secrets, /run, /tmp and homes of others stay hidden,
    /// and private addresses closed. Changes to the workspace are kept apart, as with --overlay. FILE is a
    /// new one, outside of the workspace.
    #[arg(long, value_name = "FILE", value_parser = parse::path())]
    pub(crate) learn: Option<PathBuf>,
    /// Take all keys for the command from the start.
    ///
    /// Not only once it reads. All three standard streams are then its terminal. Needs a terminal; output is
    /// not counted.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) tty: bool,
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
    /// Print errors, but no remarks.
    ///
    /// Remarks are weaker protections, denials, notes, and the limit that ended the command. Lost output or
    /// records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments.
    ///
    /// It begins at the first word that is no flag. A `--` before it says the same.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Hides a flag that Kennel parses only to refuse it with a reason.
fn hidden(flag: Arg) -> Arg {
    flag.hide(true)
}

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
    /// That is every process of its commands, whoever started it, and none of Kennel's own.
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
        #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse::signal)]
        signal: i32,
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
        #[arg(long, value_name = "FILE", value_parser = parse::path())]
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
    /// Do not report degraded protections on stderr.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
