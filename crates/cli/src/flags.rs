//! The flags that make a policy, and the policy that they make.

use std::path::{Path, PathBuf};

use clap::{Args, builder::PossibleValue};
use kennel::{
    Audit, Caches, Cgroup, EnvBase, Error, ForeignProxy, Git, IoLimits, Isolation, Mount, Network,
    NetworkMode, OnUnavailable, Overlay, Policy, Profile, Size, Span, TmpLife, Toolchains,
    report::{Note, PolicyError},
};

use crate::{
    config::{self, Start},
    descriptor::resolve_descriptor,
    parse::{self, assignment, count, processors, word},
    remedy::FLAGS,
};

/// Flags that add to a policy file and override it.
#[derive(Debug, Args)]
pub(crate) struct PolicyFlags {
    /// What to start from [default: repo-write].
    #[arg(long, value_name = "PROFILE", value_parser = word::<Profile>(profiles()))]
    pub(crate) profile: Option<Profile>,
    /// Directory to work in, visible at its own path [default: the current directory, or the top of the git
    /// work tree around it].
    #[arg(long, value_name = "DIR", value_parser = parse::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// Read a policy file, or a policy by its name.
    ///
    /// A file is TOML or JSON, or a descriptor such as <(…) of a shell. NAME is that of
    /// ~/.config/kennel/NAME.toml. It takes the place of kennel.toml and ~/.config/kennel/config.toml. Flags
    /// add to it and override it.
    #[arg(long, value_name = "FILE|NAME", value_parser = parse::path())]
    pub(crate) policy: Option<PathBuf>,
    /// Read neither kennel.toml nor ~/.config/kennel/config.toml.
    #[arg(long)]
    pub(crate) no_config: bool,
    /// Show P read-only, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = parse::paths)]
    pub(crate) ro: Vec<String>,
    /// Show P writable, at T if given.
    #[arg(long, value_name = "P[:T]", help_heading = "View", value_parser = parse::paths)]
    pub(crate) rw: Vec<String>,
    /// Put an empty private directory at P.
    #[arg(long, value_name = "P[:SIZE]", help_heading = "View", value_parser = parse::paths)]
    pub(crate) tmpfs: Vec<String>,
    /// Hide P, which can be a pattern such as '**/.env'.
    ///
    /// '*.key' matches at any depth of the workspace.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = parse::path())]
    pub(crate) mask: Vec<PathBuf>,
    /// Keep P in the workspace read-only, in addition to .git/hooks and .git/config. P can be a pattern, such
    /// as '**/.env'; '*.key' matches at any depth.
    #[arg(long, value_name = "P", help_heading = "View", value_parser = parse::path())]
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
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = parse::path())]
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
    #[arg(long, value_name = "DIR", help_heading = "View", value_parser = parse::path())]
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
    #[arg(long, value_name = "SOCKET", help_heading = "Network", value_parser = parse::path())]
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
    #[arg(long, value_name = "FILE", help_heading = "Audit", value_parser = parse::path())]
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

/// Makes the policy from files and the flags.
pub(crate) fn from_flags(flags: &PolicyFlags) -> Result<Policy, Error> {
    with_flags(config::start(flags)?, flags)
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

/// Adds the flags to what files say.
pub(crate) fn with_flags(start: Start, flags: &PolicyFlags) -> Result<Policy, Error> {
    let Start { mut policy, below, .. } = start;
    set(&mut policy.profile, flags.profile);
    set(&mut policy.workspace, flags.workspace.clone());
    set(&mut policy.toolchains, flags.toolchains);
    set(&mut policy.caches, flags.caches);
    set(&mut policy.tmp, flags.tmp);
    policy.isolation = flags.isolation.or(policy.isolation);
    set(&mut policy.git, flags.git);
    set(&mut policy.on_unavailable, flags.on_unavailable);
    set(&mut policy.hostname, flags.hostname.clone());
    set(&mut policy.env.base, flags.env);
    policy.cwd = flags.cwd.clone().or(policy.cwd);
    policy.audit = audit(flags, policy.audit.take())?;
    policy.overlay = overlay(flags, policy.overlay.take());
    policy.explain |= flags.explain;
    network(&mut policy.network, flags);
    policy.protect.extend(flags.protect.iter().map(|path| from_workspace(path, &below)));
    policy.env.pass.extend(flags.pass_env.iter().cloned());
    policy.env.set.extend(flags.setenv.iter().cloned());
    policy.mounts.extend(mounts(flags)?);
    limits(&mut policy, flags);
    policy.wording = FLAGS;
    Ok(policy)
}

/// What to know about the flags: `--pass-env` passes nothing on for a variable that is not set.
pub(crate) fn notes(flags: &PolicyFlags) -> impl Iterator<Item = Note> {
    let is_set = |name: &str| flags.setenv.iter().any(|(set, _)| set == name);
    let missing = flags.pass_env.iter().filter(move |name| std::env::var_os(name).is_none() && !is_set(name));
    missing.map(|name| {
        let remedy = format!("export {name} first, or set it with --setenv {name}=VALUE");
        Note::new(&format!("--pass-env {name}"), "it is not set here", Some(remedy.into()))
    })
}

/// Characters that make a path of the policy a pattern.
const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// A path of `--protect`, as it starts at the workspace. It starts at the directory `below` that.
fn from_workspace(path: &Path, below: &Path) -> PathBuf {
    let has_wildcards = path.to_string_lossy().contains(WILDCARDS);
    // A pattern that matches at any depth holds for the whole workspace.
    if below.as_os_str().is_empty() || has_wildcards && (path.iter().count() == 1 || path.starts_with("**")) {
        return path.to_owned();
    }
    // The names of directories are no patterns.
    let escaped: String = below
        .to_string_lossy()
        .chars()
        .map(|c| if WILDCARDS.contains(&c) { format!("[{c}]") } else { c.to_string() })
        .collect();
    Path::new(&escaped).join(path)
}

/// Resolves the path of an audit log; it may name a descriptor.
///
/// # Errors
/// The descriptor is not that of a regular file with a name.
pub(crate) fn log(path: &Path) -> Result<PathBuf, Error> {
    resolve_descriptor(path).map_err(|source| {
        let remedy = "open a regular file there, as in 3>>kennel.log, or pass the name of the file".into();
        Error::Grant { what: "audit log", path: path.to_owned(), source, remedy: Some(remedy) }
    })
}

fn audit(flags: &PolicyFlags, of_file: Option<Audit>) -> Result<Option<Audit>, Error> {
    let audit = flags.audit.as_deref().map(log).transpose()?.map(Audit::new).or(of_file);
    let chosen = [flags.audit_chain, flags.audit_closed, flags.audit_arguments];
    match audit {
        Some(audit) => Ok(Some(Audit {
            chain: audit.chain || flags.audit_chain,
            fail_closed: audit.fail_closed || flags.audit_closed,
            arguments: audit.arguments || flags.audit_arguments,
            ..audit
        })),
        None if chosen.contains(&true) => Err(PolicyError::Value {
            key: "audit".to_owned(),
            value: String::new(),
            reason: "--audit-chain, --audit-closed and --audit-arguments need --audit FILE".to_owned(),
        }
        .into()),
        None => Ok(None),
    }
}

fn overlay(flags: &PolicyFlags, of_file: Option<Overlay>) -> Option<Overlay> {
    let asked = flags.overlay || flags.overlay_upper.is_some() || flags.overlay_size.is_some();
    let mut overlay = if asked { of_file.unwrap_or_default() } else { return of_file };
    if flags.overlay_upper.is_some() {
        overlay = Overlay { upper: flags.overlay_upper.clone(), ..Overlay::default() };
    }
    overlay.size = flags.overlay_size.or(overlay.size);
    Some(overlay)
}

fn network(network: &mut Network, flags: &PolicyFlags) {
    network.mode = flags.net.or(network.mode);
    network.allow.extend(flags.allow.iter().cloned());
    network.deny.extend(flags.deny.iter().cloned());
    network.allow_addresses.extend(flags.allow_address.iter().cloned());
    network.name_servers.extend(flags.name_server.iter().cloned());
    network.publish.extend(flags.publish.iter().cloned());
    network.upstream = flags.upstream.clone().or(network.upstream.take());
    if let Some(unix) = &flags.proxy_socket {
        network.proxy = Some(ForeignProxy { unix: unix.clone() });
    }
    if flags.no_transparent {
        network.transparent = Some(false);
    }
}

fn mounts(flags: &PolicyFlags) -> Result<Vec<Mount>, Error> {
    let bind = |spec: &String| Mount::parse_bind(spec);
    let ro = |(source, target)| Mount::ReadOnly { source, target };
    let rw = |(source, target)| Mount::ReadWrite { source, target };
    let tmpfs = |(target, size)| Mount::Tmpfs { target, size };
    let ro = flags.ro.iter().map(|spec| checked("--ro", bind(spec).map(ro)));
    let rw = flags.rw.iter().map(|spec| checked("--rw", bind(spec).map(rw)));
    let tmpfs = flags.tmpfs.iter().map(|spec| checked("--tmpfs", Mount::parse_tmpfs(spec).map(tmpfs)));
    let here = std::env::current_dir().unwrap_or_default();
    let mask = flags.mask.iter().map(|path| checked("--mask", Ok(Mount::mask_in(&here, path))));
    Ok(ro.chain(rw).chain(tmpfs).chain(mask).collect::<Result<_, PolicyError>>()?)
}

/// Validates one mount by itself, so that an error names the flag and not the list of mounts.
fn checked(flag: &str, parsed: Result<Mount, PolicyError>) -> Result<Mount, PolicyError> {
    let alone = |mount: &Mount| Policy { mounts: vec![mount.clone()], ..Policy::default() }.validate();
    parsed.and_then(|mount| alone(&mount).map(|()| mount)).map_err(|error| match error {
        PolicyError::Value { value, reason, .. } => {
            PolicyError::Value { key: flag.to_owned(), value, reason }
        }
        error => error,
    })
}

fn limits(policy: &mut Policy, flags: &PolicyFlags) {
    let limits = &mut policy.limits;
    limits.memory = flags.memory.or(limits.memory);
    limits.swap = flags.swap.or(limits.swap);
    limits.pids = flags.pids.or(limits.pids);
    limits.cpus = flags.cpus.or(limits.cpus);
    limits.cpuset = flags.cpuset.clone().or(limits.cpuset.take());
    limits.io = flags.io.or(limits.io);
    set(&mut limits.cgroup, flags.cgroup.clone());
    limits.cpu_time = flags.cpu_time.or(limits.cpu_time);
    limits.timeout = flags.timeout.or(limits.timeout);
    limits.output = flags.max_output.or(limits.output);
    limits.output_ends |= flags.output_ends;
    limits.tmp_size = flags.tmp_size.or(limits.tmp_size);
    limits.tmp_inodes = flags.tmp_inodes.or(limits.tmp_inodes);
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use kennel::{Audit, ForeignProxy, Overlay, Policy};
    use serde_json::Value;

    const DOCUMENT: &str = include_str!("../../../docs/policy.md");

    /// The words in backticks in a line of Markdown.
    fn quoted(text: &str) -> impl Iterator<Item = String> + '_ {
        text.split('`').skip(1).step_by(2).map(str::to_owned)
    }

    /// The words in backticks in one column of every table of keys.
    fn column(number: usize) -> BTreeSet<String> {
        let tables = DOCUMENT.split("| key | flag | type | default | meaning |\n").skip(1);
        let rows = tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|')));
        rows.filter_map(|row| row.split('|').nth(number)).flat_map(quoted).collect()
    }

    /// The keys of a policy; a key inside a table has the table's name before it.
    fn keys() -> BTreeSet<String> {
        let mut policy = Policy::default().overlay(Overlay::default());
        policy.audit = Some(Audit { chain: true, ..Audit::new("log") });
        policy.network.proxy = Some(ForeignProxy { unix: "s".into() });
        let Ok(Value::Object(policy)) = serde_json::to_value(policy) else { panic!("no table") };
        let mut found = BTreeSet::new();
        for (key, value) in policy {
            match value {
                Value::Object(inner) if key != "require" => {
                    let (proxy, inner): (Vec<_>, Vec<_>) =
                        inner.into_iter().map(|(name, _)| name).partition(|name| name == "proxy");
                    found.extend(proxy.iter().map(|name| format!("{key}.{name}.unix")));
                    found.extend(inner.iter().map(|name| format!("{key}.{name}")));
                    // `overlay` may also stand alone, as `true`.
                    if key == "overlay" {
                        found.insert(key);
                    }
                }
                _ => {
                    found.insert(key);
                }
            }
        }
        found
    }

    #[test]
    fn the_document_has_every_key_and_every_flag() {
        assert_eq!(column(1), keys());
        let mut whole = crate::args::Arguments::command();
        whole.build();
        let run = whole.find_subcommand("run").expect("a command");
        let own = run.get_arguments().filter(|argument| !argument.is_global_set() && !argument.is_hide_set());
        let flags = own.filter_map(|argument| argument.get_long());
        let flags: BTreeSet<String> =
            flags.filter(|flag| *flag != "help").map(|flag| format!("--{flag}")).collect();
        let without_key =
            DOCUMENT.lines().find(|line| line.starts_with("Flags without a key: ")).expect("a line");
        let mut named = column(2);
        named.extend(quoted(without_key));
        assert_eq!(named, flags);
    }
}
