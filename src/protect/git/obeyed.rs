//! What git outside obeys below a directory: who writes these has git run commands of his choice.
//!
//! Commands wrote there before, and prepare what is looked at here. What cannot be looked at is not absent, and what a
//! command can take away for a while is no sign.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::protect::git::modules::{Failed, PARTS, WalkBudget, obeyed_in};
use crate::protect::git::{MOST_READ, is_repository, read_followed, unless_absent};
use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::view::path_walk::{Bases, MOST_OF_NAME, UnresolvedPath, WalkAim};

/// What git obeys in a repository.
pub(crate) const OBEYED: &[&str] = &["hooks", "config", "commondir", "config.worktree"];

/// Directories in a repository with a file for each remote: where it is, and what is fetched and pushed.
pub(crate) const LISTS: &[&str] = &["remotes", "branches"];

/// What a `.git` begins with that is a file, gitrepository-layout(5). The space is no part of what follows.
const POINTER: &[u8] = b"gitdir: ";

/// What git outside obeys that is started in some directories.
#[derive(Debug, Default)]
pub(crate) struct Obeyed {
    /// Ways to what is obeyed, and to what leads git there. Links may be on them.
    pub(crate) paths: Vec<(UnresolvedPath, WalkAim)>,
    /// Directories, there or not, in which others of git's are put: what is added is obeyed too.
    pub(crate) listed: Vec<PathBuf>,
    /// What was not looked at in full, and is one of `paths` for all that is in it; and why.
    pub(crate) unseen: Vec<(PathBuf, Unseen)>,
    /// Repositories in reach of commands, whose parts were taken.
    repositories: BTreeSet<PathBuf>,
    left: WalkBudget,
}

/// Why something was not looked at in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// A repository has too many submodules or linked worktrees, or they are too deep in it. All of its `modules` and
    /// `worktrees` stays as it is.
    Beyond,
    /// What was in the way.
    Cause(String),
}

impl Obeyed {
    /// Adds what git obeys of `.git` in `base`, wherever that leads; in `base` itself where that looks like a repository, which
    /// anybody who may write there can arrange; and in the repository that `base` lies in. What is in none of the directories
    /// that are `writable` stays as it is.
    ///
    /// # Errors
    /// A shortage, by which it cannot be known. What nobody may look at in a grant is found on the ways; elsewhere it is out of
    /// the reach of commands.
    pub(crate) fn take(&mut self, base: &Path, writable: &Bases) -> io::Result<()> {
        self.take_git(base, writable)?;
        if may_be_repository(base)? {
            self.take_repository(&UnresolvedPath::new(base, ""), writable)?;
        }
        // A grant may be a part of one, such as `.git/modules`, or a directory of its worktree. Which one git takes is up to what
        // commands laid into those on the way.
        for above in base.ancestors().skip(1) {
            if is_repository(above) {
                self.take_repository(&UnresolvedPath::new(above, ""), writable)?;
            }
            if fs::symlink_metadata(above.join(".git")).is_ok() {
                self.take_git(above, writable)?;
            }
        }
        Ok(())
    }

    /// `.git` in a directory, or what it is a pointer to.
    fn take_git(&mut self, directory: &Path, writable: &Bases) -> io::Result<()> {
        let own = UnresolvedPath::new(directory, ".git");
        let text = self.text(&own)?;
        match text.as_deref().and_then(|text| text.strip_prefix(POINTER)).and_then(path_in) {
            Some(to) => {
                self.paths.push((own, WalkAim::Git));
                self.take_repository(&UnresolvedPath::new(directory, to), writable)
            }
            None => self.take_repository(&own, writable),
        }
    }

    /// Where it says that it has another's config, that one too; git goes no further either.
    fn take_repository(&mut self, way: &UnresolvedPath, writable: &Bases) -> io::Result<()> {
        let Some(at) = self.take_one(way, writable)? else { return Ok(()) };
        let text = self.text(&UnresolvedPath::new(&at, "commondir"))?;
        match text.as_deref().and_then(path_in) {
            Some(to) => self.take_one(&UnresolvedPath::new(&at, to), writable).map(drop),
            None => Ok(()),
        }
    }

    /// Says where it lies.
    fn take_one(&mut self, way: &UnresolvedPath, writable: &Bases) -> io::Result<Option<PathBuf>> {
        self.paths.extend(OBEYED.iter().map(|name| (way.join(name), WalkAim::Git)));
        self.paths.extend(LISTS.iter().map(|name| (way.join(name), WalkAim::GitList)));
        let at = unless_closed(fs::canonicalize(way.path()))?;
        if let Some(at) =
            at.as_ref().filter(|at| writable.touch(at) && self.repositories.insert((*at).clone()))
        {
            self.take_parts(at)?;
        }
        Ok(at)
    }

    /// What a file begins with, if there is one that may be looked at.
    fn text(&mut self, way: &UnresolvedPath) -> io::Result<Option<Vec<u8>>> {
        unless_closed(read_followed(&way.path())).map(Option::flatten).or_else(|error| {
            let words = unless_shortage(error)?;
            self.unseen.push((way.path(), Unseen::Cause(words)));
            self.paths.push((way.clone(), WalkAim::Git));
            Ok(None)
        })
    }

    fn take_parts(&mut self, repository: &Path) -> io::Result<()> {
        let looked = PARTS.map(|part| (part, obeyed_in(repository, part, &mut self.left)));
        // Beyond the bound it is not known which of the two grows: both stay as they are.
        let is_beyond = looked.iter().any(|(_, found)| matches!(found, Err(Failed::Beyond)));
        if is_beyond {
            self.unseen.push((repository.to_owned(), Unseen::Beyond));
        }
        for (part, found) in looked {
            match found {
                Ok(found) if !is_beyond => {
                    let ways = found
                        .paths
                        .into_iter()
                        .map(|(path, aim)| (UnresolvedPath::new(repository, path), aim));
                    self.paths.extend(ways);
                    self.listed.extend(found.listed.iter().map(|path| repository.join(path)));
                    continue;
                }
                Err(Failed::Io(error)) => {
                    let words = unless_shortage(error)?;
                    self.unseen.push((repository.join(part), Unseen::Cause(words)));
                }
                Ok(_) | Err(Failed::Beyond) => {}
            }
            self.paths.push((UnresolvedPath::new(repository, part), WalkAim::Git));
        }
        Ok(())
    }
}

/// The path in a file of git's that has nothing else in it: white space is a part of it, other than the line's end. `None` for
/// what leads nowhere, as no file system has such a name.
fn path_in(text: &[u8]) -> Option<&Path> {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let text = text.get(..=end)?.split(|byte| *byte == 0).next()?;
    let path = Path::new(OsStr::from_bytes(text));
    let can_be = !text.is_empty() && path.iter().all(|part| part.len() <= MOST_OF_NAME);
    can_be.then_some(path)
}

/// Whether `path` is a repository, or would be again if somebody put back what he took away: its config stays where it is,
/// because it is protected.
///
/// # Errors
/// A shortage, by which it cannot be known.
fn may_be_repository(path: &Path) -> io::Result<bool> {
    if is_repository(path) {
        return Ok(true);
    }
    match unless_absent(read_followed(&path.join("config"))) {
        // Of one that is longer than what is read it is not known whether git has a section in it.
        Ok(config) => {
            Ok(config.flatten().is_some_and(|config| config.len() > MOST_READ || is_of_git(&config)))
        }
        Err(error) => unless_shortage(error).map(|_| false),
    }
}

/// What `git init` writes into a config, in the section `core`. Other programs have such a section too.
const OF_GIT: [&[u8]; 2] = [b"repositoryformatversion", b"bare"];

/// Whether a config is a repository's: git-config(1), "Syntax".
fn is_of_git(config: &[u8]) -> bool {
    let mut is_core = false;
    config.split(|byte| *byte == b'\n').any(|line| {
        let mut rest = line.trim_ascii_start();
        if let Some(section) = rest.strip_prefix(b"[") {
            let end = section.iter().position(|byte| *byte == b']').unwrap_or(section.len());
            let (name, after) = section.split_at(end);
            is_core = name.trim_ascii().eq_ignore_ascii_case(b"core");
            rest = after.strip_prefix(b"]").unwrap_or_default().trim_ascii_start();
        }
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        is_core && rest.get(..end).is_some_and(|key| OF_GIT.iter().any(|of| key.eq_ignore_ascii_case(of)))
    })
}

/// The words for what stays as it is.
///
/// # Errors
/// There is not enough of something, which may be otherwise in a moment.
fn unless_shortage(error: io::Error) -> io::Result<String> {
    if error.raw_os_error().is_some_and(is_shortage) { Err(error) } else { Ok(failure::words(&error)) }
}

/// `None` where there is nothing of that kind, or it may not be looked at.
fn unless_closed<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        looked => unless_absent(looked),
    }
}
