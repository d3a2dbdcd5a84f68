//! Files of a session, for the program that has the session. Paths are the sandbox's own; what a command could not read
//! or write is not read or written here.
//!
//! Nothing is ever looked up by a path of the host: see `walk` for how far a path can lead, `replace` for how a file is
//! written, `below::rights` for whose rights these calls have. The blocking work is done on threads of the runtime.

pub(crate) mod calls;
pub(crate) mod replace;
pub(crate) mod stream;

use std::io;
use std::path::Path;

use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWriteExt, BufReader};

use crate::report::error::Error;
use crate::session::Session;
use crate::session::files::stream::{FileEntry, FileInfo, FileReader, FileWriter};
use crate::session::view_fd::FileCall;
use crate::sys::dirfd;

/// Larger files are not read into memory, in bytes.
const MOST_READ: u64 = 64 << 20;

/// Of what is copied that much is in memory, in bytes.
const CHUNK: usize = 1 << 20;

/// The mode of new files, less the file mask of this program.
const NEW_FILE: u32 = 0o666;

/// # Files of a session
///
/// Paths are those of the sandbox, relative ones from where its commands start. Links lead where they would lead inside,
/// never out of the view: `/etc/passwd` is the sandbox's. Masked files are not visible; read-only files give `EROFS`, and so do
/// protected paths, even those that do not exist. FIFOs, sockets, devices, `/proc` and the like are
/// refused with `EOPNOTSUPP`.
///
/// Calls have the rights of a command, so not root's rights over files of other users. Files are owned by the caller, like
/// those that commands make. `/tmp`, `HOME` and other directories that are private to each command are empty and read-only here,
/// unless the policy shares them ([`Policy::tmp`](crate::policy::Policy::tmp)).
///
/// A call that is dropped leaves no temporary file. What it was about to do may still be done.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Policy, Profile, Session};
///
/// let session = Session::prepare(&Policy::profile(Profile::RepoWrite, ".")).await?;
/// session.write("notes.txt", b"remember the milk\n").await?;
/// assert_eq!(session.read("notes.txt").await?, b"remember the milk\n");
/// for entry in session.list(".").await? {
///     println!("{:?} {} {}", entry.name, entry.is_dir(), entry.size);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::File`] with the path and the errno that a command would have got, and everything that keeps a command from
/// starting, such as [`Error::SessionEnded`].
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled; if that cannot start a blocking thread.
impl Session {
    /// Reads a whole file, of 64 MiB at most.
    ///
    /// # Errors
    /// `EFBIG` for a larger one; [`Session::open_read`] has no limit.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.call("read", path.as_ref(), |visit, path| calls::read(&visit, path, MOST_READ)).await
    }

    /// Opens a file to read it piece by piece.
    ///
    /// # Errors
    /// As described above.
    pub async fn open_read(&self, path: impl AsRef<Path>) -> Result<FileReader, Error> {
        let file =
            self.call("read", path.as_ref(), |visit, path| calls::open_file(visit.root(), path)).await?;
        Ok(FileReader::of(file.into()))
    }

    /// Writes a whole file, new or replacing an old one, whose mode it keeps without set-user-id and the like. Others see
    /// the old file or the new one, never a part. Other hard links keep the old contents.
    ///
    /// # Errors
    /// As described above; the old file is as it was.
    pub async fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        let bytes = bytes.into();
        self.call("write", path.as_ref(), move |visit, path| calls::write(visit, path, &bytes)).await
    }

    /// As [`Session::write`], piece by piece: the file appears with [`FileWriter::commit`]; without that, nothing is left of
    /// it.
    ///
    /// # Errors
    /// As described above.
    pub async fn open_write(&self, path: impl AsRef<Path>) -> Result<FileWriter, Error> {
        self.writer("write", path.as_ref(), NEW_FILE).await
    }

    /// Copies a file of the host, whose path is followed as the host has it, to `path` in the sandbox. Answers its size
    /// in bytes. The mode is as with [`Session::write`]; a new file has that of the host's.
    ///
    /// # Errors
    /// [`Error::Io`] if the host's file cannot be read; as described above.
    pub async fn copy_in(&self, host: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<u64, Error> {
        let host = host.as_ref().to_owned();
        let opened = blocking(move || calls::open_host(&host)).await;
        let (file, mode) = opened.map_err(Error::io("open the file to copy"))?;
        let mut writer = self.writer("copy to", path.as_ref(), mode).await?;
        let copied = copy(tokio::fs::File::from_std(file), &mut writer).await;
        let copied = copied.map_err(|error| failed("copy to", path.as_ref(), error))?;
        writer.commit().await?;
        Ok(copied)
    }

    /// Copies a file of the sandbox to a path of the host, which is followed as the host has it but for a link at its
    /// end: that is replaced. Answers its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the host's file cannot be written; as described above.
    pub async fn copy_out(&self, path: impl AsRef<Path>, host: impl AsRef<Path>) -> Result<u64, Error> {
        let mut reader = self.open_read(path.as_ref()).await?;
        let write = Error::io("write the copy on the host");
        let mut writer = match calls::host_writer(&reader, host.as_ref().to_owned()).await {
            Ok(writer) => writer,
            Err(error) => return Err(write(error)),
        };
        let copied = match copy(&mut reader, &mut writer).await {
            Ok(copied) => copied,
            Err(error) => return Err(write(error)),
        };
        writer.commit().await.map_err(write)?;
        Ok(copied)
    }

    /// What is in a directory, by name. Without `.` and `..`.
    ///
    /// # Errors
    /// `E2BIG` if there are more than 100,000 names; as described above.
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<FileEntry>, Error> {
        self.call("list", path.as_ref(), |visit, path| calls::list(&visit, path)).await
    }

    /// What lies at a path, or where its links lead.
    ///
    /// # Errors
    /// As described above.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<FileInfo, Error> {
        self.call("look at", path.as_ref(), |visit, path| calls::stat(&visit, path)).await
    }

    /// Makes a directory. Its parents must exist.
    ///
    /// # Errors
    /// As described above.
    pub async fn mkdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.call("make directory", path.as_ref(), |visit, path| calls::mkdir(&visit, path)).await
    }

    /// Removes a file, a link (not what it leads to) or an empty directory.
    ///
    /// # Errors
    /// As described above.
    pub async fn remove(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.call("remove", path.as_ref(), |visit, path| calls::remove(&visit, path)).await
    }

    async fn writer(&self, what: &'static str, path: &Path, mode: u32) -> Result<FileWriter, Error> {
        let begin = move |visit, path: &Path| replace::Replacement::begin(visit, path, mode);
        let (replacement, file) = self.call(what, path, begin).await?;
        Ok(FileWriter::of(replacement, file, path.to_owned()))
    }

    /// Does `act` with the view and the absolute path, on a thread that may block, with the rights of a command.
    async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        path: &Path,
        act: impl FnOnce(FileCall, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let visit = self.live().visit().await?;
        if path.as_os_str().is_empty() {
            return Err(failed(what, path, Errno::ENOENT.into()));
        }
        let absolute = visit.absolute(path);
        let done = blocking(move || dirfd::of_a_command(|| act(visit, &absolute))).await;
        done.map_err(|error| failed(what, path, error))
    }
}

/// Does `act` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Through memory, piece by piece.
async fn copy(
    from: impl AsyncRead + Unpin,
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> io::Result<u64> {
    let copied = tokio::io::copy_buf(&mut BufReader::with_capacity(CHUNK, from), to).await?;
    to.flush().await?;
    Ok(copied)
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::EROFS) => Some(
            "only what the policy grants writable can be changed, and no protected path; /tmp and HOME with tmp = \
             \"session\" only",
        ),
        Some(libc::EOPNOTSUPP) => {
            Some("only regular files and directories can be used: run a command for it")
        }
        Some(libc::EBUSY) => {
            Some("it is a mount point: a grant of its own, or on the way to a protected path")
        }
        Some(libc::EFBIG) if what == "read" => Some("read it piece by piece"),
        Some(libc::EFBIG) => Some("raise the limit on the size of files (ulimit -f) of the program"),
        _ => None,
    };
    Error::File { what, path: path.to_owned(), source, remedy: remedy.map(str::to_owned) }
}
