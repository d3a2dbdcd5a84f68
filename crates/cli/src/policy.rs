//! `kennel policy`: prints a policy, or checks it on this host.

use std::{
    ffi::{OsStr, OsString},
    mem,
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use kennel::{Error, Mount, Policy, Profile, Sandbox, report::PolicyError};
use serde_json::json;

use crate::{
    args::{PolicyAction, Show},
    config,
    flags::{self, PolicyFlags, from_flags},
    process, progress, report,
    shown::{self, Holds, Origins, Row},
};

/// Runs `kennel policy`.
pub(crate) fn policy(action: &PolicyAction) -> Result<ExitCode, Error> {
    match action {
        PolicyAction::Show(show) => report::print(shown(show)?.as_bytes())?,
        PolicyAction::Check(flags) => {
            let policy = from_flags(flags)?;
            let sandbox = Sandbox::new(&policy)?;
            start_once(policy)?;
            report::print(report::enforcement_table(sandbox.enforcement()).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The text that `kennel policy show` prints.
fn shown(show: &Show) -> Result<String, Error> {
    if let [first, second] = &show.diff[..] {
        let rows = |name: &OsString| compared(name, &show.flags);
        let difference = shown::difference(&rows(first)?, &rows(second)?);
        return Ok(if difference.is_empty() {
            "no difference on this host\n".to_owned()
        } else {
            difference
        });
    }
    let mut start = config::start(&show.flags)?;
    let (base, files, is_below) = (start.policy.clone(), mem::take(&mut start.files), start.is_below());
    let profile_from = start.profile_from.take();
    let names: Vec<PathBuf> = files.iter().map(|(file, _)| file.clone()).collect();
    let policy = flags::with_flags(start, &show.flags)?;
    policy.validate()?;
    if show.as_file {
        // The output may become a policy file in another directory.
        return Ok(report::json(&portable(policy)?)? + "\n");
    }
    let in_force = Sandbox::new(&policy)?.in_force();
    let policy = portable(policy)?;
    // In the same form, so that equal values are equal. What has none, as without a current directory, has no
    // origin.
    let form = |policy: Policy| portable(policy.clone()).unwrap_or(policy);
    let files: Vec<_> = files.into_iter().map(|(file, said)| (file, form(said))).collect();
    let origins = Origins::of(&form(Policy::default()), &files, &form(base), &policy);
    if show.json {
        let everything = json!({
            "policy": policy,
            "origins": origins.as_json(),
            "network": policy.effective_network(),
            "in_force": in_force,
            "files": names.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        });
        return Ok(report::json(&everything)? + "\n");
    }
    let (policy, in_force, origins) = (&policy, &in_force, &origins);
    let (files, profile_from) = (Some(&names[..]), profile_from.as_deref());
    Ok(shown::page(&Holds { policy, in_force, origins, files, profile_from, is_below }.rows()))
}

/// What a policy comes to that `--diff` names: a profile or a file.
fn compared(name: &OsStr, flags: &PolicyFlags) -> Result<Vec<Row>, Error> {
    let profile = name.to_str().and_then(|name| name.parse::<Profile>().ok());
    let mut start = config::start_from(Some(Path::new(name)).filter(|_| profile.is_none()), flags)?;
    start.policy.profile = profile.unwrap_or(start.policy.profile);
    let policy = flags::with_flags(start, flags)?;
    policy.validate()?;
    let in_force = Sandbox::new(&policy)?.in_force();
    let (policy, origins) = (portable(policy)?, Origins::default());
    let (policy, in_force, origins) = (&policy, &in_force, &origins);
    Ok(Holds { policy, in_force, origins, files: None, profile_from: None, is_below: false }.rows())
}

/// Starts a sandbox with the policy.
///
/// # Errors
/// Those of [`Sandbox::try_start`].
fn start_once(mut policy: Policy) -> Result<(), Error> {
    // No command runs, so leave out the audit log, the timeout and the caller's overlay directory.
    policy.audit = None;
    policy.limits.timeout = None;
    policy.overlay = policy.overlay.filter(|overlay| overlay.upper.is_none());
    process::runtime(process::IDLE_THREAD)?.block_on(async {
        let sandbox = Sandbox::new(&policy)?;
        let tried = progress::shown("starting a sandbox", sandbox.try_start()).await;
        sandbox.shutdown().await;
        tried
    })
}

/// Makes every path absolute and removes secrets.
///
/// # Errors
/// A path is not UTF-8, which JSON cannot hold, or there is no current directory.
pub(crate) fn portable(policy: Policy) -> Result<Policy, Error> {
    let here = match std::env::current_dir() {
        Ok(here) => here,
        // Without a current directory, a policy without relative paths is still fine.
        Err(_) if policy.clone().based_in(Path::new("/"))? == policy => "/".into(),
        Err(source) => return Err(Error::Io { what: "find the current directory", source }),
    };
    let mut policy = policy.based_in(&here)?;
    policy.network = policy.network.shown();
    absolute("workspace", &mut policy.workspace)?;
    let upper = policy.overlay.as_mut().and_then(|overlay| overlay.upper.as_mut());
    let unix = policy.network.proxy.as_mut().map(|proxy| &mut proxy.unix);
    let others = [
        ("cwd", policy.cwd.as_mut()),
        ("overlay.upper", upper),
        ("audit", policy.audit.as_mut().map(|audit| &mut audit.path)),
        ("network.proxy.unix", unix),
    ];
    others.into_iter().try_for_each(|(key, path)| path.map_or(Ok(()), |path| absolute(key, path)))?;
    policy.protect.iter_mut().try_for_each(|path| absolute("protect", path))?;
    let mut mounts = policy.mounts.iter_mut().enumerate();
    mounts.try_for_each(|(index, mount)| absolute_mount(&format!("mounts[{index}]"), mount))?;
    Ok(policy)
}

fn absolute_mount(key: &str, mount: &mut Mount) -> Result<(), Error> {
    match mount {
        Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
            absolute(key, source)?;
            target.as_mut().map_or(Ok(()), |target| absolute(key, target))
        }
        Mount::Symlink { target, points_to } => {
            absolute(key, target)?;
            // The target of a symlink is text; the kernel resolves it in the sandbox.
            check_utf8(key, points_to)
        }
        Mount::Tmpfs { target, .. } | Mount::File { target, .. } | Mount::Proc { target } => {
            absolute(key, target)
        }
        Mount::Mask { path } | Mount::Device { path } => absolute(key, path),
    }
}

/// Resolves `..` as the kernel does: it follows links up to the last `..`. Leaves a path that does not exist
/// unchanged.
fn absolute(key: &str, path: &mut PathBuf) -> Result<(), Error> {
    let parts: Vec<Component<'_>> = path.components().collect();
    if let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) {
        let (before, behind) = parts.split_at(last + 1);
        if let Ok(before) = before.iter().collect::<PathBuf>().canonicalize() {
            *path = before.components().chain(behind.iter().copied()).collect();
        }
    }
    check_utf8(key, path)
}

fn check_utf8(key: &str, path: &Path) -> Result<(), Error> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let reason = "is not UTF-8, so a policy file cannot contain it: grant another name for it, or use the Rust library";
    let (key, value) = (key.to_owned(), path.display().to_string());
    Err(PolicyError::Value { key, value, reason: reason.to_owned() }.into())
}
