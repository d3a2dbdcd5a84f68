//! What Kennel as the owner gets of root's environment: variables with known names, and those that root has
//! named.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kennel::internal::is_known_variable;

use super::Request;
use crate::account::Account;

/// Sockets and directories of the caller's login.
const OF_LOGIN: [&str; 4] = ["DBUS_SESSION_BUS_ADDRESS", "MAIL", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"];

/// The environment of the owner's Kennel.
pub(super) fn environment(
    uid: u32,
    account: Option<&Account>,
    request: &Request<'_>,
) -> Vec<(OsString, OsString)> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let is_of_home = |value: &OsStr| home.as_ref().is_some_and(|home| is_below(Path::new(value), home));
    let is_of_login = |name: &OsStr| OF_LOGIN.iter().any(|of_login| name == *of_login);
    let is_named = |name: &OsStr| request.passed.iter().any(|passed| name == OsStr::new(passed));
    let mut kept: Vec<_> = env::vars_os()
        .filter(|(name, value)| request.inherits || is_named(name) || is_known_variable(name, value))
        .filter(|(name, value)| !is_of_home(value) && !is_of_login(name) && name != "PATH")
        .collect();
    let mut put = |name: &str, value: &OsStr| {
        kept.retain(|(known, _)| known != name);
        kept.push((name.into(), value.to_owned()));
    };
    if let Some(path) = env::var_os("PATH") {
        let others = env::split_paths(&path).filter(|entry| !is_of_home(entry.as_os_str()));
        put("PATH", &env::join_paths(others).unwrap_or_default());
    }
    if let Some(Account { name, home, .. }) = account {
        put("USER", name);
        put("LOGNAME", name);
        put("HOME", home.as_deref().unwrap_or(Path::new("/")).as_os_str());
    }
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    if fs::metadata(&runtime).is_ok_and(|it| it.uid() == uid) {
        put("XDG_RUNTIME_DIR", runtime.as_os_str());
    }
    kept
}

/// Whether a path is `home` or below it. Nothing is below `/` in this sense.
fn is_below(path: &Path, home: &Path) -> bool {
    home.parent().is_some() && path.starts_with(home)
}
