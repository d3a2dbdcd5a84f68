//! The flags that make a policy, and what `kennel policy` accepts.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, builder::PossibleValue};
use kennel::{
    Caches, Cgroup, EnvBase, Git, IoLimits, Isolation, NetworkMode, OnUnavailable, Profile, Size, Span,
    TmpLife, Toolchains,
};

use super::{
    help,
    values::{self, assignment, count, processors, word},
};

/// Flags that add to a policy file and override it.
#[derive(Debug, Default, Args)]
pub(crate) struct PolicyFlags {
    /// What to start from [default: repo-write].
    #[arg(long, value_name = "PROFILE", value_parser = word::<Profile>(profiles()))]
    pub(crate) profile: Option<Profile>,
    /// Directory to work in, visible at its own path [default: the current directory, or the top of the git
    /// work tree around it].
    #[arg(long, value_name = "DIR", value_parser = values::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// Read a policy file, or a policy by its name.
    ///
    /// A file is TOML or JSON, or a descriptor such as <(…) of a shell. NAME is that of
    /// ~/.config/kennel/NAME.toml. It takes the place of kennel.toml and ~/.config/kennel/config.toml. Flags
    /// add to it and override it.
    #[arg(long, value_name = "FILE|NAME", value_parser = values::path())]
    pub(crate) policy: Option<PathBuf>,
    /// Read neither kennel.toml nor ~/.config/kennel/config.toml.
    #[arg(long)]
    pub(crate) no_config: bool,
    /// Use IMAGE as the root file system, instead of the host's.
    ///
    /// Its user, variables and directory are those of commands, and all that --root says holds for it too.
    /// See kennel image.
    #[arg(long, value_name = "IMAGE", help_heading = "View", conflicts_with = "root")]
    pub(crate) image: Option<String>,
    /// Use DIR as the root file system, instead of the host's.
    ///
    /// Commands are root there, unless --user says otherwise, and can change all of it: the changes are in
    /// memory and end with the sandbox. Of the host only what --workspace, --ro and --rw name is shown.
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = values::path())]
    pub(crate) root: Option<PathBuf>,
    /// Keep what commands change in the other root on a disk, until the end: in DIR, an empty directory of
    /// yours, or with `disk` in the store of images.
    ///
    /// Without it the changes are in memory, at most --tmp-size. DIR is empty again afterwards.
    #[arg(long, value_name = "DIR|disk", help_heading = "View", value_parser = values::path())]
    pub(crate) image_upper: Option<PathBuf>,
    /// Run as this user of the other root.
    #[arg(long, value_name = "NAME|UID[:GROUP]", help_heading = "View")]
    pub(crate) user: Option<String>,
    /// Show P read-only, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = values::paths)]
    pub(crate) ro: Vec<String>,
    /// Show P writable, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = values::paths)]
    pub(crate) rw: Vec<String>,
    /// Put an empty private directory at P.
    #[arg(long, value_name = "P[:SIZE]", help_heading = "View", value_parser = values::paths)]
    pub(crate) tmpfs: Vec<String>,
    /// Hide P, which can be a pattern such as '**/.env'.
    ///
    /// '*.key' matches at any depth of the workspace.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = values::path())]
    pub(crate) mask: Vec<PathBuf>,
    /// Keep P in the workspace read-only, in addition to .git/hooks and .git/config. P can be a pattern, such
    /// as '**/.env'; '*.key' matches at any depth.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = values::path())]
    pub(crate) protect: Vec<PathBuf>,
    /// What the command may change of git repositories: `protect` keeps hooks and configuration as they are,
    /// `workspace` does too and shows no repository around the workspace, `read-only` keeps everything, and
    /// `trust` nothing [default: protect].
    #[arg(long, value_name = "CHOICE", help_heading = "View", value_parser = word::<Git>(Git::ALL.map(Git::as_str)))]
    pub(crate) git: Option<Git>,
    /// Keep changes to the workspace apart from it.
    ///
    /// See kennel diff, kennel commit and kennel discard. Later commands with this flag see them and add to
    /// them.
    #[arg(long, help_heading = "View")]
    pub(crate) overlay: bool,
    /// Like --overlay, but keep the changes in DIR: an empty directory of your own, or one that a command
    /// with this flag has used.
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = values::path())]
    pub(crate) overlay_upper: Option<PathBuf>,
    /// Like --overlay, but with the changes in memory, at most SIZE. They are listed, and dropped
    /// unless --commit applies them. Needs Linux 6.6.
    #[arg(long, value_name = "SIZE", help_heading = "View")]
    pub(crate) overlay_size: Option<Size>,
    /// Show toolchains outside the system directories [default: auto].
    #[arg(long, value_name = "WHICH", help_heading = "View", value_parser = word::<Toolchains>(Toolchains::ALL.map(Toolchains::as_str)))]
    pub(crate) toolchains: Option<Toolchains>,
    /// What commands can do with caches such as ~/.cargo/registry and ~/.npm: write to a private copy, write
    /// to a copy that later sandboxes see too, only read, or not even see them [default: private].
    #[arg(long, value_name = "HOW", help_heading = "View", value_parser = word::<Caches>(Caches::ALL.map(Caches::as_str)))]
    pub(crate) caches: Option<Caches>,
    /// Whether each exec gets new private directories (/tmp, HOME and others) or the session shares them;
    /// /dev/shm is not affected [default: exec].
    #[arg(long, value_name = "LIFE", help_heading = "View", value_parser = word::<TmpLife>(TmpLife::ALL.map(TmpLife::as_str)))]
    pub(crate) tmp: Option<TmpLife>,
    /// What the commands of a session share: nothing (command), or processes, /tmp and IPC, as on one machine
    /// (session).
    ///
    /// [default: session for `session start`]
    #[arg(long, value_name = "WHAT", help_heading = "View", value_parser = word::<Isolation>(Isolation::ALL.map(Isolation::as_str)))]
    pub(crate) isolation: Option<Isolation>,
    /// Start in DIR [default: the current directory; with --workspace or --policy, the workspace].
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = values::path())]
    pub(crate) cwd: Option<PathBuf>,
    /// Network: none, proxy (what is allowed) or host.
    ///
    /// [default: that of the profile]
    #[arg(long, value_name = "MODE", help_heading = "Network", value_parser = word::<NetworkMode>(NetworkMode::ALL.map(NetworkMode::as_str)))]
    pub(crate) net: Option<NetworkMode>,
    /// Allow connections to HOST:PORT.
    ///
    /// For example crates.io:443, *.crates.io:443, HOST:*, 192.0.2.0/24:80. localhost:PORT is a service of
    /// the host. @cargo, @npm, @pypi, @github, @go, @debian and others name the hosts of a registry.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Refuse connections to HOST:PORT, even if another rule allows them.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', help_heading = "Network")]
    pub(crate) deny: Vec<String>,
    /// Allow names that resolve to private or special addresses in CIDR.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_address: Vec<String>,
    /// Connect through the HTTP proxy at URL; `environment` uses https_proxy and no_proxy.
    #[arg(long, value_name = "URL", help_heading = "Network")]
    pub(crate) upstream: Option<String>,
    /// Use the proxy at this Unix socket instead of Kennel's; it alone decides which connections pass.
    #[arg(long, value_name = "SOCKET", help_heading = "Network", value_parser = values::path())]
    pub(crate) proxy_socket: Option<PathBuf>,
    /// Ask the name server at ADDRESS[:PORT] instead of the system's.
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub(crate) name_server: Vec<String>,
    /// Turn off the DNS server and the listeners for programs without proxy support.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_transparent: bool,
    /// Let programs outside reach a server in the sandbox.
    ///
    /// They connect to PORT of this machine, at 127.0.0.1 unless ADDR says otherwise, and reach the server at
    /// INSIDE, or at the same port. PORT 0 is one that is free; Kennel says which. TCP only.
    #[arg(long, value_name = "[ADDR:]PORT[:INSIDE]", value_delimiter = ',', help_heading = "Network")]
    pub(crate) publish: Vec<String>,
    /// Append each command, decision, denial and limit to FILE as lines of JSON. `{date}` in its name becomes
    /// the day. FILE must be outside every writable directory. /dev/fd/N names an open file.
    #[arg(long, value_name = "FILE", help_heading = "Audit", value_parser = values::path())]
    pub(crate) audit: Option<PathBuf>,
    /// Give each line the hash of the line before it, for `kennel audit verify`.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_chain: bool,
    /// Refuse commands and connections that cannot be logged.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_closed: bool,
    /// Log the arguments of commands too; they may contain secrets.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_arguments: bool,
    /// Host name that the command sees [default: kennel].
    #[arg(long, value_name = "H", help_heading = "Network")]
    pub(crate) hostname: Option<String>,
    /// Environment to start from [default: scrubbed].
    #[arg(long, value_name = "BASE", help_heading = "Environment", value_parser = word::<EnvBase>(EnvBase::ALL.map(EnvBase::as_str)))]
    pub(crate) env: Option<EnvBase>,
    /// Pass variable N to the command.
    #[arg(long, value_name = "N", help_heading = "Environment")]
    pub(crate) pass_env: Vec<String>,
    /// Set variable K to V.
    #[arg(long, value_name = "K=V", value_parser = assignment, help_heading = "Environment")]
    pub(crate) setenv: Vec<(String, String)>,
    /// Memory limit, such as 512M.
    ///
    /// Without a cgroup, it holds for each process, and not for all together.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<Size>,
    /// Swap that the command may use beyond --memory [default: none]. Needs --memory and a cgroup.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) swap: Option<Size>,
    /// Maximum number of processes.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = count, allow_negative_numbers = true)]
    pub(crate) pids: Option<u64>,
    /// CPU limit, such as 1.5.
    ///
    /// It needs a cgroup: without one, nothing runs.
    #[arg(long, value_name = "F", help_heading = "Limits", value_parser = processors, allow_negative_numbers = true)]
    pub(crate) cpus: Option<f64>,
    /// CPUs to run on, such as 0-1. Needs a cgroup.
    #[arg(long, value_name = "LIST", help_heading = "Limits")]
    pub(crate) cpuset: Option<String>,
    /// Disk rates for the workspace, per second: read=10M,write=5M,read_ops=100,write_ops=50. Needs a cgroup.
    #[arg(long, value_name = "RATES", help_heading = "Limits")]
    pub(crate) io: Option<IoLimits>,
    /// Where to create cgroups for limits: auto, off, or a directory of cgroup v2 [default: auto].
    #[arg(long, value_name = "WHERE", help_heading = "Limits")]
    pub(crate) cgroup: Option<Cgroup>,
    /// CPU time limit of each process, such as 10s.
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) cpu_time: Option<Span>,
    /// Kill the command after TIME, such as 30s.
    ///
    /// The exit status is then 124.
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<Span>,
    /// Bytes to keep of stdout and of stderr; Kennel reads and discards the rest.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_output: Option<Size>,
    /// Kill the command when it exceeds --max-output instead of discarding the rest.
    #[arg(long, help_heading = "Limits")]
    pub(crate) output_ends: bool,
    /// Total size of the private directories: /tmp, /dev/shm, HOME [default: 2G]. With --tmp session,
    /// /dev/shm gets the same size on top.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) tmp_size: Option<Size>,
    /// Total number of files and directories in the private directories, and in each --tmpfs [default: one
    /// for each 4K of size].
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = count, allow_negative_numbers = true)]
    pub(crate) tmp_inodes: Option<u64>,
    /// What to do when the host cannot provide a protection, or hold a limit that you set [default: refuse].
    #[arg(long, value_name = "WHAT", value_parser = word::<OnUnavailable>(OnUnavailable::ALL.map(OnUnavailable::as_str)))]
    pub(crate) on_unavailable: Option<OnUnavailable>,
    /// If the command fails, say what was refused, and why.
    ///
    /// Names the protection and the flag that would allow it. The command runs slower.
    #[arg(long)]
    pub(crate) explain: bool,
}

impl PolicyFlags {
    /// Whether a flag names another root than the host's.
    pub(crate) fn names_root(&self) -> bool {
        self.root.is_some() || self.image.is_some()
    }
}

/// The profiles with what each means.
fn profiles() -> [PossibleValue; 5] {
    Profile::ALL.map(|profile| {
        let value = PossibleValue::new(profile.as_str());
        value.help(match profile {
            Profile::ReadOnly => "nothing is writable but private directories; no network",
            Profile::RepoWrite => "the workspace is writable; the network reaches what --allow names",
            Profile::NoNetwork => "the workspace is writable; no network, and --allow is an error",
            Profile::FullDev => "all files are visible, the workspace is writable; the host's network",
            Profile::CiOnly => {
                "as repo-write, but without your home, toolchains and environment; every protection must hold"
            }
        })
    })
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
