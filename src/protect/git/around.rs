//! The repository of linked worktrees, which may have worktrees in it: `git worktree add` in a bare
//! repository.
//!
//! To programs outside, the directory around a worktree is an ordinary one: they obey its
//! `.cargo/config.toml` or its `package.json`. So it is read-only, but for what git in a linked worktree
//! writes there.

use std::path::Path;
use std::{fs, io};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat, mkdirat};

use crate::sys::dirfd;
use crate::sys::dirfd::mode_of;
use crate::view::paths::source::BindSource;

/// Holds a directory.
const HELD: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The directories that git writes to for a linked worktree: gitrepository-layout(5), git-rerere(1),
/// reftable, and `lfs.storage` of git-lfs-config(5).
const DIRECTORIES: &[&str] = &["objects", "refs", "reftable", LOGS, "info", "worktrees", "rr-cache", "lfs"];

/// Where git logs changes of branches: git-config(1), `core.logAllRefUpdates`. In a bare repository git makes
/// it only when a worktree has a commit.
const LOGS: &str = "logs";

/// The files that git makes beside these directories, and removes: git-pack-refs(1), git-gc(1), and the
/// boundary of a shallow repository. Git takes the lock of `packed-refs` whenever it deletes a ref, and most
/// commands delete some. A mount cannot tell names apart, so the supervisor makes these files.
pub(crate) const FILES: &[&str] =
    &["packed-refs.lock", "packed-refs.new", "gc.pid.lock", "gc.pid", "shallow.lock", "shallow"];

/// Which of them git renames, and to what. Other programs for repositories rename the lock of `packed-refs`
/// itself.
pub(crate) const RENAMES: &[(&str, &str)] = &[
    ("packed-refs.new", "packed-refs"),
    ("packed-refs.lock", "packed-refs"),
    ("gc.pid.lock", "gc.pid"),
    ("shallow.lock", "shallow"),
];

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

/// Makes the directory for logs, as git would with the first commit of a worktree, with the rights of a
/// command. If that fails, git says so then.
pub(crate) fn make_logs(repository: &BindSource) {
    let made = dirfd::without_capabilities(|| {
        let (held, now) = BindSource::open_exact(&repository.path)?;
        if now.identity != repository.identity {
            return Ok(());
        }
        mkdirat(&held, LOGS, Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO)?;
        // As in a repository that users share: git-init(1), `--shared`.
        let refs = openat(&held, "refs", HELD, Mode::empty())?;
        dirfd::change_mode(openat(&held, LOGS, HELD, Mode::empty())?, mode_of(&fstat(&refs)?))?;
        Ok(())
    });
    if let Err(error) = made {
        tracing::debug!(path = %repository.path.display(), %error, "no directory for logs was made");
    }
}
