//! Git: the repository of a linked worktree, and what git obeys in a repository.
//!
//! A linked worktree needs its repository to commit. The worktree names it, but a command of an earlier sandbox may have written
//! that name. So the repository must name the worktree too: a command without access to the repository cannot write that.

pub(crate) mod modules;
pub(crate) mod obeyed;

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::host::caller::Caller;
use crate::sys::dirfd::own_path;
use crate::sys::inode::regular;
use crate::view::inputs::Inputs;
use crate::view::path_walk::{UnresolvedPath, WalkAim};
use crate::view::source::BindSource;
use crate::view::{Access, Node, View, secrets};

/// Bytes that are read of a link file or of a config.
const MOST_READ: usize = 1 << 20;

/// Shows the repository of the workspace, if the workspace is a linked worktree.
pub(crate) fn show_repository(view: &mut View, inputs: &Inputs<'_>, workspace: &BindSource) {
    let Some(source) = repository_of(&workspace.path) else { return };
    if !view.is_free(&source.path)
        || inputs.caller.holds_home(&source.path)
        || secrets::is_secret(&source.path, inputs.caller)
    {
        return;
    }
    // Beside an overlay it is read-only, because the overlay would not hold back commits to it.
    let is_read_only = !inputs.policy.profile.meaning().writes || inputs.policy.overlay.is_some();
    let access = if is_read_only { Access::Read } else { Access::Write };
    view.offer("repository", source.path.clone(), Node::Bind { source, access });
}

/// The paths of what git obeys for a user, whatever the repository: git-config(1), "FILES".
pub(crate) fn user_config(caller: &Caller) -> impl Iterator<Item = (UnresolvedPath, WalkAim)> {
    let of_homes = caller.homes.iter().map(|home| (home.join(".gitconfig"), WalkAim::Git));
    let directories = caller.homes.iter().map(|home| home.join(".config"));
    let named = caller.variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_directories = directories.chain(named).map(|path| (path.join("git"), WalkAim::GitList));
    of_homes.chain(of_directories).map(|(path, aim)| (UnresolvedPath::new(Path::new("/"), path), aim))
}

/// Whether git could take `path` for a repository (`.git` or a bare one) or for the directory of a linked worktree. Then its
/// hooks are directly in it, or where its `commondir` leads.
fn is_repository(path: &Path) -> bool {
    let has_head = fs::symlink_metadata(path.join("HEAD")).is_ok_and(|head| !head.is_dir());
    has_head && (has_objects_and_refs(path) || path.join("commondir").is_file())
}

/// Whether it has the directories for commits and branches.
fn has_objects_and_refs(repository: &Path) -> bool {
    repository.join("objects").is_dir() && repository.join("refs").is_dir()
}

/// The repository of a linked worktree, if both name each other.
///
/// gitrepository-layout(5): `.git` of the worktree holds `gitdir: REPOSITORY/worktrees/NAME`. In that directory, `commondir`
/// holds `../..`, and `gitdir` leads back to `.git`. Kennel opens the repository once, without following a link, and reads
/// everything through that descriptor, because another process may replace the path meanwhile.
fn repository_of(workspace: &Path) -> Option<BindSource> {
    let link = workspace.join(".git");
    let own = canonical_target(workspace, read_link_file(&link)?.strip_prefix("gitdir:")?)?;
    let (name, worktrees) = (own.file_name()?, own.parent()?);
    let common = worktrees.ends_with("worktrees").then(|| worktrees.parent())??;
    let (held, source) = BindSource::open_exact(common).ok()?;
    let anchor = own_path(&held);
    let own_held = anchor.join("worktrees").join(name);
    let agreed = read_link_file(&own_held.join("commondir"))?.trim() == "../.."
        && canonical_target(&own, &read_link_file(&own_held.join("gitdir"))?)? == link;
    (agreed && is_repository(&anchor)).then_some(source)
}

/// The text of a small regular file.
fn read_link_file(path: &Path) -> Option<String> {
    String::from_utf8(read_small(path).ok()??).ok()
}

/// The beginning of a regular file; `None` if there is none.
///
/// # Errors
/// It cannot be read.
fn read_small(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = none_if_missing(fs::File::options().read(true).custom_flags(flags).open(path))?;
    let Some(file) = opened.filter(|file| file.metadata().is_ok_and(|it| it.is_file())) else {
        return Ok(None);
    };
    contents(file).map(Some)
}

/// As [`read_small`], and follows a link. A command may have made the link, to a file that only the caller may open. So
/// Kennel does not open what is no regular file or is on a kernel file system.
///
/// # Errors
/// It does not exist, or it cannot be read.
fn read_followed(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let there = fs::symlink_metadata(path)?;
    if !there.is_symlink() {
        return if there.is_file() { read_small(path) } else { Ok(None) };
    }
    let held = fs::File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    if regular(&held).is_err() {
        return Ok(None);
    }
    let again = own_path(&held);
    contents(fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(again)?).map(Some)
}

/// The beginning of a file: at most one byte more than [`MOST_READ`], so that the caller notices a longer file.
fn contents(file: fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST_READ as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `None` if the error says that there is no such file.
fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG) => Ok(None),
            _ => Err(error),
        },
        result => result.map(Some),
    }
}

/// Where the text of a link file leads; relative text starts at `from`.
fn canonical_target(from: &Path, text: &str) -> Option<PathBuf> {
    fs::canonicalize(from.join(text.trim())).ok()
}

/// What git obeys in a repository.
pub(crate) const OBEYED: &[&str] = &["hooks", "config", "commondir", "config.worktree"];

/// Directories in a repository with a file for each remote: its address, and what is fetched and pushed.
pub(crate) const LISTS: &[&str] = &["remotes", "branches"];

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
}
