//! Files of a repository by which git outside goes elsewhere without a look: the names in an index, the ref that another one
//! stands for, and where resolutions of conflicts are written. A command that writes one of them decides which file outside of
//! its grants git reads, writes or removes with its user's rights.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::Mode,
};

use super::{
    index::{Fault, SHA1, SHA256, fault},
    links::is_branch,
    look::Found,
};
use crate::{below, harmless::harmless};

/// Larger than any that anybody has: it is read as a whole.
const LARGEST: u64 = 1 << 28;

/// As much as is read of a config elsewhere.
const LONGEST_CONFIG: u64 = 1 << 20;

/// More than the longest name of a ref.
const LONGEST: u64 = 1 << 13;

/// Besides what ends in HEAD, refs in a repository itself.
const REFS: &[&str] =
    &["AUTO_MERGE", "BISECT_EXPECTED_REV", "MERGE_AUTOSTASH", "NOTES_MERGE_PARTIAL", "NOTES_MERGE_REF"];

/// Whether files may be such in a directory at `way` of a repository: where there is a `HEAD`, as in the top of one and in
/// what a linked worktree has for itself, and among refs.
pub(super) fn decide(directory: &OwnedFd, way: &Path) -> nix::Result<bool> {
    Ok(is_of_refs(way) || below::stat(directory, OsStr::new("HEAD"))?.is_some())
}

fn is_of_refs(way: &Path) -> bool {
    way.iter().any(|part| part == "refs")
}

/// Where a file leads git to, if it does: the end of a sentence.
///
/// # Errors
/// It cannot be read.
pub(super) fn lead(file: &Found<'_>) -> io::Result<Option<String>> {
    let name = file.name.as_bytes();
    if name == b"MERGE_RR" {
        // Git follows links to what it names, so there is no name that it may have.
        return Ok(Some(
            "git would have written resolutions of conflicts where it said (git-rerere(1))".to_owned(),
        ));
    }
    if name == b"index" || name.starts_with(b"sharedindex.") {
        return of_index(file);
    }
    let is_ref =
        is_of_refs(file.around()) || name.ends_with(b"HEAD") || REFS.iter().any(|of| *of == file.name);
    if !is_ref {
        return Ok(None);
    }
    let text = read(file.directory, file.name, LONGEST)?.unwrap_or_default();
    let to = text.strip_prefix(b"ref:").map(<[u8]>::trim_ascii);
    Ok(to.filter(|to| !is_branch(OsStr::from_bytes(to))).map(|to| format!("it led to {}", words(to))))
}

fn of_index(file: &Found<'_>) -> io::Result<Option<String>> {
    let Some(index) = read(file.directory, file.name, LARGEST)? else { return Ok(None) };
    let config = |of| read(of, OsStr::new("config"), LONGEST_CONFIG);
    // A linked worktree has its repository's.
    let config = match config(file.directory)? {
        Some(config) => config,
        None => config(file.repository)?.unwrap_or_default(),
    };
    let object = if has_long_names(&config) { SHA256 } else { SHA1 };
    Ok(fault(&index, object).map(|fault| match fault {
        Fault::Leads(name) => format!("it named {}; `git reset` makes another", words(&name)),
        Fault::Broken => "it was not as git writes one; `git reset` makes another".to_owned(),
    }))
}

/// Whether objects are named by SHA-256: git-config(1), `extensions.objectFormat`.
fn has_long_names(config: &[u8]) -> bool {
    let has = |line: &[u8], word: &[u8]| line.windows(word.len()).any(|at| at.eq_ignore_ascii_case(word));
    config.split(|byte| *byte == b'\n').any(|line| has(line, b"objectformat") && has(line, b"sha256"))
}

fn words(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes)).to_string()
}

/// What a regular file begins with, as much as is wanted. `None` where there is none, or none that its owner could read.
fn read(directory: &OwnedFd, name: &OsStr, most: u64) -> io::Result<Option<Vec<u8>>> {
    let how = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match openat(directory.as_fd(), name, how, Mode::empty()) {
        Err(Errno::ENOENT | Errno::EACCES | Errno::ELOOP | Errno::ENXIO) => return Ok(None),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
