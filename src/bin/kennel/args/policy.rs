//! The flags that make a policy, of the commands that have one.

use std::path::PathBuf;

use clap::Args;
use kennel::{
    Cgroup, EnvBase, IoLimits, NetworkMode, OnUnavailable, Profile, Size, Span, TmpLife, Toolchains,
};

use super::assignment;

/// They add to and override what a policy file says.
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
