//! What git outside obeys below a directory. Who writes these files makes git run commands.
//!
//! Commands of earlier sandboxes could write there, and can prepare what Kennel looks at here. So what cannot
//! be looked at does not count as missing, and what a command can take away for a while is no sign of
//! anything.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::protect::git::modules::{PARTS, WalkBudget, WalkError, obeyed_in};
use crate::protect::git::{LISTS, MOST_READ, OBEYED, is_repository, none_if_missing, read_followed};
use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::{Bases, NAME_MAX, UnresolvedPath, WalkAim};

/// How a `.git` file begins, gitrepository-layout(5). White space after it is part of the path.
const POINTER: &[u8] = b"gitdir: ";

/// What git obeys that is started in some directories outside.
#[derive(Debug, Default)]
pub(crate) struct Obeyed {
    /// Paths of what git obeys, and of what leads git there. They may go over links.
    pub(crate) paths: Vec<(UnresolvedPath, WalkAim)>,
    /// Directories, existing or not, in which git puts other repositories or worktrees. Git obeys what is
    /// added there too.
    pub(crate) listed: Vec<PathBuf>,
    /// What was not looked at completely, and why. `paths` has it as a whole.
    pub(crate) incomplete: Vec<(PathBuf, Incomplete)>,
    /// Repositories in reach of commands that were searched for submodules and worktrees.
    repositories: BTreeSet<PathBuf>,
    budget: WalkBudget,
    /// Whether repositories are protected as a whole.
    is_whole: bool,
}

/// Why something was not looked at completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incomplete {
    /// A repository has too many submodules or linked worktrees, or they are too deep. All of its `modules`
    /// and `worktrees` is protected instead.
    Beyond,
    /// It could not be read, with the cause.
    Cause(String),
}

impl Obeyed {
    /// Nothing yet. With `is_whole`, each repository that exists counts as a whole.
    pub(crate) fn new(is_whole: bool) -> Self {
        Self { is_whole, ..Self::default() }
    }

    /// Adds what git obeys for a command that is started in `base`: what `.git` in `base` leads to, `base`
    /// itself if it looks like a repository (anybody who can write there can arrange that), and the
    /// repositories around `base`. Only repositories in `writable` directories are searched, because commands
    /// cannot change others.
    ///
    /// # Errors
    /// A shortage of descriptors or memory: the answer is unknown. A path that may not be looked at is no
    /// error here. In a grant, the walk along it reports it; elsewhere, commands cannot reach it.
    pub(crate) fn add(&mut self, base: &Path, writable: &Bases) -> io::Result<()> {
        self.add_git(base, writable)?;
        if may_become_repository(base)? {
            self.add_repository(&UnresolvedPath::new(base, ""), writable)?;
        }
        // A grant may be a part of a repository, such as `.git/modules`, or a directory of a worktree.
        // Commands decide which of the repositories around it git takes, so all count.
        for above in base.ancestors().skip(1) {
            if is_repository(above) {
                self.add_repository(&UnresolvedPath::new(above, ""), writable)?;
            }
            if fs::symlink_metadata(above.join(".git")).is_ok() {
                self.add_git(above, writable)?;
            }
        }
        Ok(())
    }

    /// Takes `.git` in a directory, or what it points to.
    fn add_git(&mut self, directory: &Path, writable: &Bases) -> io::Result<()> {
        let own = UnresolvedPath::new(directory, ".git");
        let text = self.text(&own)?;
        match text.as_deref().and_then(|text| text.strip_prefix(POINTER)).and_then(path_in) {
            Some(to) => {
                self.paths.push((own, WalkAim::Git));
                self.add_repository(&UnresolvedPath::new(directory, to), writable)
            }
            None => self.add_repository(&own, writable),
        }
    }

    /// Takes a repository, and the one that its `commondir` names. Git follows no further `commondir` either.
    fn add_repository(&mut self, way: &UnresolvedPath, writable: &Bases) -> io::Result<()> {
        let Some(at) = self.add_one(way, writable)? else { return Ok(()) };
        let text = self.text(&UnresolvedPath::new(&at, "commondir"))?;
        match text.as_deref().and_then(path_in) {
            Some(to) => self.add_one(&UnresolvedPath::new(&at, to), writable).map(drop),
            None => Ok(()),
        }
    }

    /// Takes one repository, and returns its canonical path.
    fn add_one(&mut self, way: &UnresolvedPath, writable: &Bases) -> io::Result<Option<PathBuf>> {
        if self.is_whole && is_repository(&way.path()) {
            self.paths.push((way.clone(), WalkAim::Git));
        }
        self.paths.extend(OBEYED.iter().map(|name| (way.join(name), WalkAim::Git)));
        self.paths.extend(LISTS.iter().map(|name| (way.join(name), WalkAim::GitList)));
        let at = none_if_closed(BindSource::resolve(&way.path()))?.map(|source| source.path);
        if let Some(at) =
            at.as_ref().filter(|at| writable.overlaps(at) && self.repositories.insert((*at).clone()))
        {
            self.add_parts(at)?;
        }
        Ok(at)
    }

    /// The beginning of a file; `None` if there is none, or it may not be read.
    fn text(&mut self, way: &UnresolvedPath) -> io::Result<Option<Vec<u8>>> {
        none_if_closed(read_followed(&way.path())).map(Option::flatten).or_else(|error| {
            let words = words_unless_shortage(error)?;
            self.incomplete.push((way.path(), Incomplete::Cause(words)));
            self.paths.push((way.clone(), WalkAim::Git));
            Ok(None)
        })
    }

    /// Takes the submodules and linked worktrees of a repository.
    fn add_parts(&mut self, repository: &Path) -> io::Result<()> {
        let results = PARTS.map(|part| (part, obeyed_in(repository, part, &mut self.budget)));
        // Beyond the bound, it is unknown which of the two grows, so both are protected as a whole.
        let is_beyond = results.iter().any(|(_, found)| matches!(found, Err(WalkError::Beyond)));
        if is_beyond {
            self.incomplete.push((repository.to_owned(), Incomplete::Beyond));
        }
        for (part, found) in results {
            match found {
                Ok(found) if !is_beyond => {
                    self.paths.extend(found.work_trees.into_iter().map(|mark| (mark, WalkAim::Git)));
                    let ways = found
                        .paths
                        .into_iter()
                        .map(|(path, aim)| (UnresolvedPath::new(repository, path), aim));
                    self.paths.extend(ways);
                    self.listed.extend(found.listed.iter().map(|path| repository.join(path)));
                    continue;
                }
                Err(WalkError::Io(error)) => {
                    let words = words_unless_shortage(error)?;
                    self.incomplete.push((repository.join(part), Incomplete::Cause(words)));
                }
                Ok(_) | Err(WalkError::Beyond) => {}
            }
            self.paths.push((UnresolvedPath::new(repository, part), WalkAim::Git));
        }
        Ok(())
    }
}

/// The path in a file of git that holds nothing else. Only line ends are cut off: other white space is part
/// of the path. `None` if no file system can have such a name.
fn path_in(text: &[u8]) -> Option<&Path> {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let text = text.get(..=end)?.split(|byte| *byte == 0).next()?;
    let path = Path::new(OsStr::from_bytes(text));
    let can_be = !text.is_empty() && path.iter().all(|part| part.len() <= NAME_MAX);
    can_be.then_some(path)
}

/// Whether `path` is a repository, or could become one again if a command put back what it took away. Its
/// config cannot be taken away, because it is protected.
///
/// # Errors
/// A shortage of descriptors or memory: the answer is unknown.
fn may_become_repository(path: &Path) -> io::Result<bool> {
    if is_repository(path) {
        return Ok(true);
    }
    match none_if_missing(read_followed(&path.join("config"))) {
        // The rest of a config that is too long to read may have a section of git in it.
        Ok(config) => {
            Ok(config.flatten().is_some_and(|config| config.len() > MOST_READ || is_git_config(&config)))
        }
        Err(error) => words_unless_shortage(error).map(|_| false),
    }
}

/// Keys that `git init` writes into the section `core` of a config. Other programs have a section `core` too.
const GIT_KEYS: [&[u8]; 2] = [b"repositoryformatversion", b"bare"];

/// Whether a config is that of a repository: git-config(1), "Syntax".
fn is_git_config(config: &[u8]) -> bool {
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
        is_core && rest.get(..end).is_some_and(|key| GIT_KEYS.iter().any(|of| key.eq_ignore_ascii_case(of)))
    })
}

/// The words for an error of what is protected as a whole then.
///
/// # Errors
/// A shortage, which may be over in a moment.
fn words_unless_shortage(error: io::Error) -> io::Result<String> {
    if error.raw_os_error().is_some_and(is_shortage) { Err(error) } else { Ok(failure::words(&error)) }
}

/// `None` if there is no such file, or it may not be looked at.
fn none_if_closed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        result => none_if_missing(result),
    }
}
