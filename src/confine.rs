//! Paths that a program wants to keep below a directory of the host's: as a check of a path, which is about now, and as
//! an open, which holds whatever others do meanwhile. Knows no policy and no sandbox.

mod open;

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use nix::errno::Errno;

pub use self::open::{OpenHow, open_beneath};
use crate::{
    below::MOST_LINKS,
    failure::{self, Boundary, Class, Details, Failure, shown},
    policy::without_dots,
};

/// Why a path is refused. Where the system did it, why is in `source()`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathEscape {
    /// It leads out of the root, by itself or through a link.
    #[error("path {} escapes workspace root {}", shown(path), shown(root))]
    Escapes {
        /// The path as the caller wrote it.
        path: PathBuf,
        /// The root as the caller wrote it.
        root: PathBuf,
    },
    /// The root does not exist, is not a directory, or cannot be read.
    #[error("reach workspace root {}", shown(root))]
    Root {
        /// The root as the caller wrote it.
        root: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Nothing is known about the path, or it cannot be opened.
    #[error("reach path {}", shown(path))]
    Path {
        /// The path as the caller wrote it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl PathEscape {
    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary, details) = match self {
            Self::Escapes { path, root } => {
                let requested = path.display().to_string();
                let granted = vec![root.display().to_string()];
                (Class::CapabilityDenied, Boundary::Action, Details::Granted { requested, granted })
            }
            Self::Root { .. } | Self::Path { .. } => (Class::RuntimeError, Boundary::Runtime, Details::None),
        };
        Failure::new(class, boundary, failure::chain(self), details)
    }
}

/// The place that `candidate` means below `root`: absolute, without links, `.` and `..`.
///
/// A relative candidate starts at the root. Steps up are taken by the text, before the disk is asked. What exists is
/// followed through its links; what does not exist yet is kept as it is, also behind a link that leads nowhere.
///
/// The answer holds only for now: if others can replace files by links meanwhile, use [`open_beneath`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path().canonicalize()?;
/// let path = kennel::confine_path(&root, "src/../new/file.rs")?;
/// assert_eq!(path, root.join("new/file.rs"));
/// let error = kennel::confine_path(&root, "../etc/passwd").unwrap_err();
/// assert!(error.to_string().starts_with("path ../etc/passwd escapes workspace root /"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`PathEscape`]: the path leads out of the root; the root is missing; a directory on the way cannot be looked at, or
/// links go in a circle.
pub fn confine_path(root: impl AsRef<Path>, candidate: impl AsRef<Path>) -> Result<PathBuf, PathEscape> {
    let (root, candidate) = (root.as_ref(), candidate.as_ref());
    let base = existing_root(root)?;
    let escapes = || PathEscape::Escapes { path: candidate.to_owned(), root: root.to_owned() };
    let wanted = without_dots(&base.join(candidate));
    // An absolute one may name the root in other words, which only the disk knows.
    if candidate.is_relative() && !wanted.starts_with(&base) {
        return Err(escapes());
    }
    let path = resolved(&wanted).map_err(|source| PathEscape::Path { path: candidate.to_owned(), source })?;
    if path.starts_with(&base) { Ok(path) } else { Err(escapes()) }
}

fn existing_root(root: &Path) -> Result<PathBuf, PathEscape> {
    let base = fs::canonicalize(root).and_then(|base| match fs::metadata(&base)?.is_dir() {
        true => Ok(base),
        false => Err(Errno::ENOTDIR.into()),
    });
    base.map_err(|source| PathEscape::Root { root: root.to_owned(), source })
}

/// Where an absolute path leads, link by link. From the first part that is missing on, nothing is looked at.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    let mut at = PathBuf::from("/");
    let mut ahead: VecDeque<PathBuf> = parts(path);
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        at.push(&part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                let to = fs::read_link(&at)?;
                at.pop();
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&to).into_iter().rev() {
                    ahead.push_front(part);
                }
            }
            Ok(_) => {}
            Err(error) if is_missing(&error) => return missing(at, ahead, error),
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// Names and steps up, in order.
fn parts(path: &Path) -> VecDeque<PathBuf> {
    let is_step = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|part| PathBuf::from(part.as_os_str())).collect()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// What is ahead of something that is missing. Up from there leads nowhere that anybody could know.
fn missing(mut at: PathBuf, ahead: VecDeque<PathBuf>, error: io::Error) -> io::Result<PathBuf> {
    if ahead.iter().any(|part| part == Path::new("..")) {
        return Err(error);
    }
    at.extend(ahead);
    Ok(at)
}

#[cfg(test)]
mod tests;
