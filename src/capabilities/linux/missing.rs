//! Declared paths to write that do not exist yet, such as a cache on a new machine. This is the only part of
//! the capabilities that creates anything on the host.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::report::failure::{shown, words};
use crate::view::paths::resolved::{ResolvedPath, is_within};

/// A path that does not exist, and the nearest directory above it that does.
pub(crate) struct MissingPath {
    /// The existing directory.
    pub(crate) above: ResolvedPath,
    /// The path, without a link on the way.
    pub(crate) path: PathBuf,
}

impl MissingPath {
    /// Looks for the nearest existing directory above the absolute `path`, which does not exist.
    ///
    /// # Errors
    /// `path` is a link to nothing or goes up from what does not exist; a part of it is no directory.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let (mut end, mut names) = (path, Vec::new());
        loop {
            // A link is there, and what it leads to is not.
            if fs::symlink_metadata(end).is_ok() {
                return Err(absent());
            }
            names.push(end.file_name().ok_or_else(absent)?);
            end = end.parent().ok_or_else(absent)?;
            match ResolvedPath::resolve(end) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                above => {
                    let above = above?;
                    if !above.metadata.is_dir() {
                        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
                    }
                    let path =
                        names.iter().rev().fold(above.source.path.clone(), |path, name| path.join(name));
                    return Ok(Self { above, path });
                }
            }
        }
    }

    /// Whether it lies in one of these directories: whoever may write there can create it.
    pub(crate) fn is_in(&self, directories: &[PathBuf]) -> bool {
        directories.iter().any(|directory| is_within(&self.path, directory))
    }

    /// Creates the directory, as mkdir(1) does without `-p`. Another process may have created it meanwhile.
    ///
    /// # Errors
    /// The directory above does not exist either, or cannot be written.
    pub(crate) fn create(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let parent = self.path.parent().unwrap_or(&self.path);
                let reason = match parent == self.above.source.path {
                    true => format!("it does not exist, and cannot be created: {}", words(&error)),
                    false => format!("it does not exist, nor does the directory for it, {}", shown(parent)),
                };
                Err(io::Error::new(error.kind(), reason))
            }
            _ => Ok(()),
        }
    }
}
