//! A repository around the work tree, as with `git worktree add` in a bare repository.
//!
//! Commands may change the repository, and nothing else in that directory: a command of an earlier sandbox may have made a
//! repository of the directory around its workspace.

use std::ffi::OsStr;
use std::path::Path;
use std::{fs, io};

use crate::report::failure;
use crate::sys::lexical::is_within;
use crate::view::source::{BindSource, SourceKind};

/// What git has in a repository: gitrepository-layout(5). Names of refs and messages, such as `FETCH_HEAD`, are in capitals.
const OWN: &[&str] = &[
    "annex",
    "branches",
    "commondir",
    "config",
    "config.worktree",
    "description",
    "gc.log",
    "gc.pid",
    "gitdir",
    "hooks",
    "index",
    "info",
    "lfs",
    "logs",
    "modules",
    "objects",
    "packed-refs",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "reftable",
    "remotes",
    "rr-cache",
    "sequencer",
    "shallow",
    "svn",
    "worktrees",
];

/// How many other entries are shown.
const MOST: usize = 64;

/// The other files and directories in the repository around the work tree `top`, such as its other worktrees.
///
/// # Errors
/// It cannot be listed, or there are too many; in words.
pub(crate) fn others(repository: &Path, top: &Path) -> Result<Vec<BindSource>, String> {
    let words = |error: io::Error| failure::words(&error);
    let mut others = Vec::new();
    for entry in fs::read_dir(repository).map_err(words)? {
        let entry = entry.map_err(words)?;
        let kind = entry.file_type().map_err(words)?;
        let is_of_git = is_own(&entry.file_name()) && !is_within(top, &entry.path());
        if is_of_git || !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        if others.len() == MOST {
            return Err(format!("it has more than {MOST} files and directories that are not of git"));
        }
        let source = BindSource::exact(&entry.path()).map_err(words)?;
        if source.kind != SourceKind::Device {
            others.push(source);
        }
    }
    Ok(others)
}

fn is_own(name: &OsStr) -> bool {
    let text = name.to_str().unwrap_or_default();
    let is_capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    OWN.contains(&text)
        || text.ends_with(".lock")
        || text.starts_with("sharedindex.")
        || text.ends_with("HEAD") && text.bytes().all(is_capital)
        || text.bytes().all(is_capital) && text.contains('_')
}
