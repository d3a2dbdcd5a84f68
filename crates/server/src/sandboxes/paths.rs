//! Paths of a sandbox, and what several calls do to them. Every call has the rights of a command.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use kennel::files::FileKind;
use kennel::{Error, Session};

use crate::wire::HOME;
use crate::wire::failure::Failure;

/// The deepest directory that is removed or listed.
const DEEPEST: usize = 256;

/// The absolute path that a client means: a relative one, and `~`, begin in the sandbox's own directory.
pub(crate) fn absolute(path: &str) -> Result<PathBuf, Failure> {
    if path.is_empty() {
        return Err(Failure::bad("path: missing"));
    }
    if path.contains('\0') {
        return Err(Failure::bad("path: it contains a NUL"));
    }
    let path = match path.strip_prefix('~') {
        Some("") => HOME,
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    };
    let mut clean = PathBuf::from("/");
    for component in Path::new(HOME).join(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    Ok(clean)
}

pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn is_errno(error: &Error, errno: i32) -> bool {
    matches!(error, Error::File { source, .. } if source.raw_os_error() == Some(errno))
}

fn exists(error: &Error) -> bool {
    matches!(error, Error::File { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
}

/// Makes a directory and those above it. Returns whether it is new.
pub(crate) async fn make_directory(session: &Session, path: &Path) -> Result<bool, Failure> {
    let mut missing = vec![path];
    let mut is_new = true;
    while let Some(next) = missing.pop() {
        match session.mkdir(next).await {
            Ok(()) => is_new = true,
            Err(error) if exists(&error) => {
                is_new = false;
                if !session.stat(next).await?.is_dir() {
                    return Err(Failure::bad(format!("{}: it is no directory", next.display())));
                }
            }
            Err(error) if is_missing(&error) => match next.parent() {
                Some(above) if missing.len() < DEEPEST => missing.extend([next, above]),
                _ => return Err(error.into()),
            },
            // `/` and mounts are there, and nobody may make them.
            Err(error) => match session.stat(next).await {
                Ok(info) if info.is_dir() => is_new = false,
                _ => return Err(error.into()),
            },
        }
    }
    Ok(is_new)
}

/// Makes the directories above a file.
pub(crate) async fn make_parent(session: &Session, path: &Path) -> Result<(), Failure> {
    let Some(above) = path.parent() else { return Ok(()) };
    make_directory(session, above).await.map(|_| ())
}

/// After a call that failed: makes the directories above its path, if it failed because they are missing.
pub(crate) async fn make_missing_parent(session: &Session, path: &Path, error: Error) -> Result<(), Failure> {
    if is_missing(&error) { make_parent(session, path).await } else { Err(error.into()) }
}

/// Moves a file or a directory, and makes the directories above its new place; also from one file system of
/// the sandbox to another: from `/tmp` to its own directory, say.
pub(crate) async fn rename(session: &Session, from: &Path, to: &Path) -> Result<(), Failure> {
    let mut renamed = session.rename(from, to).await;
    if renamed.as_ref().is_err_and(is_missing) {
        make_parent(session, to).await?;
        renamed = session.rename(from, to).await;
    }
    let error = match renamed {
        Err(error) if is_errno(&error, nix::libc::EXDEV) => error,
        renamed => return Ok(renamed?),
    };
    let moved = session.command("mv").args(["-T", "--"]).arg(from).arg(to).output().await?;
    if moved.outcome.status.success() {
        return Ok(());
    }
    let said = kennel::internal::escape::harmless(String::from_utf8_lossy(&moved.stderr).trim());
    let failure = Failure::from(error);
    let message = format!("{}: {said}", failure.message);
    Err(failure.with_message(message))
}

/// Removes a file, or a directory with all that is in it. It is no error that nothing is there.
pub(crate) async fn remove(session: &Session, path: &Path) -> Result<(), Failure> {
    enum Step {
        Look(PathBuf),
        Remove(PathBuf),
    }
    let mut steps = vec![Step::Look(path.to_owned())];
    while let Some(step) = steps.pop() {
        let path = match step {
            Step::Look(path) => match session.details(&path).await {
                Ok(found) if found.info.kind == FileKind::Directory => {
                    let names: Vec<OsString> =
                        session.list(&path).await?.into_iter().map(|entry| entry.name).collect();
                    steps.push(Step::Remove(path.clone()));
                    steps.extend(names.into_iter().map(|name| Step::Look(path.join(name))));
                    continue;
                }
                Ok(_) => path,
                Err(error) if is_missing(&error) => continue,
                Err(error) => return Err(error.into()),
            },
            Step::Remove(path) => path,
        };
        match session.remove(&path).await {
            Err(error) if !is_missing(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_in_the_sandboxs_own_directory() {
        let of = |path| absolute(path).expect(path).display().to_string();
        assert_eq!(of("a/b"), "/home/user/a/b");
        assert_eq!(of("~"), "/home/user");
        assert_eq!(of("~/x"), "/home/user/x");
        assert_eq!(of("~other"), "/home/user/~other");
        assert_eq!(of("/etc/../tmp/./x//y/"), "/tmp/x/y");
        assert_eq!(of("../../../.."), "/");
        absolute("").expect_err("empty");
        absolute("a\0b").expect_err("a NUL");
    }
}
