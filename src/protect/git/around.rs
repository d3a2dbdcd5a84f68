//! The repository of linked worktrees, which may have worktrees in it: `git worktree add` in a bare repository.
//!
//! Programs outside obey what is in the directory around a worktree, such as the `.cargo` of another user of that directory:
//! to them it is an ordinary one. So it is read-only, but for what git in a linked worktree writes there.

use std::path::Path;
use std::{fs, io};

use crate::view::source::BindSource;

/// The directories that git writes to for a linked worktree: gitrepository-layout(5), git-rerere(1), reftable, and
/// `lfs.storage` of git-lfs-config(5).
const DIRECTORIES: &[&str] = &["objects", "refs", "reftable", LOGS, "info", "worktrees", "rr-cache", "lfs"];

/// Where git logs changes of branches: git-config(1), `core.logAllRefUpdates`. In a bare repository git makes it only when
/// a worktree has a commit.
const LOGS: &str = "logs";

/// The files that git makes beside these directories, and removes: git-pack-refs(1), git-gc(1), and the boundary of a
/// shallow repository. Git takes the lock of `packed-refs` whenever it deletes a ref, and most commands delete some. A
/// mount cannot tell names apart, so the supervisor makes these files.
pub(crate) const FILES: &[&str] =
    &["packed-refs.lock", "packed-refs.new", "gc.pid.lock", "gc.pid", "shallow.lock", "shallow"];

/// Which of them git renames, and to what.
pub(crate) const RENAMES: &[(&str, &str)] =
    &[("packed-refs.new", "packed-refs"), ("gc.pid.lock", "gc.pid"), ("shallow.lock", "shallow")];

/// The directories of git in a repository. A worktree with such a name is none of them.
///
/// # Errors
/// One cannot be looked at.
pub(crate) fn directories(repository: &Path) -> io::Result<Vec<BindSource>> {
    let mut found = Vec::new();
    for name in DIRECTORIES {
        let path = repository.join(name);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.is_dir() && fs::symlink_metadata(path.join(".git")).is_err() => {
                found.push(BindSource::exact(&path)?);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Makes the directory for logs, as git would with the first commit of a worktree. If that fails, git says so then.
pub(crate) fn make_logs(repository: &Path) {
    let _ = fs::create_dir(repository.join(LOGS));
}
