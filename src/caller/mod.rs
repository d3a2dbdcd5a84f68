//! The caller: identity, home, environment and directory of the embedding program, read once. Changes
//! nothing.

pub mod account;
pub(crate) mod runtime;
pub(crate) mod toolchains;
pub mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::{env, fs};

use nix::sys::resource::{Resource, getrlimit};

use crate::caller::account::Account;

/// The caller of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) user: String,
    /// Absolute. If HOME is unset or relative, the home in the password database, else `/`.
    pub(crate) home: PathBuf,
    /// Every directory that may hold the caller's secrets: HOME and the home in the password database, each
    /// also as its canonical path.
    pub(crate) homes: Vec<PathBuf>,
    /// The working directory. Empty if it was removed; then no relative path exists.
    pub(crate) directory: PathBuf,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// Soft and hard limit of open descriptors.
    pub(crate) descriptors: [u64; 2],
}

/// The default directory for the sockets of a user's sessions: `$XDG_RUNTIME_DIR/kennel`, else
/// `/tmp/kennel-UID`.
pub(crate) fn runtime_directory(runtime: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime.map(Path::new).filter(|path| path.is_absolute()) {
        Some(path) => path.join("kennel"),
        None => format!("/tmp/kennel-{uid}").into(),
    }
}

impl Caller {
    /// Reads the state of this process.
    pub(crate) fn current() -> Self {
        let uid = nix::unistd::geteuid().as_raw();
        let environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
        let account = Account::of(uid);
        let named = named_home(environment.get(OsStr::new("HOME")).cloned());
        let database = account.as_ref().and_then(home_of);
        let user = account.map(|account| account.name.to_string_lossy().into_owned());
        Self {
            uid,
            homes: with_canonical(named.iter().chain(&database)),
            gid: nix::unistd::getegid().as_raw(),
            user: user.unwrap_or_else(|| "user".to_owned()),
            home: named.or(database).unwrap_or_else(|| "/".into()),
            directory: env::current_dir().unwrap_or_default(),
            environment,
            descriptors: getrlimit(Resource::RLIMIT_NOFILE).map_or([1024; 2], <[u64; 2]>::from),
        }
    }

    /// Like the home of [`current`](Self::current), but without a copy of the environment, which may hold
    /// secrets.
    pub(crate) fn current_home() -> PathBuf {
        let database = || home_of(&Account::of(nix::unistd::geteuid().as_raw())?);
        named_home(env::var_os("HOME")).or_else(database).unwrap_or_else(|| "/".into())
    }

    /// A variable of the caller's environment.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The path in a variable of the caller's environment, if it is absolute.
    pub(crate) fn path_in(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The absolute directories of the caller's PATH.
    pub(crate) fn search_path(&self) -> Vec<PathBuf> {
        let path = self.variable("PATH").unwrap_or_default();
        env::split_paths(path)
            .filter(|entry| entry.is_absolute())
            .map(|entry| entry.components().collect())
            .collect()
    }

    /// `path` made absolute against the caller's directory, not resolved.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    /// Whether `path` is one of the caller's homes, or above one.
    pub(crate) fn holds_home(&self, path: &Path) -> bool {
        self.homes.iter().any(|home| home.starts_with(path))
    }

    /// Whether the caller is root, on the host or in its container.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// The value of HOME, if it is usable as one.
fn named_home(home: Option<OsString>) -> Option<PathBuf> {
    home.map(PathBuf::from).filter(|home| home.is_absolute()).and_then(|home| spelled_plainly(&home))
}

/// The home of an account.
fn home_of(account: &Account) -> Option<PathBuf> {
    spelled_plainly(account.home.as_deref()?)
}

/// An absolute path without `//`, `.` and a slash at the end. A path with `..` is resolved; `None` if that
/// fails.
fn spelled_plainly(path: &Path) -> Option<PathBuf> {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    if goes_up { fs::canonicalize(path).ok() } else { Some(path.components().collect()) }
}

/// Each path and its canonical path, without duplicates. `/` is no home.
fn with_canonical<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Vec<PathBuf> {
    let mut homes: BTreeSet<PathBuf> = paths.cloned().collect();
    let canonical: Vec<PathBuf> = homes.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    homes.extend(canonical);
    homes.into_iter().filter(|path| path != Path::new("/")).collect()
}
