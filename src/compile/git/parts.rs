//! What lies in those parts of a repository in which git keeps others: linked worktrees and submodules.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    is_repository,
    obeyed::{OBEYED, Obeyed},
    read_small, unless_absent,
};

/// What git obeys in a linked worktree's directory.
const OBEYED_OF_WORKTREE: &[&str] = &["commondir", "config.worktree"];

/// Parts of a repository in which there are other directories of git.
pub(super) const PARTS: [(&str, Holds); 2] =
    [("worktrees", Holds::Worktrees), ("modules", Holds::Submodules)];

/// What makes a repository of a directory. Git makes none of one that submodules with longer names lie in.
const SIGNS: &[&str] = &["HEAD", "config"];

/// What a repository has for itself. Git puts no submodule into a repository; what it does not take for one may have some
/// anywhere.
const OWN: &[&str] = &["hooks", "info", "lfs", "logs", "objects", "refs"];

/// Entries of a part that are looked at, those of repositories in it aside.
pub(super) const MOST_ENTRIES: usize = 2000;

/// Entries of repositories in a part that are looked at.
const MOST_OF_REPOSITORIES: usize = 100_000;

/// Directories of git's own in a repository, by what lies in them.
#[derive(Clone, Copy)]
pub(super) enum Holds {
    /// What a linked worktree has for itself: `worktrees`.
    Worktrees,
    /// Repositories of submodules: `modules`. Their names may have slashes.
    Submodules,
}

/// A look at a part of a repository below `base`, which the paths are relative to.
struct Look<'b> {
    base: &'b Path,
    obeyed: Obeyed,
    repositories: Vec<PathBuf>,
    /// What would make repositories of the directories around repositories.
    signs: BTreeSet<PathBuf>,
    directories: Vec<Directory>,
}

/// A directory to look at.
struct Directory {
    path: PathBuf,
    holds: Holds,
    /// How many directories, itself included, are the beginning of submodules' names.
    within: usize,
    /// Whether git takes it for a repository.
    is_repository: bool,
}

impl Directory {
    fn new(path: PathBuf, holds: Holds) -> Self {
        Self { path, holds, within: 0, is_repository: false }
    }

    /// Whether what is called `name` in it is not looked at: of a repository its own, and its parts, which have a look of
    /// their own.
    fn passes_over(&self, name: &OsStr) -> bool {
        let is_part = PARTS.iter().any(|(part, _)| *part == name);
        self.is_repository && (is_part || OWN.iter().any(|own| *own == name))
    }
}

/// What git obeys in a part of a repository below `base`. Submodules have worktrees and submodules too, and worktrees have
/// submodules of their own.
///
/// # Errors
/// Something cannot be looked at, or there is too much.
pub(super) fn obeyed_in(base: &Path, part: &Path, holds: Holds) -> io::Result<Obeyed> {
    let mut look = Look {
        base,
        obeyed: Obeyed::default(),
        repositories: Vec::new(),
        signs: BTreeSet::new(),
        directories: vec![Directory::new(part.to_owned(), holds)],
    };
    let (mut entries, mut of_repositories) = (MOST_ENTRIES, MOST_OF_REPOSITORIES);
    while let Some(directory) = look.directories.pop() {
        let left = if directory.is_repository { &mut of_repositories } else { &mut entries };
        look.directory(&directory, left)?;
        look.obeyed.listed.push(directory.path);
    }
    // A submodule may have such a name too, or lie in one that has.
    let Look { mut obeyed, mut signs, repositories, .. } = look;
    for way in repositories.iter().flat_map(|repository| repository.ancestors()) {
        signs.remove(way);
    }
    obeyed.paths.extend(signs);
    Ok(obeyed)
}

impl Look<'_> {
    fn directory(&mut self, directory: &Directory, left: &mut usize) -> io::Result<()> {
        for entry in unless_absent(fs::read_dir(self.base.join(&directory.path)))?.into_iter().flatten() {
            let entry = entry?;
            *left = left.checked_sub(1).ok_or(io::ErrorKind::FileTooLarge)?;
            if directory.passes_over(&entry.file_name()) {
                continue;
            }
            let (path, kind) = (directory.path.join(entry.file_name()), entry.file_type()?);
            match directory.holds {
                Holds::Worktrees => {
                    self.obeyed.paths.extend(OBEYED_OF_WORKTREE.iter().map(|name| path.join(name)));
                    self.directories.push(Directory::new(path.join("modules"), Holds::Submodules));
                }
                Holds::Submodules if kind.is_dir() => self.submodule(path, directory.within)?,
                // Where it leads is followed by git, and by nobody here.
                Holds::Submodules if kind.is_symlink() && !directory.is_repository => {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                Holds::Submodules => {}
            }
        }
        Ok(())
    }

    /// Takes what git obeys in the repository of a submodule, if it is one, or would be again if somebody put back what he took
    /// away: its config stays, because it is protected. Others can lie in it only while git takes it for none.
    fn submodule(&mut self, path: PathBuf, within: usize) -> io::Result<()> {
        let at = self.base.join(&path);
        let is_like_one = is_repository(&at);
        if is_like_one || is_file(&at.join("config"))? {
            self.obeyed.paths.extend(OBEYED.iter().map(|name| path.join(name)));
            let around = path.ancestors().skip(1).take(within);
            self.signs.extend(around.flat_map(|around| SIGNS.iter().map(|sign| around.join(sign))));
            let part = |(name, holds)| Directory::new(path.join(name), holds);
            self.directories.extend(PARTS.map(part));
            self.repositories.push(path.clone());
        }
        let is_repository = is_like_one && has_head(&at)?;
        let within = if is_repository { 0 } else { within + 1 };
        self.directories.push(Directory { path, holds: Holds::Submodules, within, is_repository });
        Ok(())
    }
}

/// Whether something lies there that is no directory.
fn is_file(path: &Path) -> io::Result<bool> {
    Ok(unless_absent(fs::symlink_metadata(path))?.is_some_and(|metadata| !metadata.is_dir()))
}

/// Whether git takes its `HEAD` for one: a branch's name, or an object's.
fn has_head(repository: &Path) -> io::Result<bool> {
    let head = repository.join("HEAD");
    if let Ok(link) = fs::read_link(&head) {
        return Ok(link.starts_with("refs"));
    }
    let text = read_small(&head)?.unwrap_or_default();
    let name = text.get(..40).is_some_and(|name| name.iter().all(u8::is_ascii_hexdigit));
    Ok(name || text.strip_prefix(b"ref:").is_some_and(|branch| branch.trim_ascii().starts_with(b"refs/")))
}
