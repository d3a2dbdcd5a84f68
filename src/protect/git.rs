//! Git: what of the repository is shown, and what git obeys in a repository.

pub(crate) mod around;
pub(crate) mod config;
pub(crate) mod modules;
pub(crate) mod obeyed;
pub(crate) mod repository;
pub(crate) mod user;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::caller::Caller;
use crate::policy::profile::Git;
use crate::protect::git::repository::{Repository, WorkTree, is_own, named_work_tree};
use crate::report::failure;
use crate::report::failure::shown;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::file_system::regular;
use crate::sys::lexical;
use crate::sys::lexical::is_within;
use crate::sys::own_path;
use crate::view::inputs::Inputs;
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::{UnresolvedPath, WalkAim};
use crate::view::{Access, Node, Origin, View, ViewEntry, secrets};

/// Bytes that are read of a link file or of a config.
const MOST_READ: usize = 1 << 20;

/// Repositories whose objects are borrowed that are named in notes.
const MOST_BORROWED: usize = 4;

/// Shows what git needs besides the workspace: the work tree around it, read-only, and the repository,
/// writable as the workspace is. What Kennel cannot show safely gets a note with the flag that shows it.
pub(crate) fn show_repository(view: &mut View, inputs: &Inputs<'_>, workspace: &BindSource) {
    let Some(tree) = WorkTree::around(&workspace.path, inputs.caller) else { return };
    let is_around = tree.top != workspace.path;
    if is_around && (inputs.policy.git == Git::Workspace || !show_work_tree(view, inputs, &tree.top)) {
        return;
    }
    // Beside an overlay it is read-only, because the overlay would not hold back commits to it.
    let writes = inputs.policy.profile.meaning().writes
        && inputs.policy.overlay.is_none()
        && inputs.policy.git != Git::ReadOnly;
    let access = if writes { Access::Write } else { Access::Read };
    let repository = match tree.repository {
        Repository::Inside(path) => {
            if let (true, Ok(source)) = (is_around, BindSource::exact(&path)) {
                view.offer(PlaceKind::Repository, path.clone(), Node::Bind { source, access });
            }
            note_work_tree(view, inputs, &path);
            path
        }
        Repository::Linked(source) => {
            let path = source.path.clone();
            if may_show(view, inputs, &path) {
                view.offer(PlaceKind::Repository, path.clone(), Node::Bind { source, access });
            }
            path
        }
        Repository::Common(source) => {
            let path = source.path.clone();
            show_common(view, inputs, &workspace.path, &tree.top, source, access);
            path
        }
        Repository::Unproven(path) => {
            if is_hidden(view, inputs, &path) {
                note_unshown(view, &tree.top, &path, "it does not name this directory too");
            }
            return;
        }
    };
    note_borrowed(view, inputs, &repository);
}

/// Shows the repository of linked worktrees. Nobody works in a `.git`, so it is writable as a whole. Any
/// other may have worktrees in it, now or later, and only what git needs is writable.
fn show_common(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: &Path,
    top: &Path,
    source: BindSource,
    access: Access,
) {
    let path = source.path.clone();
    let is_around = is_within(top, &path);
    let is_own = || fs::symlink_metadata(&path).is_ok_and(|it| is_own(&it, inputs.caller));
    if !may_show_around(view, inputs, &path) || is_around && !is_own() {
        return;
    }
    if access != Access::Write || path.ends_with(".git") && !is_around {
        return view.offer(PlaceKind::Repository, path, Node::Bind { source, access });
    }
    around::make_logs(&source);
    match around::directories(&path) {
        Ok(directories) => {
            view.offer(
                PlaceKind::CommonRepository,
                &path,
                Node::Bind { source: source.clone(), access: Access::Read },
            );
            for source in directories {
                view.offer(PlaceKind::Repository, source.path.clone(), Node::Bind { source, access });
            }
            let protects = |given: &PathBuf| protects_directly(&workspace.join(given), &path);
            if !inputs.policy.protect.iter().any(protects) {
                view.common_repository = Some(source);
            }
        }
        Err(error) => note_unshown(view, top, &path, &failure::words(&error)),
    }
}

/// Whether a path that the policy protects is the repository, around it, or directly in it.
fn protects_directly(given: &Path, repository: &Path) -> bool {
    let leads = |to: &Path| fs::canonicalize(to).ok();
    leads(given).is_some_and(|at| is_within(repository, &at))
        || given.parent().and_then(leads).is_some_and(|parent| parent == repository)
}

/// Says that the repository of the work tree `top` is not shown, and why.
fn note_unshown(view: &mut View, top: &Path, repository: &Path, why: &str) {
    let path = shown(repository);
    let text = format!("it leads to the repository {path}, which is not shown, because {why}");
    view.note(
        &shown(&top.join(".git")),
        &text,
        Some(remedy![SettingKey::Rw.to(repository.display()), " shows it"]),
    );
}

/// Says that a repository works on a work tree elsewhere, which is not shown. A command may have written
/// that.
fn note_work_tree(view: &mut View, inputs: &Inputs<'_>, repository: &Path) {
    let Some(named) = named_work_tree(repository, repository) else { return };
    if is_hidden(view, inputs, &named) {
        let text = format!("core.worktree names {}, which is not shown", shown(&named));
        view.note(&shown(repository), &text, Some(remedy![SettingKey::Rw.to(named.display()), " shows it"]));
    }
}

/// Whether the view may show a directory around the workspace. Kennel makes no mount point in a directory of
/// the host. If the policy needs one there, the directory is not shown.
fn may_show_around(view: &View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let is_made = |(at, place): (&Path, &ViewEntry)| {
        let is_bound = matches!(&place.node, Node::Bind { source, .. } if source.path == at);
        place.origin == Origin::Policy && !is_bound
    };
    may_show(view, inputs, path) && !view.within(path).any(is_made)
}

/// Shows the work tree around the workspace. Returns whether it is visible.
fn show_work_tree(view: &mut View, inputs: &Inputs<'_>, top: &Path) -> bool {
    if !may_show_around(view, inputs, top) {
        return false;
    }
    if let Ok(source) = BindSource::exact(top) {
        view.offer(PlaceKind::WorkTree, top, Node::Bind { source, access: Access::Read });
    }
    true
}

/// Whether the view may show a place of git: the policy shows nothing there, and it holds no secrets.
fn may_show(view: &View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let is_left = |place: &ViewEntry| {
        let is_read = !matches!(place.node, Node::Bind { access: Access::Write | Access::Device, .. });
        place.origin == Origin::Profile
            && is_read
            && !matches!(place.node, Node::Proc { .. } | Node::Symlink { .. })
    };
    lexical::ancestors(path).find_map(|above| view.get(above)).is_none_or(is_left)
        && !inputs.caller.holds_home(path)
        && !secrets::is_secret(path, inputs.caller)
}

/// Whether Kennel may show a directory of the caller, and does not.
fn is_hidden(view: &View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let is_own = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir() && is_own(&it, inputs.caller));
    is_own && may_show(view, inputs, path) && view.host_path(path).is_none_or(|shown| shown != path)
}

/// Says which objects a repository borrows from others that are not shown: gitrepository-layout(5),
/// `objects/info/alternates`. Commands can write that file, so it shows nothing by itself.
fn note_borrowed(view: &mut View, inputs: &Inputs<'_>, repository: &Path) {
    let objects = repository.join("objects");
    let Ok(Some(text)) = read_small(&objects.join("info/alternates")) else { return };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    for line in lines.take(MOST_BORROWED) {
        let Ok(path) = fs::canonicalize(objects.join(OsStr::from_bytes(line))) else { continue };
        if is_hidden(view, inputs, &path) {
            let text = format!("the repository borrows objects of {}, which is not shown", shown(&path));
            view.note(
                &shown(repository),
                &text,
                Some(remedy![SettingKey::Ro.to(path.display()), " shows it"]),
            );
        }
    }
}

/// The paths of what git obeys for a user, whatever the repository: git-config(1), "FILES".
pub(crate) fn user_config(caller: &Caller) -> impl Iterator<Item = (UnresolvedPath, WalkAim)> {
    let of_homes = caller.homes.iter().map(|home| (home.join(".gitconfig"), WalkAim::GitOfUser));
    let directories = caller.homes.iter().map(|home| home.join(".config"));
    let of_directories = directories
        .chain(caller.path_in("XDG_CONFIG_HOME"))
        .map(|path| (path.join("git"), WalkAim::GitOfUser));
    of_homes.chain(of_directories).map(|(path, aim)| (UnresolvedPath::new(Path::new("/"), path), aim))
}

/// Whether git could take `path` for a repository (`.git` or a bare one) or for the directory of a linked
/// worktree. Then its hooks are directly in it, or where its `commondir` leads.
fn is_repository(path: &Path) -> bool {
    let has_head = fs::symlink_metadata(path.join("HEAD")).is_ok_and(|head| !head.is_dir());
    has_head && (has_objects_and_refs(path) || path.join("commondir").is_file())
}

/// Whether it has the directories for commits and branches.
fn has_objects_and_refs(repository: &Path) -> bool {
    repository.join("objects").is_dir() && repository.join("refs").is_dir()
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

/// As [`read_small`], and follows a link. A command may have made the link, to a file that only the caller
/// may open. So Kennel does not open what is no regular file or is on a kernel file system.
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

/// The beginning of a file: at most one byte more than [`MOST_READ`], so that the caller notices a longer
/// file.
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
