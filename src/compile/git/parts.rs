//! What lies in those parts of a repository in which git keeps others: linked worktrees and submodules.

mod directory;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, mem,
    path::{Path, PathBuf},
    rc::Rc,
};

use nix::unistd::{AccessFlags, access};

use self::directory::Directory;
pub(super) use self::directory::{Holds, PARTS};
use super::{
    super::walk::Aim,
    budget::{Budget, cause},
    config_of, is_repository,
    names::names,
    obeyed::{LISTS, OBEYED},
    read_small, unless_absent,
};
use crate::failure::{self, shown};

/// What git obeys in a linked worktree's directory.
const OBEYED_OF_WORKTREE: &[&str] = &["commondir", "config.worktree"];

/// Files that make a repository of a directory: git makes none of one that submodules with longer names lie in. A submodule may
/// have such a name too.
const SIGNS: &[&str] = &["HEAD", "config"];

/// The directories that do so where there is a `HEAD`.
const SIGNS_BESIDE_HEAD: &[&str] = &["objects", "refs"];

/// Entries of a part that are looked at, those of repositories in it aside; and repositories, and names of some.
pub(super) const MOST_ENTRIES: usize = 2000;

/// What was found in a part of a repository. Paths are relative to that.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What git obeys.
    pub(super) paths: BTreeMap<PathBuf, Aim>,
    /// Directories, there or not, in which others of git's are put.
    pub(super) listed: BTreeSet<PathBuf>,
}

/// A look at a part of a repository.
struct Look<'r> {
    repository: &'r Path,
    found: Found,
    repositories: BTreeSet<PathBuf>,
    /// Directories around repositories.
    around: BTreeSet<PathBuf>,
    directories: Vec<Directory>,
    /// The names in the configs that were read, by the directory of each.
    configs: BTreeMap<PathBuf, Rc<[PathBuf]>>,
    /// How many names in configs are looked at yet.
    names: usize,
    /// How many entries of what is no repository.
    entries: usize,
    budget: &'r mut Budget,
}

/// What git obeys in the part `name` of a repository. Submodules have worktrees and submodules too, and worktrees have
/// submodules of their own.
///
/// # Errors
/// Something cannot be looked at, or there is too much: the error says what.
pub(super) fn obeyed_in(
    repository: &Path,
    name: &str,
    holds: Holds,
    budget: &mut Budget,
) -> io::Result<Found> {
    let mut look = Look {
        repository,
        found: Found::default(),
        repositories: BTreeSet::new(),
        around: BTreeSet::new(),
        directories: Vec::new(),
        configs: BTreeMap::new(),
        names: MOST_ENTRIES,
        entries: MOST_ENTRIES,
        budget,
    };
    match holds {
        Holds::Submodules => look.submodules_of(Path::new(""), name.into())?,
        Holds::Worktrees => look.directories.push(Directory::new(name.into(), holds)),
    }
    let mut looked_at = BTreeSet::new();
    while let Some(directory) = look.directories.pop() {
        // What has a name in the config may be found a second time.
        if looked_at.insert((directory.path.clone(), directory.holds)) {
            look.directory(&directory)?;
            look.found.listed.insert(directory.path);
        }
    }
    look.take_signs()?;
    Ok(look.found)
}

impl Look<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        self.repository.join(path)
    }

    /// Counts a look at `path`, and says where that is.
    fn look(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.budget.look(self.repository, path)?;
        Ok(self.at(path))
    }

    /// Takes these in `directory`.
    fn take(&mut self, directory: &Path, names: &[&str], aim: Aim) -> io::Result<()> {
        for name in names {
            let path = directory.join(name);
            self.look(&path)?;
            self.found.paths.entry(path).or_insert(aim);
        }
        Ok(())
    }

    fn directory(&mut self, directory: &Directory) -> io::Result<()> {
        let at = self.look(&directory.path)?;
        let listing = unless_absent(fs::read_dir(at)).map_err(|error| closed(&directory.path, error))?;
        for entry in listing.into_iter().flatten() {
            let entry = entry?;
            match directory.is_repository {
                true => self.budget.entry_of_repository()?,
                false => self.entries = self.entries.checked_sub(1).ok_or_else(too_many)?,
            }
            if directory.passes_over(&entry.file_name()) {
                continue;
            }
            let (path, kind) = (directory.path.join(entry.file_name()), entry.file_type()?);
            match directory.holds {
                Holds::Worktrees => {
                    self.take(&path, OBEYED_OF_WORKTREE, Aim::Git)?;
                    // They have the config of their repository.
                    let around = directory.path.parent().unwrap_or(Path::new("")).to_owned();
                    self.submodules_of(&around, path.join("modules"))?;
                }
                Holds::Submodules if kind.is_dir() => self.submodule(path, directory.within)?,
                // Where it leads is followed by git, and by nobody here.
                Holds::Submodules if kind.is_symlink() && !directory.is_repository => {
                    return Err(is_link(&path));
                }
                Holds::Submodules => {}
            }
        }
        Ok(())
    }

    /// Has the submodules looked at that lie in `modules`, of a repository with its config in `around`.
    fn submodules_of(&mut self, around: &Path, modules: PathBuf) -> io::Result<()> {
        self.named(around, &modules)?;
        self.directories.push(Directory::new(modules, Holds::Submodules));
        Ok(())
    }

    /// Takes those that are there of the submodules that the config in `around` names. Whatever lies around one, it is one.
    fn named(&mut self, around: &Path, modules: &Path) -> io::Result<()> {
        if !self.is_directory(modules)? {
            return Ok(());
        }
        for name in self.names_of(around)?.iter() {
            self.names = self.names.checked_sub(1).ok_or_else(too_many)?;
            let path = modules.join(name);
            let mut way: Vec<&Path> = path.ancestors().take_while(|above| *above != modules).collect();
            way.reverse();
            // What is missing on the way may yet be made.
            if way
                .iter()
                .try_fold(true, |is_there, at| Ok::<_, io::Error>(is_there && self.is_directory(at)?))?
            {
                self.submodule(path.clone(), way.len() - 1)?;
            }
        }
        Ok(())
    }

    /// The submodules that the config in `around` names.
    fn names_of(&mut self, around: &Path) -> io::Result<Rc<[PathBuf]>> {
        if let Some(names) = self.configs.get(around) {
            return Ok(Rc::clone(names));
        }
        let config = config_of(&self.at(around)).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                cause(&format!("{} {error}", shown(&self.at(&around.join("config")))))
            }
            _ => error,
        })?;
        self.budget.read(&config)?;
        // One more than are looked at.
        let names: Rc<[PathBuf]> = names(&config).take(self.names + 1).collect();
        self.configs.insert(around.to_owned(), Rc::clone(&names));
        Ok(names)
    }

    /// # Errors
    /// It is a link: where it leads is followed by git, and by nobody here.
    fn is_directory(&mut self, path: &Path) -> io::Result<bool> {
        let at = self.look(path)?;
        match unless_absent(fs::symlink_metadata(at)).map_err(|error| closed(path, error))? {
            Some(there) if there.is_symlink() => Err(is_link(path)),
            there => Ok(there.is_some_and(|there| there.is_dir())),
        }
    }

    /// Takes what would make a repository of a directory that others lie in. A submodule may have such a name too, or lie in
    /// one that has.
    fn take_signs(&mut self) -> io::Result<()> {
        let ways: BTreeSet<PathBuf> = self
            .repositories
            .iter()
            .flat_map(|repository| repository.ancestors())
            .map(Path::to_owned)
            .collect();
        for around in mem::take(&mut self.around) {
            let is_free = |sign: &&&str| !ways.contains(&around.join(sign));
            let signs: Vec<&str> = SIGNS.iter().filter(is_free).copied().collect();
            self.take(&around, &signs, Aim::GitSign)?;
            if is_file(&self.at(&around).join("HEAD"))? {
                let signs: Vec<&str> = SIGNS_BESIDE_HEAD.iter().filter(is_free).copied().collect();
                self.take(&around, &signs, Aim::Git)?;
            }
        }
        Ok(())
    }

    /// Takes what git obeys in the repository of a submodule, if it is one, or would be again if somebody put back what he took
    /// away: its config stays, because it is protected. Others can lie in it only while git takes it for none.
    fn submodule(&mut self, path: PathBuf, within: usize) -> io::Result<()> {
        let at = self.look(&path)?;
        let is_one =
            is_repository(&at) || is_file(&at.join("config")).map_err(|error| closed(&path, error))?;
        if is_one && self.repositories.insert(path.clone()) {
            if self.repositories.len() > MOST_ENTRIES {
                return Err(too_many());
            }
            self.take(&path, OBEYED, Aim::Git)?;
            self.take(&path, LISTS, Aim::GitList)?;
            self.around.extend(path.ancestors().skip(1).take(within).map(Path::to_owned));
            self.directories.push(Directory::new(path.join("worktrees"), Holds::Worktrees));
            self.submodules_of(&path, path.join("modules"))?;
        }
        let is_repository = is_surely_repository(&at)?;
        let within = if is_repository { 0 } else { within + 1 };
        self.directories.push(Directory { path, holds: Holds::Submodules, within, is_repository });
        Ok(())
    }
}

/// An error that says where it was met, unless it is a shortage.
fn closed(path: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => cause(&format!("{}: {}", shown(path), failure::words(&error))),
        _ => error,
    }
}

/// Where it leads is followed by git, and by nobody here.
fn is_link(path: &Path) -> io::Error {
    cause(&format!("{} is a link", shown(path)))
}

fn too_many() -> io::Error {
    cause(&format!("there are more than {MOST_ENTRIES} entries, repositories or names of submodules"))
}

/// Whether something lies there that is no directory.
fn is_file(path: &Path) -> io::Result<bool> {
    Ok(unless_absent(fs::symlink_metadata(path))?.is_some_and(|metadata| !metadata.is_dir()))
}

/// Whether every git takes it for a repository, and so puts no submodule into it: it is as git makes one.
fn is_surely_repository(path: &Path) -> io::Result<bool> {
    let has = |name: &str| {
        let at = path.join(name);
        fs::symlink_metadata(&at).is_ok_and(|it| it.is_dir()) && access(&at, AccessFlags::X_OK).is_ok()
    };
    let is_own = unless_absent(fs::symlink_metadata(path.join("commondir")))?.is_none();
    Ok(is_own && has("objects") && has("refs") && has_head(path)?)
}

/// Whether its `HEAD` is as git writes one: with a branch's name, or with an object's.
fn has_head(repository: &Path) -> io::Result<bool> {
    let text = read_small(&repository.join("HEAD"))?.unwrap_or_default();
    let has_object = text.get(..40).is_some_and(|name| name.iter().all(u8::is_ascii_hexdigit));
    Ok(has_object || text.starts_with(b"ref: refs/"))
}
