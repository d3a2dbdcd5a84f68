//! The calls by which a program uses a path, for `learn`: which argument is the path, and what the call does
//! with it.
//!
//! openat2(2) is not among them: every filter hides it (ENOSYS).

use libc::{
    SYS_access, SYS_chdir, SYS_creat, SYS_execve, SYS_execveat, SYS_faccessat, SYS_faccessat2, SYS_lstat,
    SYS_newfstatat, SYS_open, SYS_openat, SYS_readlink, SYS_readlinkat, SYS_stat, SYS_statx, c_long,
};

/// A call with a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathCall {
    pub(crate) number: c_long,
    /// The argument with the directory at which a relative path starts. `None`: the current directory.
    pub(crate) directory: Option<usize>,
    /// The argument with the address of the path.
    pub(crate) path: usize,
    pub(crate) act: Act,
}

/// What a call does with its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Opens it; the argument with the flags.
    Open(usize),
    /// Makes it, or empties it.
    Create,
    Execute,
    /// Asks only whether it exists, what it is, or where it leads.
    Look,
}

const fn at(number: c_long, act: Act) -> PathCall {
    PathCall { number, directory: Some(0), path: 1, act }
}

const fn plain(number: c_long, act: Act) -> PathCall {
    PathCall { number, directory: None, path: 0, act }
}

/// All of them.
pub(crate) const OBSERVED: &[PathCall] = &[
    at(SYS_openat, Act::Open(2)),
    plain(SYS_open, Act::Open(1)),
    plain(SYS_creat, Act::Create),
    plain(SYS_execve, Act::Execute),
    at(SYS_execveat, Act::Execute),
    at(SYS_newfstatat, Act::Look),
    at(SYS_statx, Act::Look),
    plain(SYS_stat, Act::Look),
    plain(SYS_lstat, Act::Look),
    plain(SYS_access, Act::Look),
    at(SYS_faccessat, Act::Look),
    at(SYS_faccessat2, Act::Look),
    plain(SYS_readlink, Act::Look),
    at(SYS_readlinkat, Act::Look),
    plain(SYS_chdir, Act::Look),
];
