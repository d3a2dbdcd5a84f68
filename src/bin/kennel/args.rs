//! What was typed. Only shapes and help texts; no meaning.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use kennel::{
    Cgroup, EnvBase, IoLimits, NetworkMode, OnUnavailable, Profile, Size, Span, TmpLife, Toolchains,
};

/// Confine commands: own namespaces, a root that shows only what is granted, Landlock, seccomp, limits.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run one command confined; its output, input and exit status are as without Kennel.
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Prepare a sandbox once, for many commands: start, list, stop.
    #[command(after_help = SESSION_HELP)]
    Session {
        #[command(subcommand)]
        action: SessionAction,
    },
    /// Run a command in a session that was started before.
    #[command(after_help = EXEC_HELP)]
    Exec(Exec),
    /// Run one operation of a manifest: a program, confined to what the manifest grants, with its credentials.
    #[command(after_help = OP_HELP)]
    Op(Op),
    /// Test what this host can enforce, and say how to mend what it cannot.
    Probe(Probe),
    /// Look at a policy without running anything.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Print completions for a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page, of Kennel or of one of its commands.
    #[command(after_help = MAN_HELP)]
    Man {
        /// The command: `run`, or `session start`.
        command: Vec<String>,
    },
    /// Look at audit logs.
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
  kennel run --allow crates.io:443 --allow '*.crates.io:443' -- cargo build
  kennel run --overlay --diff -- ./install.sh what it would change, without changing it
  kennel run --ro /srv/models --timeout 30s --memory 2G -- python3 eval.py

Exit status: the command's own; 128+N when signal N ended it; 124 when its time was up;
125 when Kennel failed, or could not commit everything; 126 when the command cannot be executed; 127 when it is not found.";

const SESSION_HELP: &str = "\
Examples:
  kennel session start --name a1        the current directory writable, no network
  kennel exec a1 -- make test           as often as you like
  kennel session list
  kennel session stop a1

The flags of `start` are those of `kennel run`. `stop` of a session that is not there is no error.";

const START_HELP: &str = "\
Examples:
  kennel session start --name a1
  kennel session start --name a2 --workspace ~/repo --ro /srv/models --tmp session

The socket lies in $XDG_RUNTIME_DIR/kennel or /tmp/kennel-UID, and beside it `kennel-exec`, a small client:
`kennel-exec SOCKET CMD` runs a command in its own directory and environment. `kennel exec` needs the name only.

Exit status: 0 when the session takes commands; 125 when it could not be prepared or the name is taken.";

const EXEC_HELP: &str = "\
Examples:
  kennel exec a1 -- make test
  kennel exec a1 --cwd src --setenv RUST_LOG=debug --timeout 30s -- cargo test
  kennel exec a1 --tty -- bash

The command starts in the directory of the session, wherever you are, and has the environment of the session.
It cannot have more than the session: what it may see and use was said with `kennel session start`.

Exit status: as with `kennel run`; 125 also when there is no session of that name.";

const OP_HELP: &str = "\
Examples:
  GH_TOKEN=… kennel op gh.toml issue_create --arg title='It works'
  kennel op gh.toml issue_list --credential GH_TOKEN=/run/secrets/gh --json report.json

A credential that the manifest lists comes from the variable of that name, or from a file (/dev/fd/N for a
descriptor). It reaches the environment of the program and nothing else. The program reads nothing from stdin;
its output comes when it has ended.

Exit status: the program's own; 128+N when signal N ended it; 124 when its time was up; 125 when the manifest
does not allow it or Kennel failed; 126 and 127 when it cannot be executed or is not found.";

#[derive(Debug, Args)]
pub(crate) struct Op {
    /// The manifest, a TOML file.
    #[arg(value_name = "MANIFEST")]
    pub(crate) manifest: PathBuf,
    /// The name of one of its operations.
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// Put V in the place of {K}.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) arg: Vec<(String, String)>,
    /// Take credential K from FILE instead of the environment.
    #[arg(long, value_name = "K=FILE", value_parser = assignment)]
    pub(crate) credential: Vec<(String, String)>,
    /// Append what was asked for and decided to FILE, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// Write how it ended, what it used and what was enforced to FILE, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Say nothing on stderr about degraded protections and denials.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionAction {
    /// Prepare a session in the background; print the path of its socket when it takes commands.
    #[command(after_help = START_HELP)]
    Start(Start),
    /// What `start` starts.
    #[command(hide = true)]
    Host(Start),
    /// Show your sessions that run.
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
    /// Start in DIR, from where you are if it is relative, instead of the session's directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set variable K to V.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) setenv: Vec<(String, String)>,
    /// Wall time; then everything of the command is killed and the status is 124. The session's own is an upper bound.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Run on a terminal of its own, with job control. Needs a terminal.
    #[arg(long)]
    pub(crate) tty: bool,
    /// Write how it ended, what it used and what was enforced to FILE, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

const VERIFY_HELP: &str = "\
Examples:
  kennel audit verify exec-2026-01-31.log
  kennel audit verify --head 5d41…  exec.log   also that nothing was cut off since

Prints how many records each log has, how many of them are chained (--audit-chain), and the hash of the last.
Exit status: 0 when every log is whole; 1 when one is not; 125 when one cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum AuditAction {
    /// Check that no line of a log was changed, taken away or put in between.
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// The hash of a line that must be in it: the last one of an earlier time.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// The logs.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyAction {
    /// Print the policy that these flags and files make, as JSON.
    Show(PolicyFlags),
    /// Check it against this host: every path, every protection.
    Check(PolicyFlags),
}

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// The profile to test with.
    #[arg(long, value_name = "PROFILE", default_value_t = Profile::RepoWrite)]
    pub(crate) profile: Profile,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// With --overlay: list what the command changed on stderr, and drop it. This is what happens without a choice.
    #[arg(long, group = "then")]
    pub(crate) diff: bool,
    /// With --overlay: apply what the command changed to the workspace, if it succeeded.
    #[arg(long, group = "then")]
    pub(crate) commit: bool,
    /// With --overlay: drop what the command changed.
    #[arg(long, group = "then")]
    pub(crate) discard: bool,
    /// Run on a terminal of its own, with job control. Needs a terminal, and counts no output.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) tty: bool,
    /// Write how it ended, what it used and what was enforced to FILE, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Say nothing on stderr about degraded protections and denials.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// The flags that make a policy. They add to and override what a policy file says.
#[derive(Debug, Args)]
pub(crate) struct PolicyFlags {
    /// Set of grants to start from: read-only, repo-write, no-network, full-dev, ci-only [default: repo-write].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<Profile>,
    /// Directory to work on, visible at its own path [default: the current directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Read a policy from a TOML or JSON file.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Show P read-only, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View")]
    pub(crate) ro: Vec<String>,
    /// Show P writable, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View")]
    pub(crate) rw: Vec<String>,
    /// Put an empty private directory at P.
    #[arg(long, value_name = "P[:SIZE]", help_heading = "View")]
    pub(crate) tmpfs: Vec<String>,
    /// Hide P.
    #[arg(long, value_name = "P", help_heading = "View")]
    pub(crate) mask: Vec<PathBuf>,
    /// Keep P in the workspace read-only, besides .git/hooks and .git/config.
    #[arg(long, value_name = "P", help_heading = "View")]
    pub(crate) protect: Vec<PathBuf>,
    /// Keep changes of the workspace apart from it, in memory.
    #[arg(long, help_heading = "View")]
    pub(crate) overlay: bool,
    /// The same, in the empty directory DIR; for large changes, or before Linux 6.6.
    #[arg(long, value_name = "DIR", help_heading = "View")]
    pub(crate) overlay_upper: Option<PathBuf>,
    /// The same, in memory, SIZE at most [default: that of --tmp-size].
    #[arg(long, value_name = "SIZE", help_heading = "View")]
    pub(crate) overlay_size: Option<Size>,
    /// Show toolchains outside the system directories: auto, none [default: auto].
    #[arg(long, value_name = "WHICH", help_heading = "View")]
    pub(crate) toolchains: Option<Toolchains>,
    /// Private places such as /tmp last for an exec or the session: exec, session [default: exec].
    #[arg(long, value_name = "LIFE", help_heading = "View")]
    pub(crate) tmp: Option<TmpLife>,
    /// Start in DIR instead of the workspace.
    #[arg(long, value_name = "DIR", help_heading = "View")]
    pub(crate) cwd: Option<PathBuf>,
    /// Network: none, proxy, host [default: by profile; proxy as soon as something is allowed].
    #[arg(long, value_name = "MODE", help_heading = "Network")]
    pub(crate) net: Option<NetworkMode>,
    /// Let connections to HOST:PORT pass, such as crates.io:443, *.crates.io:443, HOST:*, 192.0.2.0/24:80.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Refuse connections to HOST:PORT, whatever is allowed.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    pub(crate) deny: Vec<String>,
    /// Let names resolve to addresses of CIDR although they are private or otherwise special.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_address: Vec<String>,
    /// Go through the HTTP proxy at URL, or `environment`: what https_proxy and no_proxy say.
    #[arg(long, value_name = "URL", help_heading = "Network")]
    pub(crate) upstream: Option<String>,
    /// Lead to another proxy, at a Unix socket, which decides by itself what passes.
    #[arg(long, value_name = "SOCKET", help_heading = "Network")]
    pub(crate) proxy_socket: Option<PathBuf>,
    /// Ask the name server at ADDRESS[:PORT] instead of the system's.
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub(crate) name_server: Vec<String>,
    /// Serve only programs that know the proxy: no name server inside, no listeners on ports 80 and 443.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_transparent: bool,
    /// Append each command, decision, denial and limit to FILE, a line of JSON each; `{date}` in its name is the day.
    #[arg(long, value_name = "FILE", help_heading = "Audit")]
    pub(crate) audit: Option<PathBuf>,
    /// Give each line the hash of the one before; `kennel audit verify` checks them.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_chain: bool,
    /// Run nothing and let nothing pass that cannot be written down.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_closed: bool,
    /// Write the arguments of commands down too; they may hold secrets.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_arguments: bool,
    /// Host name that the command sees [default: kennel].
    #[arg(long, value_name = "H", help_heading = "Network")]
    pub(crate) hostname: Option<String>,
    /// Environment to start from: scrubbed, inherit [default: scrubbed].
    #[arg(long, value_name = "BASE", help_heading = "Environment")]
    pub(crate) env: Option<EnvBase>,
    /// Pass variable N on.
    #[arg(long, value_name = "N", help_heading = "Environment")]
    pub(crate) pass_env: Vec<String>,
    /// Set variable K to V.
    #[arg(long, value_name = "K=V", value_parser = assignment, help_heading = "Environment")]
    pub(crate) setenv: Vec<(String, String)>,
    /// Memory, such as 512M.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<Size>,
    /// What may be swapped out of it [default: nothing]. Needs --memory and a cgroup.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) swap: Option<Size>,
    /// Processes.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) pids: Option<u64>,
    /// Processors, such as 1.5.
    #[arg(long, value_name = "F", help_heading = "Limits")]
    pub(crate) cpus: Option<f64>,
    /// Which processors, such as 0-1. Needs a cgroup.
    #[arg(long, value_name = "LIST", help_heading = "Limits")]
    pub(crate) cpuset: Option<String>,
    /// Reading from and writing to the disk of the workspace, a second: read=10M,write=5M,read_ops=100,write_ops=50. Needs a
    /// cgroup.
    #[arg(long, value_name = "RATES", help_heading = "Limits")]
    pub(crate) io: Option<IoLimits>,
    /// Where cgroups that hold limits may be made: auto, off, or a directory of cgroup v2 [default: auto].
    #[arg(long, value_name = "WHERE", help_heading = "Limits")]
    pub(crate) cgroup: Option<Cgroup>,
    /// CPU time of each process, such as 10s.
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) cpu_time: Option<Span>,
    /// Wall time; then everything is killed and the status is 124.
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<Span>,
    /// Bytes kept of stdout and of stderr; the rest is read and dropped.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_output: Option<Size>,
    /// End a command that writes more than --max-output, instead of dropping what it goes on to write.
    #[arg(long, help_heading = "Limits")]
    pub(crate) output_ends: bool,
    /// Size of the private places together: /tmp, /dev/shm, HOME [default: 2G].
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) tmp_size: Option<Size>,
    /// Files and directories in the private places together, and in each --tmpfs [default: one for each 4K of size].
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) tmp_inodes: Option<u64>,
    /// When a protection is not to be had: refuse, degrade [default: refuse].
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_unavailable: Option<OnUnavailable>,
    /// After a command that failed, say which wall refused what, and the flag that would allow it. Its stderr passes
    /// through a pipe then.
    #[arg(long)]
    pub(crate) explain: bool,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
