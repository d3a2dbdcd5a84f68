//! Policies: made of files and flags, and shown or checked on this host (`kennel policy`). No command of the
//! user runs here.

pub(crate) mod flags;
pub(crate) mod portable;
mod shown;

use std::{
    ffi::{OsStr, OsString},
    mem,
    path::{Path, PathBuf},
    process::ExitCode,
};

use kennel::{Error, Policy, Profile, Sandbox};
use serde_json::json;

use crate::{
    args::policy::{PolicyAction, PolicyFlags, Show},
    config, process, report,
    terminal::progress,
};
use flags::from_flags;
use portable::portable;
use shown::{Holds, Origins, Row};

/// Runs `kennel policy`.
pub(crate) fn policy(action: &PolicyAction) -> Result<ExitCode, Error> {
    match action {
        PolicyAction::Show(show) => report::print(show_text(show)?.as_bytes())?,
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
fn show_text(show: &Show) -> Result<String, Error> {
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
    // No command runs, so leave out the audit log, the timeout and the caller's directories for changes.
    policy.audit = None;
    policy.limits.timeout = None;
    policy.overlay = policy.overlay.filter(|overlay| overlay.upper.is_none());
    policy.image_upper = None;
    process::runtime(process::IDLE_THREAD)?.block_on(async {
        let sandbox = Sandbox::new(&policy)?;
        let tried = progress::awaiting("starting a sandbox", sandbox.try_start()).await;
        sandbox.shutdown().await;
        tried
    })
}
