//! `kennel policy`: shows a policy, or checks it on this host.

use std::{
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use kennel::{Error, Mount, Policy, PolicyError, Sandbox};

use crate::{args::PolicyAction, flags::from_flags, process, report};

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
    process::runtime(process::IDLE)?.block_on(async {
        let sandbox = Sandbox::new(&policy)?;
        let tried = sandbox.try_start().await;
        sandbox.shutdown().await;
        tried
    })
}

/// The same policy with full paths and without secrets.
///
/// # Errors
/// A path that JSON cannot hold; no current directory.
fn shown(policy: Policy) -> Result<Policy, Error> {
    let here = match std::env::current_dir() {
        Ok(here) => here,
        // It is nowhere, and nothing is relative to it.
        Err(_) if policy.clone().based_in(Path::new("/"))? == policy => "/".into(),
        Err(source) => return Err(Error::Io { what: "find the current directory", source }),
    };
    let mut policy = policy.based_in(&here)?;
    policy.network = policy.network.shown();
    full("workspace", &mut policy.workspace)?;
    let upper = policy.overlay.as_mut().and_then(|overlay| overlay.upper.as_mut());
    let unix = policy.network.proxy.as_mut().map(|proxy| &mut proxy.unix);
    let others = [
        ("cwd", policy.cwd.as_mut()),
        ("overlay.upper", upper),
        ("audit", policy.audit.as_mut().map(|audit| &mut audit.path)),
        ("network.proxy.unix", unix),
    ];
    others.into_iter().try_for_each(|(key, path)| path.map_or(Ok(()), |path| full(key, path)))?;
    policy.protect.iter_mut().try_for_each(|path| full("protect", path))?;
    let mut mounts = policy.mounts.iter_mut().enumerate();
    mounts.try_for_each(|(index, mount)| full_mount(&format!("mounts[{index}]"), mount))?;
    Ok(policy)
}

fn full_mount(key: &str, mount: &mut Mount) -> Result<(), Error> {
    match mount {
        Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
            full(key, source)?;
            target.as_mut().map_or(Ok(()), |target| full(key, target))
        }
        Mount::Symlink { target, points_to } => {
            full(key, target)?;
            // What a link says is not looked up here.
            is_text(key, points_to)
        }
        Mount::Tmpfs { target, .. } | Mount::File { target, .. } | Mount::Proc { target } => {
            full(key, target)
        }
        Mount::Mask { path } | Mount::Device { path } => full(key, path),
    }
}

/// Takes `..` out as the kernel would: up to the last one links are followed. What is not there stays as it is.
fn full(key: &str, path: &mut PathBuf) -> Result<(), Error> {
    let parts: Vec<Component<'_>> = path.components().collect();
    if let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) {
        let (before, behind) = parts.split_at(last + 1);
        if let Ok(before) = before.iter().collect::<PathBuf>().canonicalize() {
            *path = before.components().chain(behind.iter().copied()).collect();
        }
    }
    is_text(key, path)
}

fn is_text(key: &str, path: &Path) -> Result<(), Error> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let reason = "is not UTF-8, so that no policy file can say it: grant it by another name, or from Rust";
    let (key, value) = (key.to_owned(), path.display().to_string());
    Err(PolicyError::Value { key, value, reason: reason.to_owned() }.into())
}
