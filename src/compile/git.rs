//! What is particular to git: what it obeys in a repository, and linked worktrees.
//!
//! A workspace whose repository lies elsewhere needs that repository to commit. The workspace says where it lies,
//! and the workspace may have been written by a command of an earlier sandbox. So the repository has to say so
//! too: only it can have written the link back.

use std::{
    fs,
    io::Read,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    Parts, secrets,
    source::Source,
    view::{Access, Node, View},
};
use crate::policy::Profile;

/// Longest link file that is believed to be one.
const LONGEST_LINK: u64 = 8192;

/// Shows the repository that the workspace is a linked worktree of, if it is one.
pub(super) fn show_repository(view: &mut View, parts: &Parts<'_>, workspace: &Source) {
    let Some(source) = repository_of(&workspace.path) else { return };
    if !view.is_free(&source.path)
        || parts.caller.holds_home(&source.path)
        || secrets::is_secret(&source.path, parts.caller)
    {
        return;
    }
    // Beside an overlay it is read-only: what is committed to it would not be kept apart.
    let is_read_only = parts.policy.profile == Profile::ReadOnly || parts.policy.overlay.is_some();
    let access = if is_read_only { Access::Read } else { Access::Write };
    view.offer("repository", source.path.clone(), Node::Bind { source, access });
}

/// What git obeys in a repository: who writes these has git run commands of his choice.
const OBEYED: &[&str] = &["hooks", "config", "commondir", "config.worktree"];

/// The same in a linked worktree's directory.
const OBEYED_OF_WORKTREE: &[&str] = &["commondir", "config.worktree"];

/// Parts of a repository in which there are other directories of git.
const PARTS: [(&str, Holds); 2] = [("worktrees", Holds::Worktrees), ("modules", Holds::Submodules)];

/// Directories below each of these that are looked at; of a repository with more all of it is read-only.
const MOST_DIRECTORIES: usize = 2000;

/// Paths below the directory `base` that git outside obeys: in `.git`, and in `base` itself where that looks like a
/// repository, which anybody who may write there can arrange.
pub(super) fn obeyed(base: &Path) -> Vec<PathBuf> {
    let mut paths = of_repository(base, Path::new(".git"));
    if is_repository(base) {
        paths.extend(of_repository(base, Path::new("")));
    }
    paths
}

/// Directories of git's own in a repository, by what lies in them.
#[derive(Clone, Copy)]
enum Holds {
    /// What a linked worktree has for itself: `worktrees`.
    Worktrees,
    /// Repositories of submodules: `modules`. Their names may have slashes.
    Submodules,
}

fn of_repository(base: &Path, repository: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = OBEYED.iter().map(|name| repository.join(name)).collect();
    for (name, holds) in PARTS {
        paths.extend(of_part(base, repository.join(name), holds));
    }
    paths
}

/// Submodules have worktrees and submodules too, and worktrees have submodules of their own.
fn of_part(base: &Path, part: PathBuf, holds: Holds) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut directories = vec![(part.clone(), holds)];
    let mut seen = 0;
    while let Some((directory, holds)) = directories.pop() {
        for entry in fs::read_dir(base.join(&directory)).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MOST_DIRECTORIES {
                return vec![part];
            }
            let below = directory.join(entry.file_name());
            match holds {
                Holds::Worktrees => {
                    paths.extend(OBEYED_OF_WORKTREE.iter().map(|name| below.join(name)));
                    directories.push((below.join("modules"), Holds::Submodules));
                }
                Holds::Submodules if is_repository(&base.join(&below)) => {
                    paths.extend(OBEYED.iter().map(|name| below.join(name)));
                    directories.extend(PARTS.map(|(name, holds)| (below.join(name), holds)));
                }
                Holds::Submodules if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                    directories.push((below, holds));
                }
                Holds::Submodules => {}
            }
        }
    }
    paths
}

/// Whether `path` is a repository itself (`.git`, or a bare one), so that its hooks lie directly in it.
fn is_repository(path: &Path) -> bool {
    path.join("HEAD").is_file() && path.join("objects").is_dir() && path.join("refs").is_dir()
}

/// The repository's common directory, if both sides say that `workspace` belongs to it.
///
/// gitrepository-layout(5): `.git` holds `gitdir: REPOSITORY/worktrees/NAME`; in that directory, commondir holds
/// `../..` and gitdir leads back to `.git`. The repository is opened once, without following a link, and everything
/// is asked of what was opened: somebody may be exchanging it for another directory meanwhile.
fn repository_of(workspace: &Path) -> Option<Source> {
    let link = workspace.join(".git");
    let own = follow(workspace, read_link_file(&link)?.strip_prefix("gitdir:")?)?;
    let (name, worktrees) = (own.file_name()?, own.parent()?);
    let common = worktrees.ends_with("worktrees").then(|| worktrees.parent())??;
    let (held, source) = Source::open_exact(common).ok()?;
    let anchor = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    let own_held = anchor.join("worktrees").join(name);
    let agreed = read_link_file(&own_held.join("commondir"))?.trim() == "../.."
        && follow(&own, &read_link_file(&own_held.join("gitdir"))?)? == link;
    (agreed && is_repository(&anchor)).then_some(source)
}

/// The line in a small regular file.
fn read_link_file(path: &Path) -> Option<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::File::options().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(())?;
    let mut text = String::new();
    file.take(LONGEST_LINK).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Where the text in a link file leads, from the directory it is meant from.
fn follow(from: &Path, text: &str) -> Option<PathBuf> {
    fs::canonicalize(from.join(text.trim())).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

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
        let found = repository_of(&dir.path().join("linked")).map(|source| source.path);
        assert_eq!(found, Some(dir.path().join("main/.git")));
        assert_eq!(repository_of(&dir.path().join("main")), None, "a repository needs no other");
    }

    #[test]
    fn a_forged_link_brings_nothing() {
        let dir = linked();
        let evil = dir.path().join("evil");
        fs::create_dir(&evil).expect("a directory");
        let text = fs::read(dir.path().join("linked/.git")).expect("a file");
        fs::write(evil.join(".git"), text).expect("a file");
        assert_eq!(repository_of(&evil), None, "the repository does not say so too");
        // The back link must name the very file, also when that file is a link to the right one.
        fs::remove_file(evil.join(".git")).expect("removed");
        symlink(dir.path().join("linked/.git"), evil.join(".git")).expect("a link");
        assert_eq!(repository_of(&evil), None);
        // Nor does a directory of one's own making that only looks like one.
        let own = evil.join("worktrees/x");
        fs::create_dir_all(&own).expect("a directory");
        fs::remove_file(evil.join(".git")).expect("removed");
        fs::write(evil.join(".git"), format!("gitdir: {}\n", own.display())).expect("a file");
        fs::write(own.join("commondir"), format!("{}\n", dir.path().join("main").display())).expect("a file");
        fs::write(own.join("gitdir"), format!("{}\n", evil.join(".git").display())).expect("a file");
        assert_eq!(repository_of(&evil), None, "the repository must hold the worktree's directory");
    }

    #[test]
    fn too_many_directories_are_protected_as_one() {
        for (below, deepest) in [("worktrees", "commondir"), ("modules", "config")] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let at = dir.path().join(".git").join(below);
            for name in ["0/objects", "0/refs"] {
                fs::create_dir_all(at.join(name)).expect("a directory");
            }
            fs::write(at.join("0/HEAD"), "").expect("a file");
            let is_obeyed = |path: &Path| {
                obeyed(dir.path()).iter().any(|one| one.strip_prefix(".git").is_ok_and(|one| one == path))
            };
            assert!(is_obeyed(&Path::new(below).join("0").join(deepest)) && !is_obeyed(Path::new(below)));
            for number in 1..=MOST_DIRECTORIES {
                fs::write(at.join(number.to_string()), "").expect("an entry");
            }
            assert!(is_obeyed(Path::new(below)) && !is_obeyed(&Path::new(below).join("0").join(deepest)));
        }
    }
}
