//! Who asks: identity, home, environment and directory of the embedding program, read once and only read.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::{env, fs};

use nix::sys::resource::{Resource, getrlimit};

/// The caller of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) user: String,
    /// Absolute; where HOME is unset or relative, that of the password database, else `/`.
    pub(crate) home: PathBuf,
    /// Every directory that may hold the caller's secrets: HOME and that of the password database, each also by
    /// its canonical path.
    pub(crate) homes: Vec<PathBuf>,
    /// Empty where it was removed: what is relative to it is not there then.
    pub(crate) directory: PathBuf,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// How many descriptors this process may have open, and how many it may allow itself.
    pub(crate) descriptors: [u64; 2],
    /// What commands would inherit and are to be without.
    pub(crate) ahead: SchedulingPrivileges,
}

/// What a process is ahead of others by. Limits on processors hold no real-time process, and one on memory finds nobody
/// to end where `oom_score_adj` is -1000.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchedulingPrivileges {
    /// Policy, nice value, I/O.
    pub(crate) scheduling: [bool; 3],
    /// `oom_score_adj` below 0.
    pub(crate) oom: bool,
    /// Whether it may take a real-time policy or a nice value below 0, as audio groups may: RLIMIT_RTPRIO, RLIMIT_NICE.
    pub(crate) may_be: bool,
}

impl SchedulingPrivileges {
    fn current() -> Self {
        let adjusted = fs::read("/proc/self/oom_score_adj").unwrap_or_default();
        let has = |resource| getrlimit(resource).is_ok_and(|(_, hard)| hard > 0);
        Self {
            scheduling: crate::sys::privileges_of_scheduling(),
            oom: adjusted.starts_with(b"-"),
            may_be: has(Resource::RLIMIT_RTPRIO) || has(Resource::RLIMIT_NICE),
        }
    }
}

/// Where the sessions of a user are found when nobody names a directory: `$XDG_RUNTIME_DIR/kennel`, else `/tmp/kennel-UID`.
pub(crate) fn runtime_directory(runtime: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime.map(Path::new).filter(|path| path.is_absolute()) {
        Some(path) => path.join("kennel"),
        None => format!("/tmp/kennel-{uid}").into(),
    }
}

impl Caller {
    /// The caller as this process is now.
    pub(crate) fn current() -> Self {
        let uid = nix::unistd::geteuid().as_raw();
        let environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
        let account = Account::of(uid);
        let home = named_home(environment.get(OsStr::new("HOME")).cloned());
        let database = account.as_ref().map(|account| account.home.clone());
        Self {
            uid,
            homes: with_canonical(home.iter().chain(&database)),
            gid: nix::unistd::getegid().as_raw(),
            user: account.as_ref().map_or_else(|| "user".to_owned(), |account| account.name.clone()),
            home: home.or(account.map(|account| account.home)).unwrap_or_else(|| "/".into()),
            directory: env::current_dir().unwrap_or_default(),
            environment,
            descriptors: getrlimit(Resource::RLIMIT_NOFILE).map_or([1024; 2], <[u64; 2]>::from),
            ahead: SchedulingPrivileges::current(),
        }
    }

    /// The home of [`current`](Self::current), without a copy of the environment, which may hold secrets.
    pub(crate) fn current_home() -> PathBuf {
        let account = || Account::of(nix::unistd::geteuid().as_raw()).map(|account| account.home);
        named_home(env::var_os("HOME")).or_else(account).unwrap_or_else(|| "/".into())
    }

    /// A variable of the caller's environment.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Directories of the caller's PATH, absolute ones only.
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

    /// Whether `path` is a home of the caller's, or above one.
    pub(crate) fn holds_home(&self, path: &Path) -> bool {
        self.homes.iter().any(|home| home.starts_with(path))
    }

    /// Whether the caller is root of the host, or of the container it lives in.
    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// HOME, where it can be one.
fn named_home(home: Option<OsString>) -> Option<PathBuf> {
    home.map(PathBuf::from).filter(|home| home.is_absolute()).and_then(|home| spelled_plainly(&home))
}

/// An absolute path without `//`, `.` and a slash at the end; and without `..`, which is followed while it can be.
fn spelled_plainly(path: &Path) -> Option<PathBuf> {
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    if goes_up { fs::canonicalize(path).ok() } else { Some(path.components().collect()) }
}

/// Each path, and where it leads if that is elsewhere. `/` is nobody's home.
fn with_canonical<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Vec<PathBuf> {
    let both = paths.flat_map(|path| [Some(path.clone()), fs::canonicalize(path).ok()]).flatten();
    let mut homes: Vec<PathBuf> = both.filter(|path| path != Path::new("/")).collect();
    homes.sort();
    homes.dedup();
    homes
}

/// A line of the password database.
struct Account {
    name: String,
    home: PathBuf,
}

impl Account {
    /// Looked up in /etc/passwd only: getpwuid(3) would load plugins into the embedding program.
    fn of(uid: u32) -> Option<Self> {
        Self::find(&fs::read("/etc/passwd").ok()?, uid)
    }

    /// In bytes: names of people are in any encoding.
    fn find(passwd: &[u8], uid: u32) -> Option<Self> {
        passwd.split(|byte| *byte == b'\n').find_map(|line| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
            let &[name, _, id, _, _, home, ..] = fields.as_slice() else { return None };
            let is_own = str::from_utf8(id).is_ok_and(|id| id.parse() == Ok(uid));
            let usable = is_own && home.starts_with(b"/");
            let home = usable.then(|| spelled_plainly(Path::new(OsStr::from_bytes(home))))??;
            Some(Self { name: String::from_utf8_lossy(name).into_owned(), home })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of people are in many encodings, and the file is one for all.
    #[test]
    fn an_account_is_found_whatever_bytes_others_have() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\njoerg:x:7:7:J\xf6rg:/home/joerg:/bin/sh\n\
            short:x:8\n+nis\n\nlinks:x:9:9::/home/l\xfcnk/:/bin/sh\nm\xfcll:x:10:10::/home/m:\n";
        let account = |uid| Account::find(passwd, uid).expect("an account");
        assert_eq!((account(0).name.as_str(), account(0).home), ("root", "/root".into()));
        assert_eq!((account(7).name.as_str(), account(7).home), ("joerg", "/home/joerg".into()));
        assert_eq!(account(9).home.as_os_str().as_bytes(), b"/home/l\xfcnk");
        assert_eq!((account(10).name.as_str(), account(10).home), ("m\u{fffd}ll", "/home/m".into()));
        assert!(Account::find(passwd, 8).is_none() && Account::find(passwd, 11).is_none());
    }
}
