//! The flags that make a policy, of the commands that have one.

use std::path::PathBuf;

use clap::Args;
use kennel::{
    Cgroup, EnvBase, IoLimits, NetworkMode, OnUnavailable, Profile, Size, Span, TmpLife, Toolchains,
};

use super::{assignment, count, processors, word};
use crate::home;

/// They add to and override what a policy file says.
#[derive(Debug, Args)]
pub(crate) struct PolicyFlags {
    /// Set of grants to start from [default: repo-write].
    #[arg(long, value_name = "PROFILE", value_parser = word::<Profile>(Profile::ALL.map(Profile::as_str)))]
    pub(crate) profile: Option<Profile>,
    /// Directory to work on, visible at its own path [default: the current directory].
    #[arg(long, value_name = "DIR", value_parser = home::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// Read a policy from a TOML or JSON file, or from a descriptor, such as <(…) of a shell.
    #[arg(long, value_name = "FILE", value_parser = home::path())]
    pub(crate) policy: Option<PathBuf>,
    /// Show P read-only, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = home::paths)]
    pub(crate) ro: Vec<String>,
    /// Show P writable, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = home::paths)]
    pub(crate) rw: Vec<String>,
    /// Put an empty private directory at P.
    #[arg(long, value_name = "P[:SIZE]", help_heading = "View", value_parser = home::paths)]
    pub(crate) tmpfs: Vec<String>,
    /// Hide P.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = home::path())]
    pub(crate) mask: Vec<PathBuf>,
    /// Keep P in the workspace read-only, in addition to .git/hooks and .git/config.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = home::path())]
    pub(crate) protect: Vec<PathBuf>,
    /// Collect changes to the workspace in memory instead of writing them.
    #[arg(long, help_heading = "View")]
    pub(crate) overlay: bool,
    /// Like --overlay, with the changes in the empty directory DIR; for large changes, or before Linux 6.6.
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = home::path())]
    pub(crate) overlay_upper: Option<PathBuf>,
    /// Like --overlay, at most SIZE [default: that of --tmp-size].
    #[arg(long, value_name = "SIZE", help_heading = "View")]
    pub(crate) overlay_size: Option<Size>,
    /// Show toolchains outside the system directories [default: auto].
    #[arg(long, value_name = "WHICH", help_heading = "View", value_parser = word::<Toolchains>(Toolchains::ALL.map(Toolchains::as_str)))]
    pub(crate) toolchains: Option<Toolchains>,
    /// Whether /tmp, HOME and other private directories, but for /dev/shm, are new for each exec or shared by the
    /// session [default: exec].
    #[arg(long, value_name = "LIFE", help_heading = "View", value_parser = word::<TmpLife>(TmpLife::ALL.map(TmpLife::as_str)))]
    pub(crate) tmp: Option<TmpLife>,
    /// Start in DIR instead of the workspace.
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = home::path())]
    pub(crate) cwd: Option<PathBuf>,
    /// Network access [default: set by the profile; of repo-write and ci-only `proxy` with --allow or --proxy-socket].
    #[arg(long, value_name = "MODE", help_heading = "Network", value_parser = word::<NetworkMode>(NetworkMode::ALL.map(NetworkMode::as_str)))]
    pub(crate) net: Option<NetworkMode>,
    /// Allow connections to HOST:PORT, for example crates.io:443, *.crates.io:443, HOST:*, 192.0.2.0/24:80.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    pub(crate) allow: Vec<String>,
    /// Refuse connections to HOST:PORT, whatever is allowed.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    pub(crate) deny: Vec<String>,
    /// Allow names that resolve to private or special addresses in CIDR.
    #[arg(long, value_name = "CIDR", help_heading = "Network")]
    pub(crate) allow_address: Vec<String>,
    /// Go through the HTTP proxy at URL; `environment` uses https_proxy and no_proxy.
    #[arg(long, value_name = "URL", help_heading = "Network")]
    pub(crate) upstream: Option<String>,
    /// Use the proxy at this Unix socket instead of Kennel's; it alone decides what passes.
    #[arg(long, value_name = "SOCKET", help_heading = "Network", value_parser = home::path())]
    pub(crate) proxy_socket: Option<PathBuf>,
    /// Ask the name server at ADDRESS[:PORT] instead of the system's.
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    pub(crate) name_server: Vec<String>,
    /// Turn off the DNS server and the listeners that serve programs without proxy support.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_transparent: bool,
    /// Append each command, decision, denial and limit to FILE, as lines of JSON; `{date}` in its name is the day. FILE must
    /// lie outside of what is granted writable; /dev/fd/N is the file that was opened there.
    #[arg(long, value_name = "FILE", help_heading = "Audit", value_parser = home::path())]
    pub(crate) audit: Option<PathBuf>,
    /// Give each line the hash of the one before, for `kennel audit verify`.
    #[arg(long, help_heading = "Audit")]
    pub(crate) audit_chain: bool,
    /// Fail closed: refuse commands and connections that cannot be logged.
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
    /// Pass on variable N.
    #[arg(long, value_name = "N", help_heading = "Environment")]
    pub(crate) pass_env: Vec<String>,
    /// Set variable K to V.
    #[arg(long, value_name = "K=V", value_parser = assignment, help_heading = "Environment")]
    pub(crate) setenv: Vec<(String, String)>,
    /// Memory limit, such as 512M.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) memory: Option<Size>,
    /// Swap that may be used besides [default: none]. Needs --memory and a cgroup.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) swap: Option<Size>,
    /// Maximum number of processes.
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = count, allow_negative_numbers = true)]
    pub(crate) pids: Option<u64>,
    /// CPU limit, such as 1.5.
    #[arg(long, value_name = "F", help_heading = "Limits", value_parser = processors, allow_negative_numbers = true)]
    pub(crate) cpus: Option<f64>,
    /// CPUs to run on, such as 0-1. Needs a cgroup.
    #[arg(long, value_name = "LIST", help_heading = "Limits")]
    pub(crate) cpuset: Option<String>,
    /// Rates for the disk of the workspace, per second: read=10M,write=5M,read_ops=100,write_ops=50. Needs a cgroup.
    #[arg(long, value_name = "RATES", help_heading = "Limits")]
    pub(crate) io: Option<IoLimits>,
    /// Where cgroups that hold limits may be made: auto, off, or a directory of cgroup v2 [default: auto].
    #[arg(long, value_name = "WHERE", help_heading = "Limits")]
    pub(crate) cgroup: Option<Cgroup>,
    /// CPU time limit of each process, such as 10s.
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) cpu_time: Option<Span>,
    /// Kill the command after TIME (exit status 124).
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<Span>,
    /// Bytes kept of stdout and of stderr; the rest is read and discarded.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) max_output: Option<Size>,
    /// Kill the command when it exceeds --max-output instead of discarding the rest.
    #[arg(long, help_heading = "Limits")]
    pub(crate) output_ends: bool,
    /// Size of all private places together: /tmp, /dev/shm, HOME [default: 2G]. With --tmp session /dev/shm has as much besides.
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub(crate) tmp_size: Option<Size>,
    /// Files and directories in all private places together, and in each --tmpfs [default: one for each 4K of size].
    #[arg(long, value_name = "N", help_heading = "Limits", value_parser = count, allow_negative_numbers = true)]
    pub(crate) tmp_inodes: Option<u64>,
    /// What to do when the host cannot provide a protection [default: refuse].
    #[arg(long, value_name = "WHAT", value_parser = word::<OnUnavailable>(OnUnavailable::ALL.map(OnUnavailable::as_str)))]
    pub(crate) on_unavailable: Option<OnUnavailable>,
    /// If the command fails, say which protection blocked what and which flag would allow it. Its stderr then goes
    /// through a pipe.
    #[arg(long)]
    pub(crate) explain: bool,
}
