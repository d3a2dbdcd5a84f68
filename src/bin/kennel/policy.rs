//! Flags to policy; `kennel policy show` and `check`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use kennel::{Audit, Error, ForeignProxy, Mount, Network, Overlay, Policy, PolicyError, Sandbox};

use crate::{
    args::{PolicyAction, PolicyFlags},
    descriptor::file_of,
    report, run,
    shown::shown,
};

/// Runs `kennel policy`.
pub(crate) fn policy(action: &PolicyAction) -> Result<ExitCode, Error> {
    match action {
        PolicyAction::Show(flags) => {
            let policy = from_flags(flags)?;
            policy.validate()?;
            // Whoever keeps what is printed may use it elsewhere.
            report::answer(format!("{}\n", report::json(&shown(policy)?)?).as_bytes())?;
        }
        PolicyAction::Check(flags) => {
            let policy = from_flags(flags)?;
            let sandbox = Sandbox::new(&policy)?;
            try_out(policy)?;
            report::answer(report::enforcement_table(sandbox.enforcement()).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a sandbox of it.
///
/// # Errors
/// Those of [`Sandbox::try_start`].
fn try_out(mut policy: Policy) -> Result<(), Error> {
    // What is asked here is no command that somebody has to account for or wait for, and takes nobody's directory.
    policy.audit = None;
    policy.limits.timeout = None;
    policy.overlay = policy.overlay.filter(|overlay| overlay.upper.is_none());
    run::runtime(run::IDLE)?.block_on(async {
        let sandbox = Sandbox::new(&policy)?;
        let tried = sandbox.try_start().await;
        sandbox.shutdown().await;
        tried
    })
}

/// The policy that a file, if any, and the flags make together.
pub(crate) fn from_flags(flags: &PolicyFlags) -> Result<Policy, Error> {
    let mut policy = match &flags.policy {
        Some(file) => Policy::load(file)?,
        None => Policy::default(),
    };
    set(&mut policy.profile, flags.profile);
    set(&mut policy.workspace, flags.workspace.clone());
    set(&mut policy.toolchains, flags.toolchains);
    set(&mut policy.tmp, flags.tmp);
    set(&mut policy.on_unavailable, flags.on_unavailable);
    set(&mut policy.hostname, flags.hostname.clone());
    set(&mut policy.env.base, flags.env);
    policy.cwd = flags.cwd.clone().or(policy.cwd);
    policy.audit = audit(flags, policy.audit.take())?;
    policy.overlay = overlay(flags, policy.overlay.take());
    policy.explain |= flags.explain;
    network(&mut policy.network, flags);
    policy.protect.extend(flags.protect.iter().cloned());
    policy.env.pass.extend(flags.pass_env.iter().cloned());
    policy.env.set.extend(flags.setenv.iter().cloned());
    policy.mounts.extend(mounts(flags)?);
    limits(&mut policy, flags);
    Ok(policy)
}

/// The log that was named, also by a descriptor.
///
/// # Errors
/// A descriptor that no log can be.
pub(crate) fn log(path: &Path) -> Result<PathBuf, Error> {
    file_of(path).map_err(|source| {
        let remedy = "open a file for it, as in 3>>kennel.log, or name the file itself".to_owned();
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
        overlay = Overlay { upper: flags.overlay_upper.clone(), size: None };
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
    network.upstream = flags.upstream.clone().or(network.upstream.take());
    if let Some(unix) = &flags.proxy_socket {
        network.proxy = Some(ForeignProxy { unix: unix.clone() });
    }
    if flags.no_transparent {
        network.transparent = Some(false);
    }
}

fn mounts(flags: &PolicyFlags) -> Result<Vec<Mount>, Error> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let bind = |spec: &String| Mount::parse_bind(spec);
    let ro = |(source, target)| Mount::ReadOnly { source, target };
    let rw = |(source, target)| Mount::ReadWrite { source, target };
    let tmpfs = |(target, size)| Mount::Tmpfs { target, size };
    let ro = flags.ro.iter().map(|spec| checked("--ro", bind(spec).map(ro)));
    let rw = flags.rw.iter().map(|spec| checked("--rw", bind(spec).map(rw)));
    let tmpfs = flags.tmpfs.iter().map(|spec| checked("--tmpfs", Mount::parse_tmpfs(spec).map(tmpfs)));
    let mask = flags.mask.iter().map(|path| checked("--mask", Ok(Mount::Mask { path: absolute(path) })));
    Ok(ro.chain(rw).chain(tmpfs).chain(mask).collect::<Result<_, PolicyError>>()?)
}

/// A mount that is acceptable by itself. What is wrong with it is said of the flag: nobody wrote a list of mounts.
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

    /// The words in backticks in one column of all tables of keys.
    fn column(number: usize) -> BTreeSet<String> {
        let tables = DOCUMENT.split("| key | flag | type | default | meaning |\n").skip(1);
        let rows = tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|')));
        rows.filter_map(|row| row.split('|').nth(number)).flat_map(quoted).collect()
    }

    /// The keys of a policy, those of its tables with the table's name before.
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
                    // It may stand alone.
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
        let flags = run.get_arguments().filter_map(|argument| argument.get_long());
        let flags: BTreeSet<String> =
            flags.filter(|flag| *flag != "help").map(|flag| format!("--{flag}")).collect();
        let without_key =
            DOCUMENT.lines().find(|line| line.starts_with("Flags without a key: ")).expect("a line");
        let mut named = column(2);
        named.extend(quoted(without_key));
        assert_eq!(named, flags);
    }
}
