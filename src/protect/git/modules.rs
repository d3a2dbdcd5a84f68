//! Finds the submodules and linked worktrees of a repository, which git keeps in `modules` and `worktrees`,
//! in one walk.
//!
//! Commands can make any number of repositories there, at any depth, so the walk has a bound. Beyond the
//! bound, both directories are protected as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::FileType;
use std::path::{Path, PathBuf};
use std::{fs, io, mem};

use nix::unistd::{AccessFlags, access};

use crate::protect::git::repository::{linked_work_tree, named_work_tree};
use crate::protect::git::{LISTS, OBEYED, is_repository, none_if_missing, read_small};
use crate::report::failure;
use crate::report::failure::shown;
use crate::view::paths::walk::{UnresolvedPath, WalkAim};

/// Submodules and linked worktrees that are looked at, in all repositories together.
pub(crate) const MOST: usize = 2000;

/// Entries that are listed on the way to them. A submodule has about fifteen.
pub(crate) const MOST_ENTRIES: usize = 40_000;

/// How deep a directory may be below a repository, in parts of its path and in bytes.
pub(crate) const DEEPEST: usize = 32;
pub(crate) const LONGEST: usize = 1024;

/// The parts of a repository that contain other directories of git.
pub(crate) const PARTS: [&str; 2] = [MODULES, WORKTREES];
const MODULES: &str = "modules";
const WORKTREES: &str = "worktrees";

/// Directories that belong to the repository itself. Git puts no submodule there. But an old git may have
/// done so, and a command can make such a repository around a submodule.
const OWN_DIRECTORIES: &[&str] = &["hooks", "info", "lfs", "logs", "objects", "refs"];

/// What git obeys in the directory of a linked worktree.
const OBEYED_OF_WORKTREE: &[&str] = &["commondir", "config.worktree"];

/// Files that make a directory a repository. They must not appear in a directory around submodules, because
/// git would take it for the repository. A submodule can have such a name itself.
const REPOSITORY_FILES: &[&str] = &["HEAD", "config"];

/// Directories that make a directory with a `HEAD` a repository.
const REPOSITORY_DIRECTORIES: &[&str] = &["objects", "refs"];

/// What may still be looked at, in all repositories of one start.
#[derive(Debug)]
pub(crate) struct WalkBudget {
    pub(crate) repositories: usize,
    pub(crate) entries: usize,
}

impl Default for WalkBudget {
    fn default() -> Self {
        Self { repositories: MOST, entries: MOST_ENTRIES }
    }
}

/// Why a part could not be looked at completely.
pub(crate) enum WalkError {
    /// It has too many repositories or entries, or is too deep.
    Beyond,
    /// Something in it cannot be looked at.
    Io(io::Error),
}

impl From<io::Error> for WalkError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What was found in a part of a repository. Paths are relative to the repository.
#[derive(Debug, Default)]
pub(crate) struct ObeyedPaths {
    /// What git obeys.
    pub(crate) paths: BTreeMap<PathBuf, WalkAim>,
    /// Directories, existing or not, in which git puts other repositories or worktrees.
    pub(crate) listed: BTreeSet<PathBuf>,
    /// The files `.git` of the work trees of submodules and linked worktrees: they name the repository that
    /// git obeys there.
    pub(crate) work_trees: Vec<UnresolvedPath>,
}

/// A walk through a part of a repository.
struct ModuleWalk<'r> {
    repository: &'r Path,
    found: ObeyedPaths,
    repositories: BTreeSet<PathBuf>,
    /// Directories that were listed.
    looked_at: BTreeSet<PathBuf>,
    /// Directories that contain repositories and are none themselves.
    around: Vec<PathBuf>,
    budget: &'r mut WalkBudget,
}

/// What git obeys in a part of a repository, one of [`PARTS`]. Submodules can have worktrees and submodules,
/// and worktrees can have submodules.
///
/// # Errors
/// Something cannot be looked at, or it is beyond the bound.
pub(crate) fn obeyed_in(
    repository: &Path,
    part: &str,
    budget: &mut WalkBudget,
) -> Result<ObeyedPaths, WalkError> {
    let mut walk = ModuleWalk {
        repository,
        found: ObeyedPaths::default(),
        repositories: BTreeSet::new(),
        looked_at: BTreeSet::new(),
        around: Vec::new(),
        budget,
    };
    match part {
        MODULES => walk.submodules(Path::new(part))?,
        _ => walk.worktrees(Path::new(part))?,
    }
    walk.add_signs()?;
    Ok(walk.found)
}

impl ModuleWalk<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        self.repository.join(path)
    }

    /// Takes these names in `directory`.
    fn add(&mut self, directory: &Path, names: &[&str], aim: WalkAim) {
        for name in names {
            self.found.paths.entry(directory.join(name)).or_insert(aim);
        }
    }

    /// Counts a submodule or a linked worktree.
    fn count(&mut self) -> Result<(), WalkError> {
        self.budget.repositories = self.budget.repositories.checked_sub(1).ok_or(WalkError::Beyond)?;
        Ok(())
    }

    /// The entries of a directory. Each level is closed before the next is opened.
    fn list(&mut self, directory: &Path) -> Result<Vec<(PathBuf, FileType)>, WalkError> {
        if directory.iter().count() > DEEPEST || directory.as_os_str().len() > LONGEST {
            return Err(WalkError::Beyond);
        }
        let listing = none_if_missing(fs::read_dir(self.at(directory)));
        let mut entries = Vec::new();
        for entry in listing.map_err(|error| closed(directory, error))?.into_iter().flatten() {
            let entry = entry?;
            self.budget.entries = self.budget.entries.checked_sub(1).ok_or(WalkError::Beyond)?;
            entries.push((directory.join(entry.file_name()), entry.file_type()?));
        }
        self.found.listed.insert(directory.to_owned());
        Ok(entries)
    }

    fn worktrees(&mut self, directory: &Path) -> Result<(), WalkError> {
        for (path, _) in self.list(directory)? {
            self.count()?;
            self.add(&path, OBEYED_OF_WORKTREE, WalkAim::Git);
            self.found.work_trees.extend(mark_in(linked_work_tree(&self.at(&path))));
            self.submodules(&path.join(MODULES))?;
        }
        Ok(())
    }

    /// Takes the submodules in a directory `modules`, which need not exist.
    fn submodules(&mut self, modules: &Path) -> Result<(), WalkError> {
        let there = none_if_missing(fs::symlink_metadata(self.at(modules)));
        match there.map_err(|error| closed(modules, error))? {
            Some(there) if there.is_symlink() => Err(is_link(modules)),
            _ => self.submodules_in(modules, false).map(drop),
        }
    }

    /// Takes the submodules below a directory, because their names may have slashes. Returns whether there
    /// are any. A directory that looks like a repository may contain submodules too: a command or an old git
    /// can have arranged that.
    fn submodules_in(&mut self, directory: &Path, is_repository: bool) -> Result<bool, WalkError> {
        let mut has_some = false;
        if !self.looked_at.insert(directory.to_owned()) {
            return Ok(has_some);
        }
        for (path, kind) in self.list(directory)? {
            let is_any_of = |names: &[&str]| is_repository && names.iter().any(|name| path.ends_with(name));
            if is_any_of(&PARTS) {
                continue;
            }
            // Git would follow the link. This walk does not.
            if kind.is_symlink() && !is_repository {
                return Err(is_link(&path));
            }
            if kind.is_dir() && (!is_any_of(OWN_DIRECTORIES) || self.is_submodule(&path)?) {
                has_some |= self.submodule(&path)?;
            }
        }
        Ok(has_some)
    }

    /// Takes what git obeys in the repository of a submodule, if it is one, and in those below it. Returns
    /// whether there are any. Others can be inside it only while git does not take it for a repository.
    fn submodule(&mut self, path: &Path) -> Result<bool, WalkError> {
        let is_one = self.is_submodule(path)?;
        let is_new = is_one && self.repositories.insert(path.to_owned());
        if is_new {
            self.count()?;
            self.add(path, OBEYED, WalkAim::Git);
            self.add(path, LISTS, WalkAim::GitList);
            let at = self.at(path);
            self.found.work_trees.extend(mark_in(named_work_tree(&at, &at)));
        }
        let is_repository = is_surely_repository(&self.at(path))?;
        let is_around = self.submodules_in(path, is_repository)?;
        if is_around && !is_repository {
            self.around.push(path.to_owned());
        }
        if is_new {
            self.worktrees(&path.join(WORKTREES))?;
            self.submodules(&path.join(MODULES))?;
        }
        Ok(is_one || is_around)
    }

    /// Whether it is a repository, or could become one again if a command put back what it took away. Its
    /// config cannot be taken away, because it is protected.
    fn is_submodule(&self, path: &Path) -> Result<bool, WalkError> {
        let at = self.at(path);
        Ok(is_repository(&at) || is_file(&at.join("config")).map_err(|error| closed(path, error))?)
    }

    /// Takes what would make a repository of a directory around others. A submodule may have such a name, or
    /// be below a directory that has.
    fn add_signs(&mut self) -> Result<(), WalkError> {
        let ways: BTreeSet<&Path> = self.repositories.iter().flat_map(|path| path.ancestors()).collect();
        let mut signs = Vec::new();
        for around in mem::take(&mut self.around) {
            let mut sign = |name: &&str, aim| {
                let path = around.join(name);
                if !ways.contains(&*path) {
                    signs.push((path, aim));
                }
            };
            REPOSITORY_FILES.iter().for_each(|name| sign(name, WalkAim::GitRepositoryFile));
            if is_file(&self.at(&around).join("HEAD"))? {
                REPOSITORY_DIRECTORIES.iter().for_each(|name| sign(name, WalkAim::Git));
            }
        }
        for (path, aim) in signs {
            self.found.paths.entry(path).or_insert(aim);
        }
        Ok(())
    }
}

/// The file `.git` of a work tree, if it is there.
fn mark_in(top: Option<PathBuf>) -> Option<UnresolvedPath> {
    let top = top?;
    let is_there = fs::symlink_metadata(top.join(".git")).is_ok_and(|it| it.is_file());
    is_there.then(|| UnresolvedPath::new(&top, ".git"))
}

/// Adds the path to an error of permissions.
fn closed(path: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            io::Error::other(format!("{}: {}", shown(path), failure::words(&error)))
        }
        _ => error,
    }
}

/// The error for a link. Git would follow it. This walk does not.
fn is_link(path: &Path) -> WalkError {
    io::Error::other(format!("{} is a link", shown(path))).into()
}

/// Whether something exists there that is no directory.
fn is_file(path: &Path) -> io::Result<bool> {
    Ok(none_if_missing(fs::symlink_metadata(path))?.is_some_and(|metadata| !metadata.is_dir()))
}

/// Whether every version of git takes it for a repository, and so puts no submodule into it.
fn is_surely_repository(path: &Path) -> io::Result<bool> {
    let has = |name: &str| {
        let at = path.join(name);
        fs::symlink_metadata(&at).is_ok_and(|it| it.is_dir()) && access(&at, AccessFlags::X_OK).is_ok()
    };
    let is_own = none_if_missing(fs::symlink_metadata(path.join("commondir")))?.is_none();
    Ok(is_own && has("objects") && has("refs") && has_head(path)?)
}

/// Whether `HEAD` looks as git writes it: the name of a branch, or of an object.
fn has_head(repository: &Path) -> io::Result<bool> {
    let text = read_small(&repository.join("HEAD"))?.unwrap_or_default();
    let has_object = text.get(..40).is_some_and(|name| name.iter().all(u8::is_ascii_hexdigit));
    Ok(has_object || text.starts_with(b"ref: refs/"))
}
