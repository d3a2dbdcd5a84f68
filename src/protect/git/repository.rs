//! The work tree of git around a workspace, and where its repository is.
//!
//! A work tree names its repository, but a command of an earlier sandbox may have written that name. So
//! Kennel believes it only if the repository names the work tree too, because a command without access to the
//! repository cannot write that.

use std::fs;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::caller::Caller;
use crate::protect::git::config::variables;
use crate::protect::git::{canonical_target, is_repository, read_link_file, read_small};
use crate::sys::lexical;
use crate::sys::lexical::is_within;
use crate::sys::own_path;
use crate::view::grants::NOT_A_WORKSPACE;
use crate::view::paths::source::BindSource;

/// A work tree of git.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WorkTree {
    /// Its top directory.
    pub(crate) top: PathBuf,
    pub(crate) repository: Repository,
}

/// Where the repository of a work tree is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repository {
    /// In the work tree, at this path.
    Inside(PathBuf),
    /// Elsewhere. It names the work tree too.
    Linked(BindSource),
    /// That of linked worktrees, elsewhere or around this one. It names this one too.
    Common(BindSource),
    /// Elsewhere, and it does not name the work tree.
    Unproven(PathBuf),
}

impl WorkTree {
    /// The work tree that git would find in a directory. `directory` is canonical.
    pub(crate) fn around(directory: &Path, caller: &Caller) -> Option<Self> {
        let top = Mark::around(directory)?.for_caller(directory, caller)?;
        Some(Self { top: top.to_owned(), repository: repository_of(top)? })
    }
}

/// The top of the git work tree around a directory, for a workspace: the command line takes it if the user
/// names none. `None` if there is no such work tree, or if it should not become a workspace unasked: it
/// belongs to another user, or contains the caller's home, or is a directory for settings there, such as
/// `~/.config`.
///
/// ```no_run
/// use kennel::{Policy, Profile};
///
/// let here = std::env::current_dir()?;
/// let top = kennel::internal::work_tree(&here).unwrap_or_else(|| here.clone());
/// let policy = Policy::profile(Profile::RepoWrite, top).cwd(here);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn work_tree(directory: &Path) -> Option<PathBuf> {
    let found = Mark::around(directory)?;
    let caller = Caller::current();
    let is_of_settings = |home: &PathBuf| {
        let name = lexical::below(found.top, home).map(Path::as_os_str);
        name.is_some_and(|name| name.as_bytes().starts_with(b".") && Path::new(name).iter().count() == 1)
    };
    let top = found.for_caller(directory, &caller)?;
    (top == directory || !caller.homes.iter().any(is_of_settings)).then(|| top.to_owned())
}

/// A directory with a `.git` that git takes.
struct Mark<'d> {
    top: &'d Path,
    directory: Metadata,
    mark: Metadata,
}

impl<'d> Mark<'d> {
    /// The nearest one around `directory`, as git finds it: git(1), "Discussion". Git does not look beyond a
    /// file system, and finds no work tree in a repository itself.
    fn around(directory: &'d Path) -> Option<Self> {
        let mut device = None;
        for top in directory.ancestors() {
            let directory = fs::symlink_metadata(top).ok()?;
            if *device.get_or_insert(directory.dev()) != directory.dev() {
                return None;
            }
            if let Some(mark) = mark_at(&top.join(".git")) {
                return Some(Self { top, directory, mark });
            }
            if is_repository(top) {
                return None;
            }
        }
        None
    }

    /// Its top directory, if commands in `inside` may see all of it. Git ignores what belongs to another
    /// user. Kennel also ignores directories of the system, and those that contain a home of the caller.
    fn for_caller(&self, inside: &Path, caller: &Caller) -> Option<&'d Path> {
        let is_of_system = NOT_A_WORKSPACE.iter().any(|system| self.top == Path::new(system));
        let is_own = is_own(&self.directory, caller) && is_own(&self.mark, caller);
        (self.top == inside || is_own && !is_of_system && !caller.holds_home(self.top)).then_some(self.top)
    }
}

/// What is at `.git`, if git takes it.
fn mark_at(mark: &Path) -> Option<Metadata> {
    let found = fs::symlink_metadata(mark).ok()?;
    let is_git = match found.is_file() {
        true => read_link_file(mark).is_some_and(|text| text.starts_with("gitdir:")),
        false => is_repository(mark),
    };
    is_git.then_some(found)
}

/// Whether git would take what belongs to this user: git-config(1), `safe.directory`.
pub(crate) fn is_own(found: &Metadata, caller: &Caller) -> bool {
    let before_sudo = || caller.variable("SUDO_UID").and_then(|uid| uid.to_str()?.parse().ok());
    found.uid() == caller.uid || caller.is_root() && before_sudo() == Some(found.uid())
}

/// The repository of the work tree `top`.
pub(crate) fn repository_of(top: &Path) -> Option<Repository> {
    let mark = top.join(".git");
    let found = fs::symlink_metadata(&mark).ok()?;
    if found.is_dir() {
        return Some(Repository::Inside(mark));
    }
    let own = match found.is_symlink() {
        true => fs::canonicalize(&mark).ok()?,
        false => canonical_target(top, read_link_file(&mark)?.strip_prefix("gitdir:")?)?,
    };
    if is_within(&own, top) {
        return Some(Repository::Inside(own));
    }
    let (at, proven) = match common_of_worktree(&mark, &own) {
        Some((common, named)) => (common, named.map(Repository::Common)),
        // Git makes no submodule in its own repository.
        None if is_within(top, &own) => return None,
        None => {
            let named = open_if(&own, |held| named_work_tree(held, &own).is_some_and(|named| named == top));
            (&*own, named.map(Repository::Linked))
        }
    };
    proven.or_else(|| is_repository(at).then(|| Repository::Unproven(at.to_owned())))
}

/// The repository of a linked worktree, and whether it names the worktree too.
///
/// gitrepository-layout(5): `.git` of the worktree holds `gitdir: REPOSITORY/worktrees/NAME`. In that
/// directory, `commondir` holds `../..`, and `gitdir` leads back to `.git`.
fn common_of_worktree<'o>(mark: &Path, own: &'o Path) -> Option<(&'o Path, Option<BindSource>)> {
    let (name, worktrees) = (own.file_name()?, own.parent()?);
    let common = worktrees.ends_with("worktrees").then(|| worktrees.parent())??;
    if read_link_file(&own.join("commondir"))?.trim() != "../.." {
        return None;
    }
    let agrees = |held: &Path| {
        let own_held = held.join("worktrees").join(name);
        let is_common =
            read_link_file(&own_held.join("commondir")).is_some_and(|text| text.trim() == "../..");
        let back = read_link_file(&own_held.join("gitdir")).and_then(|text| canonical_target(own, &text));
        is_common && back.is_some_and(|back| back == mark)
    };
    Some((common, open_if(common, agrees)))
}

/// The work tree that a repository names, as git writes it for a submodule: git-config(1), `core.worktree`.
/// `held` is the repository, and a relative path starts at `own`.
pub(crate) fn named_work_tree(held: &Path, own: &Path) -> Option<PathBuf> {
    let named = |file: &str| {
        let text = read_small(&held.join(file)).ok()??;
        let value = variables(&text).filter(|it| it.is("core", "worktree")).last()?.value?;
        canonical_target(own, str::from_utf8(&value).ok()?)
    };
    named("config.worktree").or_else(|| named("config"))
}

/// The work tree that the directory of a linked worktree names: `gitdir` in it leads to the worktree's
/// `.git`. A relative path starts at that directory: git-config(1), `extensions.relativeWorktrees`.
pub(crate) fn linked_work_tree(own: &Path) -> Option<PathBuf> {
    let text = read_link_file(&own.join("gitdir"))?;
    let mark = Path::new(text.trim());
    mark.ends_with(".git").then(|| fs::canonicalize(own.join(mark).parent()?).ok())?
}

/// Opens a repository once, without following a link, if it `agrees`. Kennel reads everything through that
/// descriptor, because another process may replace the path meanwhile.
fn open_if(path: &Path, agrees: impl Fn(&Path) -> bool) -> Option<BindSource> {
    let (held, source) = BindSource::open_exact(path).ok()?;
    let anchor = own_path(&held);
    (is_repository(&anchor) && agrees(&anchor)).then_some(source)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    /// The repository of a work tree, if it names the work tree too.
    fn linked_repository(top: &Path) -> Option<PathBuf> {
        match repository_of(top) {
            Some(Repository::Linked(source) | Repository::Common(source)) => Some(source.path),
            _ => None,
        }
    }

    /// A repository `main` and a worktree `linked` of it, as git lays them out.
    fn linked() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let main = dir.path().join("main/.git");
        for name in ["objects", "refs", "worktrees/linked"] {
            fs::create_dir_all(main.join(name)).expect("a directory");
        }
        fs::create_dir(dir.path().join("linked")).expect("a directory");
        let write = |path: PathBuf, text: String| fs::write(path, text).expect("a file");
        write(main.join("HEAD"), "ref: refs/heads/main\n".into());
        write(main.join("worktrees/linked/commondir"), "../..\n".into());
        write(main.join("worktrees/linked/gitdir"), format!("{}/linked/.git\n", dir.path().display()));
        write(dir.path().join("linked/.git"), format!("gitdir: {}/worktrees/linked\n", main.display()));
        dir
    }

    #[test]
    fn a_linked_worktree_brings_its_repository() {
        let dir = linked();
        assert_eq!(linked_repository(&dir.path().join("linked")), Some(dir.path().join("main/.git")));
        let main = dir.path().join("main");
        assert_eq!(repository_of(&main), Some(Repository::Inside(main.join(".git"))), "it needs no other");
    }

    #[test]
    fn a_forged_link_brings_nothing() {
        let dir = linked();
        let evil = dir.path().join("evil");
        fs::create_dir(&evil).expect("a directory");
        let text = fs::read(dir.path().join("linked/.git")).expect("a file");
        fs::write(evil.join(".git"), text).expect("a file");
        assert_eq!(linked_repository(&evil), None, "the repository does not say so too");
        // The back link must name the very file, also when that file is a link to the right one.
        fs::remove_file(evil.join(".git")).expect("removed");
        symlink(dir.path().join("linked/.git"), evil.join(".git")).expect("a link");
        assert_eq!(linked_repository(&evil), None);
        // Nor does a directory of one's own making that only looks like one.
        let own = evil.join("worktrees/x");
        fs::create_dir_all(&own).expect("a directory");
        fs::remove_file(evil.join(".git")).expect("removed");
        fs::write(evil.join(".git"), format!("gitdir: {}\n", own.display())).expect("a file");
        fs::write(own.join("commondir"), format!("{}\n", dir.path().join("main").display())).expect("a file");
        fs::write(own.join("gitdir"), format!("{}\n", evil.join(".git").display())).expect("a file");
        assert_eq!(linked_repository(&evil), None, "the repository must hold the worktree's directory");
    }
}
