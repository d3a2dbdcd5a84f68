//! Reads and writes files in pieces. A written file appears only with `commit`; dropping the writer removes
//! it.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::FileStat;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::report::error::Error;
use crate::session::files::replace::{KeptAttributes, Replacement, TemporaryFile};
use crate::sys::inode::{FileKind, kind};
use crate::sys::mode::Mode;
use crate::sys::{blocking, dirfd};

/// A file of a session, open for reading; see [`Session::open_read`](crate::session::Session::open_read). It
/// stays the same file, even if others replace its path, and you can read it after the session has ended.
pub struct FileReader(File);

impl FileReader {
    pub(crate) fn new(file: fs::File) -> Self {
        Self(File::from_std(file))
    }

    pub(crate) async fn mode(&self) -> io::Result<u32> {
        Ok(self.0.metadata().await?.mode())
    }

    /// The size of the file now, in bytes.
    ///
    /// # Errors
    /// Errors of fstat(2).
    pub async fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata().await?.len())
    }
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader").finish_non_exhaustive()
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncSeek for FileReader {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(cx)
    }
}

/// A file of a session, open for writing; see [`Session::open_write`](crate::session::Session::open_write).
/// The old file stays in place until [`commit`](Self::commit). Dropping the writer leaves nothing.
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::AsyncWriteExt;
///
/// let mut file = session.open_write("out.csv").await?;
/// for number in 0..1000 {
///     file.write_all(format!("{number}\n").as_bytes()).await?;
/// }
/// file.commit().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "without a commit, nothing is written"]
pub struct FileWriter {
    file: File,
    written: u64,
    replacement: Replacement,
    path: PathBuf,
}

impl FileWriter {
    pub(crate) fn new(replacement: Replacement, file: fs::File, path: PathBuf) -> Self {
        Self { file: File::from_std(file), written: 0, replacement, path }
    }

    /// The new file, for another process that writes it.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Moves the file into place.
    ///
    /// # Errors
    /// [`Error::File`]. The old file is unchanged.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { mut file, replacement, path, .. } = self;
        let commit = async {
            file.flush().await?;
            let file = file.into_std().await;
            blocking(move || dirfd::without_capabilities(|| replacement.commit(&file))).await
        };
        commit.await.map_err(|error| failed("write", &path, error))
    }
}

impl fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The part of `bytes` that fits below the file size limit, after `written` bytes. tokio writes on its own
/// threads, where a write beyond the limit would end this program with SIGXFSZ.
///
/// # Errors
/// `EFBIG` if nothing fits.
fn within_limit(written: u64, bytes: &[u8]) -> io::Result<&[u8]> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    let room = usize::try_from(limit.saturating_sub(written)).unwrap_or(usize::MAX);
    match bytes.get(..room) {
        Some([]) if !bytes.is_empty() => Err(Errno::EFBIG.into()),
        Some(part) => Ok(part),
        None => Ok(bytes),
    }
}

/// Implements `AsyncWrite` with the fields `file` and `written`.
macro_rules! writes_to_file {
    ($($writer:ty),*) => {$(
        impl AsyncWrite for $writer {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                let bytes = within_limit(self.written, bytes)?;
                let polled = Pin::new(&mut self.file).poll_write(cx, bytes);
                if let Poll::Ready(Ok(count)) = &polled {
                    self.written += *count as u64;
                }
                polled
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.file).poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.file).poll_shutdown(cx)
            }
        }
    )*};
}

writes_to_file!(FileWriter, HostWriter);

/// A file of the host, written in the same way.
pub(crate) struct HostWriter {
    file: File,
    written: u64,
    temporary: TemporaryFile,
    name: OsString,
    /// What the replaced file has beside its contents.
    before: Option<KeptAttributes>,
}

impl HostWriter {
    /// `mode` is the mode of a new file; the umask of this program applies.
    pub(crate) fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::EISDIR)?.to_owned();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = open(
            above,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            nix::sys::stat::Mode::empty(),
        )?;
        let is_file = fs::symlink_metadata(path).is_ok_and(|it| it.is_file());
        let before = is_file.then(|| KeptAttributes::of(&parent, &name)).transpose()?;
        // The temporary file must not be readable by more users than the file that it replaces.
        let first = if before.is_some() { 0o600 } else { mode };
        let (temporary, file) = TemporaryFile::create(parent, first)?;
        Ok(Self { file: File::from_std(file), written: 0, temporary, name, before })
    }

    pub(crate) async fn commit(self) -> io::Result<()> {
        let Self { mut file, temporary, name, before, .. } = self;
        file.flush().await?;
        let file = file.into_std().await;
        blocking(move || {
            if let Some(before) = before {
                before.give(&file)?;
            }
            temporary.rename(&file, &name)
        })
        .await
    }
}

/// What [`Session::stat`](crate::session::Session::stat) returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileInfo {
    /// The kind of the file.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits, as chmod(2) takes them.
    pub mode: Mode,
    /// When the contents last changed.
    pub modified: SystemTime,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEntry {
    /// The name: any bytes but a slash and NUL.
    pub name: OsString,
    /// The kind of the file. Links are not followed.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
}

/// What [`Session::details`](crate::session::Session::details) returns: a file as lstat(2) has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileDetails {
    /// Its name; empty for a path without one, such as `/`.
    pub name: OsString,
    /// Kind, size, mode and time, of a link itself.
    pub info: FileInfo,
    /// The id of its owner, as the host has it.
    pub uid: u32,
    /// The id of its group, as the host has it.
    pub gid: u32,
    /// Where a link points to, as readlink(2) says it.
    pub points_to: Option<PathBuf>,
}

impl FileDetails {
    pub(crate) fn new(name: OsString, stat: &FileStat, points_to: Option<PathBuf>) -> Self {
        Self { name, info: FileInfo::new(stat), uid: stat.st_uid, gid: stat.st_gid, points_to }
    }
}

impl FileInfo {
    pub(crate) fn new(stat: &FileStat) -> Self {
        let seconds = Duration::from_secs(stat.st_mtime.unsigned_abs());
        let whole =
            if stat.st_mtime < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
        let more = Duration::from_nanos(stat.st_mtime_nsec.unsigned_abs());
        Self {
            kind: kind(stat),
            size: stat.st_size.unsigned_abs(),
            mode: Mode::new(stat.st_mode),
            modified: whole.and_then(|whole| whole.checked_add(more)).unwrap_or(UNIX_EPOCH),
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl FileEntry {
    /// Whether it is a directory, and not a link to one.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

pub(crate) fn failed(what: &'static str, path: &Path, source: io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::EROFS) => Some(
            "change only what the policy grants writable, and no protected path; /tmp and HOME need tmp = \"session\"",
        ),
        Some(libc::EOPNOTSUPP) => Some("only regular files and directories work here: run a command instead"),
        Some(libc::EBUSY) => Some("it is a mount point: its own grant, or a parent of a protected path"),
        Some(libc::EFBIG) => {
            Some("read it in pieces; to write it, raise the file size limit of the program (ulimit -f)")
        }
        _ => None,
    };
    Error::File { what, path: path.to_owned(), source, remedy: remedy.map(Into::into) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").mode() & 0o777
    }

    #[tokio::test]
    async fn a_replacement_is_never_readable_by_more_users() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (secret, new) = (dir.path().join("secret"), dir.path().join("new"));
        fs::write(&secret, "").expect("a file");
        for closed in [0o600, 0o400, 0o751] {
            fs::set_permissions(&secret, fs::Permissions::from_mode(closed)).expect("ours");
            let mut writer = HostWriter::begin(&secret, 0o777).expect("begun");
            writer.write_all(b"x").await.expect("written");
            writer.flush().await.expect("written");
            let temporary = dir.path().join(&writer.temporary.name);
            assert_eq!(mode(&temporary), 0o600, "nobody else can read it");
            writer.commit().await.expect("in its place");
            assert_eq!(mode(&secret), closed);
        }
        let by_hand = dir.path().join("by hand");
        fs::write(&by_hand, "").expect("a file");
        HostWriter::begin(&new, 0o666).expect("begun").commit().await.expect("in its place");
        assert_eq!(mode(&new), mode(&by_hand), "as the umask has it");
    }
}
