//! Lets the caller read and write files of a session. Paths are those of the sandbox, and the calls have the
//! rights of a command.
//!
//! No call looks up a path on the host: `calls` resolves paths within the view of the session, `replace`
//! writes files, and `sys::dirfd` drops the rights of root. The blocking work runs on blocking threads of the
//! runtime.

pub(crate) mod calls;
pub(crate) mod replace;
pub(crate) mod stream;
pub(crate) mod view_fd;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use tokio::io::{AsyncRead, AsyncWriteExt, BufReader};

use crate::report::error::Error;
use crate::session::Session;
use crate::session::files::replace::{NEW_FILE, open_file};
use crate::session::files::stream::{FileDetails, FileEntry, FileInfo, FileReader, FileWriter, failed};
use crate::session::files::view_fd::FileCall;
use crate::sys::{blocking, dirfd};

/// The largest file that [`Session::read`] reads into memory, in bytes.
const MOST_READ: u64 = 64 << 20;

/// The buffer of a copy, in bytes.
const CHUNK: usize = 1 << 20;

/// # Files of a session
///
/// Paths are those of the sandbox. A relative path starts at the working directory of its commands. Links
/// lead where they lead for a command, never out of the view: `/etc/passwd` is the file of the sandbox.
/// Masked files are not visible. Writing a read-only file gives `EROFS`, and so does a protected path, even
/// one that does not exist. FIFOs, sockets, devices, `/proc` and similar file systems give `EOPNOTSUPP`.
///
/// Calls have the rights of a command: even root has no rights over files of other users. The caller owns new
/// files, as it owns those that commands create. `/tmp`, `HOME` and other directories that are private to
/// each command are empty and read-only here, unless the policy shares them
/// ([`Policy::tmp`](crate::policy::Policy::tmp)).
///
/// A dropped call leaves no temporary file. It may still take effect.
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
/// [`Error::File`] with the path and the errno that a command would get, and everything that keeps a command
/// from starting, such as [`Error::SessionEnded`].
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled, or if the runtime cannot start a blocking thread.
impl Session {
    /// Reads a whole file of at most 64 MiB.
    ///
    /// # Errors
    /// `EFBIG` for a larger file; [`Session::open_read`] has no limit.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.call("read", path.as_ref(), |call, path| calls::read(&call, path, MOST_READ)).await
    }

    /// Opens a file to read it in pieces.
    ///
    /// # Errors
    /// As described above.
    pub async fn open_read(&self, path: impl AsRef<Path>) -> Result<FileReader, Error> {
        let file = self.call("read", path.as_ref(), |call, path| open_file(call.root(), path)).await?;
        Ok(FileReader::new(file.into()))
    }

    /// Writes a whole file. It replaces an existing file and keeps its permission bits, user attributes and
    /// access list, but no set-user-id, set-group-id or sticky bit. Others see the old file or the new one,
    /// never a part. Other hard links keep the old contents.
    ///
    /// # Errors
    /// As described above. The old file is unchanged.
    pub async fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        let bytes = bytes.into();
        self.call("write", path.as_ref(), move |call, path| calls::write(call, path, &bytes)).await
    }

    /// Like [`Session::write`], in pieces: the file appears with [`FileWriter::commit`]. Without a commit,
    /// nothing is left.
    ///
    /// # Errors
    /// As described above.
    pub async fn open_write(&self, path: impl AsRef<Path>) -> Result<FileWriter, Error> {
        self.writer("write", path.as_ref(), NEW_FILE).await
    }

    /// Copies a file of the host to `path` in the sandbox and returns its size in bytes. The path on the host
    /// is an ordinary path of this program. An existing file keeps its mode as with [`Session::write`]; a new
    /// file gets the mode of the host's file.
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

    /// Copies a file of the sandbox to the host and returns its size in bytes. The path on the host is an
    /// ordinary path of this program, but a link at its end is replaced, not followed.
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

    /// The entries of a directory, sorted by name, without `.` and `..`.
    ///
    /// # Errors
    /// `E2BIG` if there are more than 100,000 names; as described above.
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<FileEntry>, Error> {
        self.call("list", path.as_ref(), |call, path| calls::list(&call, path)).await
    }

    /// Kind, size, mode and time of a file. Follows links.
    ///
    /// # Errors
    /// As described above.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<FileInfo, Error> {
        self.call("look at", path.as_ref(), |call, path| calls::stat(&call, path)).await
    }

    /// What lstat(2) tells about a file: of a link, not of its target.
    ///
    /// # Errors
    /// As described above.
    pub async fn details(&self, path: impl AsRef<Path>) -> Result<FileDetails, Error> {
        self.call("look at", path.as_ref(), |call, path| calls::details(&call, path)).await
    }

    /// The entries of a directory with their details, sorted by name, without `.` and `..`.
    ///
    /// # Errors
    /// `E2BIG` if there are more than 100,000 names; as described above.
    pub async fn list_details(&self, path: impl AsRef<Path>) -> Result<Vec<FileDetails>, Error> {
        self.call("list", path.as_ref(), |call, path| calls::list_details(&call, path)).await
    }

    /// Moves a file, a link (not its target) or a directory, and replaces a file that is there: rename(2).
    /// The parent of `to` must exist.
    ///
    /// # Errors
    /// `EXDEV` if the two paths are in different grants; `ENOTEMPTY` if `to` is a directory that is not
    /// empty; as described above.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let to = to.as_ref().to_owned();
        let rename = move |call: FileCall, from: &Path| {
            let to = call.absolute(&to);
            calls::rename(&call, from, &to)
        };
        self.call("move", from.as_ref(), rename).await
    }

    /// Creates a directory. Its parent must exist.
    ///
    /// # Errors
    /// As described above.
    pub async fn mkdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.call("make directory", path.as_ref(), |call, path| calls::mkdir(&call, path)).await
    }

    /// Removes a file, a link (not its target) or an empty directory.
    ///
    /// # Errors
    /// As described above.
    pub async fn remove(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.call("remove", path.as_ref(), |call, path| calls::remove(&call, path)).await
    }

    /// Opens a file for reading, as it is, with what [`stat`](Self::stat) tells.
    pub(crate) async fn open_file(&self, path: &Path) -> Result<(OwnedFd, FileInfo), Error> {
        let open = |call: FileCall, path: &Path| {
            let file = open_file(call.root(), path)?;
            let info = FileInfo::new(&fstat(&file)?);
            Ok((file, info))
        };
        self.call("read", path, open).await
    }

    pub(crate) async fn writer(
        &self,
        what: &'static str,
        path: &Path,
        mode: u32,
    ) -> Result<FileWriter, Error> {
        let begin = move |call, path: &Path| replace::Replacement::begin(call, path, mode);
        let (replacement, file) = self.call(what, path, begin).await?;
        Ok(FileWriter::new(replacement, file, path.to_owned()))
    }

    /// Runs `act` on a blocking thread, with the rights of a command, the view and the absolute path.
    async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        path: &Path,
        act: impl FnOnce(FileCall, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let call = self.live().file_call().await?;
        if path.as_os_str().is_empty() {
            return Err(failed(what, path, Errno::ENOENT.into()));
        }
        let absolute = call.absolute(path);
        let done = blocking(move || dirfd::without_capabilities(|| act(call, &absolute))).await;
        done.map_err(|error| failed(what, path, error))
    }
}

/// Copies through a buffer.
async fn copy(
    from: impl AsyncRead + Unpin,
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> io::Result<u64> {
    let copied = tokio::io::copy_buf(&mut BufReader::with_capacity(CHUNK, from), to).await?;
    to.flush().await?;
    Ok(copied)
}
