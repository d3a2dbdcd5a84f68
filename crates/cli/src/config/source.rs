//! Which files a policy starts from, and where the user's are.

use std::{
    env, io,
    path::{Path, PathBuf},
};

use kennel::{Error, report::Remedy};

use crate::args::policy::PolicyFlags;

/// The user's defaults. It is a named policy, too.
pub(super) const DEFAULTS: &str = "config";

/// The files that a policy starts from.
pub(super) enum Source<'f> {
    /// Only this one, which says everything, the workspace too.
    File(&'f Path),
    /// That of the user with this name.
    Named(&'f str),
    /// The user's defaults and that of the workspace.
    Usual,
    Nothing,
}

impl<'f> Source<'f> {
    pub(super) fn of(policy: Option<&'f Path>, flags: &PolicyFlags) -> Self {
        match policy {
            Some(given) => named(given).map_or(Self::File(given), Self::Named),
            None if flags.no_config => Self::Nothing,
            None => Self::Usual,
        }
    }
}

/// The name of a policy, if the value of `--policy` is one and no file.
fn named(given: &Path) -> Option<&str> {
    let name = given.to_str()?;
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
}

/// `$XDG_CONFIG_HOME/kennel` or `~/.config/kennel`. `None` without a home.
pub(super) fn directory() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(base.join("kennel"))
}

/// The file of the user with that name. `None` without a home.
pub(super) fn path_of(name: &str) -> Option<PathBuf> {
    Some(directory()?.join(format!("{name}.toml")))
}

/// The error for a configuration that cannot be used.
pub(super) fn unusable(path: &Path, source: io::Error, remedy: impl Into<Remedy>) -> Error {
    Error::Grant { what: "configuration", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}
