//! A policy that means the same in every directory, and holds no secret.

use std::path::{Component, Path, PathBuf};

use kennel::{Error, ImageUpper, Mount, Policy, report::PolicyError};

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
    let image_upper = match &mut policy.image_upper {
        Some(ImageUpper::Directory(path)) => Some(path),
        _ => None,
    };
    let unix = policy.network.proxy.as_mut().map(|proxy| &mut proxy.unix);
    let others = [
        ("cwd", policy.cwd.as_mut()),
        ("overlay.upper", upper),
        ("image_upper", image_upper),
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
