//! The work tree of git around a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::caller::Caller;

/// The top of the git work tree around a directory, for a workspace: the command line takes it if the user
/// names none. `None` if there is no such work tree, or if it should not become a workspace unasked: it
/// belongs to another user, or contains the caller's home, or is a directory for settings there, such as
/// `~/.config`.
#[must_use]
pub fn work_tree(directory: &Path) -> Option<PathBuf> {
    around(directory, &Caller::current())
}

pub(crate) fn around(directory: &Path, caller: &Caller) -> Option<PathBuf> {
    let top = directory.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok())?;
    let is_own = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == caller.uid);
    let is_of_settings = |home: &PathBuf| {
        let mut below = top.strip_prefix(home).unwrap_or(Path::new("")).components();
        let name = below.next().map(|name| name.as_os_str().as_encoded_bytes().starts_with(b"."));
        name == Some(true) && below.next().is_none()
    };
    if !is_own(top) || !is_own(&top.join(".git")) || caller.holds_home(top) {
        return None;
    }
    (top == directory || !caller.homes.iter().any(is_of_settings)).then(|| top.to_owned())
}
