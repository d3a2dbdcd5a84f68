//! Files of a listening session, for its clients. Paths are those of the sandbox, and the calls have the
//! rights of a command, as for [`Session::read`](crate::session::Session::read) and the calls beside it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use kennel_helper::client_wire::Ask;
use serde::de::DeserializeOwned;

use crate::report::error::Error;
use crate::serve::client::Client;
use crate::serve::question::{Problem, Question, SentEntry, SentInfo};
use crate::session::files::stream::{FileEntry, FileInfo};
use crate::sys::path_text::PathText;

/// A new file of a session, which the client writes. It appears at its path with [`keep`](Self::keep).
/// Dropping it leaves nothing.
///
/// ```no_run
/// use std::io::Write;
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let new = kennel::client::Client::connect("agent-1")?.write("notes.txt", None)?;
/// new.file().write_all(b"remember the milk\n")?;
/// new.keep()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "without `keep`, nothing is written"]
pub struct NewFile {
    client: Client,
    path: PathBuf,
    file: File,
}

impl NewFile {
    /// The file, open for writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Moves the file into place.
    ///
    /// # Errors
    /// As [`Session::write`](crate::session::Session::write). The old file is unchanged.
    pub fn keep(self) -> Result<(), Error> {
        drop(self.file);
        self.client.ask(&Ask::Keep {}, &[])?;
        self.client.reply::<()>()?.map(drop).map_err(|problem| failed("write", &self.path, problem))
    }
}

/// # Files of a session
///
/// Paths are those of the sandbox, and the calls have the rights of a command.
impl Client {
    /// Opens a file for reading.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let notes = std::io::read_to_string(kennel::client::Client::connect("agent-1")?.read("notes.txt")?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] with the errno that a command would get; the session ends or does not answer.
    pub fn read(self, path: impl AsRef<Path>) -> Result<File, Error> {
        let (_, file) = self.about::<SentInfo>("read", path.as_ref(), |path| Question::Read { path })?;
        Ok(file.ok_or_else(|| self.gone())?.into())
    }

    /// Starts to write a file. `mode`: the permission bits of a file that does not exist yet.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(self, path: impl AsRef<Path>, mode: Option<u32>) -> Result<NewFile, Error> {
        let (_, file) = self.about::<()>("write", path.as_ref(), |path| Question::Write { path, mode })?;
        let file = file.ok_or_else(|| self.gone())?;
        Ok(NewFile { client: self, path: path.as_ref().to_owned(), file: file.into() })
    }

    /// The entries of a directory, sorted by name.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn list(self, path: impl AsRef<Path>) -> Result<Vec<FileEntry>, Error> {
        let (entries, _) =
            self.about::<Vec<SentEntry>>("list", path.as_ref(), |path| Question::List { path })?;
        Ok(entries.into_iter().map(FileEntry::from).collect())
    }

    /// Kind, size, mode and time of a file. Follows links.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn stat(self, path: impl AsRef<Path>) -> Result<FileInfo, Error> {
        Ok(self.about::<SentInfo>("look at", path.as_ref(), |path| Question::Stat { path })?.0.into())
    }

    /// Creates a directory. Its parent must exist.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn mkdir(self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.about("make directory", path.as_ref(), |path| Question::Mkdir { path }).map(|((), _)| ())
    }

    /// Removes a file, a link (not its target) or an empty directory.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn remove(self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.about("remove", path.as_ref(), |path| Question::Remove { path }).map(|((), _)| ())
    }

    fn about<T: DeserializeOwned>(
        &self,
        what: &'static str,
        path: &Path,
        question: impl FnOnce(PathText) -> Question,
    ) -> Result<(T, Option<OwnedFd>), Error> {
        let answered = self.reply_to(&question(PathText(path.to_owned())))?;
        answered.map_err(|problem| failed(what, path, problem))
    }
}

fn failed(what: &'static str, path: &Path, problem: Problem) -> Error {
    match problem.errno {
        Some(errno) => {
            let source = io::Error::from_raw_os_error(errno);
            Error::File { what, path: path.to_owned(), source, remedy: problem.hint }
        }
        None => problem.into(),
    }
}
