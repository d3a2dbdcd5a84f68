//! The policy that flags make, over the files that it starts from.

use std::path::{Path, PathBuf};

use kennel::{
    Audit, Error, ForeignProxy, ImageUpper, Mount, Network, Overlay, Policy,
    report::{Note, PolicyError},
};

use crate::{
    args::policy::PolicyFlags,
    config::{self, Start},
    process::descriptor::resolve_descriptor,
    report::remedy::FLAGS,
};

/// Makes the policy from files and the flags.
pub(crate) fn from_flags(flags: &PolicyFlags) -> Result<Policy, Error> {
    with_flags(config::start(flags)?, flags)
}

/// Adds the flags to what files say.
pub(crate) fn with_flags(start: Start, flags: &PolicyFlags) -> Result<Policy, Error> {
    let Start { mut policy, below, .. } = start;
    set(&mut policy.profile, flags.profile);
    set(&mut policy.workspace, flags.workspace.clone());
    // A flag replaces the root of a file, of whatever kind.
    if flags.names_root() {
        (policy.root, policy.image) = (flags.root.clone(), flags.image.clone());
    }
    policy.image_upper = flags.image_upper.clone().map(ImageUpper::from).or(policy.image_upper);
    policy.user = flags.user.clone().or(policy.user);
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

    const DOCUMENT: &str = include_str!("../../../../docs/policy.md");

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
                // Their keys are words of their own.
                Value::Object(inner) if key != "require" && key != "warm" => {
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
