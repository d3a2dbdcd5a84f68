//! The calls by which a program uses a path or connects, for `learn` and `explain`: which argument is the
//! path, and what the call does with it.
//!
//! openat2(2) is not among them: every filter hides it (ENOSYS). Neither are the calls that change an owner:
//! the verdict on them depends on the ids of the caller, which [`judge`](super::table::judge) does not know.

use libc::{
    SYS_access, SYS_chdir, SYS_chmod, SYS_connect, SYS_creat, SYS_execve, SYS_execveat, SYS_faccessat,
    SYS_faccessat2, SYS_fchmodat, SYS_link, SYS_linkat, SYS_lsetxattr, SYS_lstat, SYS_mkdir, SYS_mkdirat,
    SYS_mknod, SYS_mknodat, SYS_newfstatat, SYS_open, SYS_openat, SYS_readlink, SYS_readlinkat, SYS_rename,
    SYS_renameat, SYS_renameat2, SYS_rmdir, SYS_setxattr, SYS_stat, SYS_statx, SYS_symlink, SYS_symlinkat,
    SYS_truncate, SYS_unlink, SYS_unlinkat, SYS_utime, SYS_utimensat, SYS_utimes, c_long,
};

/// A call with a path. A call with two has two entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathCall {
    pub(crate) number: c_long,
    /// The argument with the directory at which a relative path starts. `None`: the current directory.
    pub(crate) directory: Option<usize>,
    /// The argument with the address of the path, or of the socket address.
    pub(crate) path: usize,
    pub(crate) act: Act,
}

/// What a call does with its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Opens it; the argument with the flags.
    Open(usize),
    /// Makes a file, or empties it.
    Create,
    Execute,
    /// Makes it the current directory.
    Enter,
    /// Asks only whether it exists, what it is, or where it leads.
    Look,
    /// Makes what must not be there yet: a directory, a link, a node.
    Make,
    Remove,
    /// Gives it another name.
    Rename,
    /// Gives this name to another file.
    Replace,
    /// Changes its attributes or its size.
    Change,
    /// Connects a socket; the argument with the length of the address.
    Connect(usize),
}

const fn at(number: c_long, act: Act) -> PathCall {
    PathCall { number, directory: Some(0), path: 1, act }
}

const fn plain(number: c_long, act: Act) -> PathCall {
    PathCall { number, directory: None, path: 0, act }
}

const fn second(number: c_long, directory: Option<usize>, path: usize, act: Act) -> PathCall {
    PathCall { number, directory, path, act }
}

/// All of them. Entries of one call are neighbours.
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
    plain(SYS_chdir, Act::Enter),
    plain(SYS_mkdir, Act::Make),
    at(SYS_mkdirat, Act::Make),
    plain(SYS_mknod, Act::Make),
    at(SYS_mknodat, Act::Make),
    second(SYS_symlink, None, 1, Act::Make),
    second(SYS_symlinkat, Some(1), 2, Act::Make),
    plain(SYS_link, Act::Look),
    second(SYS_link, None, 1, Act::Make),
    at(SYS_linkat, Act::Look),
    second(SYS_linkat, Some(2), 3, Act::Make),
    plain(SYS_unlink, Act::Remove),
    at(SYS_unlinkat, Act::Remove),
    plain(SYS_rmdir, Act::Remove),
    plain(SYS_rename, Act::Rename),
    second(SYS_rename, None, 1, Act::Replace),
    at(SYS_renameat, Act::Rename),
    second(SYS_renameat, Some(2), 3, Act::Replace),
    at(SYS_renameat2, Act::Rename),
    second(SYS_renameat2, Some(2), 3, Act::Replace),
    plain(SYS_chmod, Act::Change),
    at(SYS_fchmodat, Act::Change),
    plain(SYS_truncate, Act::Change),
    plain(SYS_utime, Act::Change),
    plain(SYS_utimes, Act::Change),
    at(SYS_utimensat, Act::Change),
    plain(SYS_setxattr, Act::Change),
    plain(SYS_lsetxattr, Act::Change),
    PathCall { number: SYS_connect, directory: None, path: 1, act: Act::Connect(2) },
];
