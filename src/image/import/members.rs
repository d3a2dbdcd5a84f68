//! Where the files of an image are: in a directory, or in an archive that is read by offsets.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive::{Archive, Part};
use super::layout::{lacks, path_of};
use crate::image::digest::Digest;
use crate::image::manifest::{Descriptor, MOST_DOCUMENT};
use crate::report::error::import::ImportError;

/// The files of an image.
#[derive(Debug)]
pub(super) enum Members {
    Directory(PathBuf),
    Archive(Archive),
}

impl Members {
    /// Opens a file. `None`: there is none.
    ///
    /// # Errors
    /// It is no regular file, or cannot be opened.
    pub(super) fn open(&self, name: &str) -> Result<Option<Part>, ImportError> {
        match self {
            Self::Archive(archive) => Ok(archive.open(name)),
            Self::Directory(top) => {
                let path = top.join(name);
                open(&path).and_then(|file| file.map(Part::whole).transpose()).map_err(read(&path))
            }
        }
    }

    /// Reads a description. `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(super) fn document(&self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        self.open(name)?.map(|part| self.text(name, part)).transpose()
    }

    fn text(&self, name: &str, part: Part) -> Result<Vec<u8>, ImportError> {
        if part.len() > MOST_DOCUMENT {
            let reason = "it is larger than 4 MiB".to_owned();
            return Err(ImportError::Document { document: name.to_owned(), reason });
        }
        let mut text = Vec::new();
        part.take(MOST_DOCUMENT).read_to_end(&mut text).map_err(read(Path::new(name)))?;
        Ok(text)
    }

    /// Reads a description by its digest, and checks that. `document` names it.
    ///
    /// # Errors
    /// It is not there, or has another digest.
    pub(super) fn blob(&self, document: &str, descriptor: &Descriptor) -> Result<Vec<u8>, ImportError> {
        let name = path_of(descriptor);
        let text = self.document(&name)?.ok_or_else(|| lacks(document, &name))?;
        check(&name, descriptor.digest, &text)?;
        Ok(text)
    }
}

/// Compares a text with its digest.
pub(super) fn check(member: &str, expected: Digest, text: &[u8]) -> Result<(), ImportError> {
    let found = Digest::of(text);
    match found == expected {
        true => Ok(()),
        false => Err(ImportError::Digest {
            member: member.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
    }
}

/// Opens a regular file, without waiting for the writer of a FIFO. `None`: there is no such file.
fn open(path: &Path) -> io::Result<Option<Arc<File>>> {
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(Some(Arc::new(file)))
}

/// The error about a file that cannot be read.
pub(super) fn read(path: &Path) -> impl Fn(io::Error) -> ImportError + use<> {
    let path = path.to_owned();
    move |source| ImportError::Read { path: path.clone(), source }
}
