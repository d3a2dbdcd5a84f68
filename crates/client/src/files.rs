//! Files of a session: contents as they are, the rest as JSON.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::SystemTime;

use hyper::Method;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::error::Error;
use crate::server::encoded;
use crate::session::Session;

/// The largest file that [`Session::read`] reads into memory, in bytes: as a local session.
const MOST_READ: usize = 64 << 20;

/// # Files of a session
///
/// Paths are those of the sandbox, and must be UTF-8. A relative path starts at the directory of its
/// commands. The calls have the rights of a command.
///
/// ```no_run
/// # async fn example(session: kennel_client::Session) -> Result<(), kennel_client::Error> {
/// session.write("src/notes.txt", b"remember the milk\n").await?;
/// assert_eq!(session.read("src/notes.txt").await?, b"remember the milk\n");
/// for entry in session.list("src").await? {
///     println!("{:?} {} {}", entry.name, entry.is_dir(), entry.size);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Refused`] with 404 for what is not there, 403 for what a command may not do either, 400 for what
/// is of another kind, 507 for a full disk; [`Error::SessionLost`].
impl Session {
    /// Reads a whole file of at most 64 MiB.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; as described above.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let call = self.access().call(Method::GET, &files(path.as_ref())?);
        self.access().server.read(call, MOST_READ).await.map(Into::into)
    }

    /// Writes a whole file, and makes the directories above it. Others see the old file or the new one, never
    /// a part. An existing file keeps its permission bits.
    ///
    /// # Errors
    /// As described above. The old file is unchanged.
    pub async fn write(&self, path: impl AsRef<Path>, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        let call = self.access().call(Method::POST, &files(path.as_ref())?);
        let call = call.body("application/octet-stream", bytes.into());
        self.access().server.read(call, 1 << 20).await.map(|_| ())
    }

    /// The entries of a directory, sorted by name, without `.` and `..`.
    ///
    /// # Errors
    /// As described above.
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<FileEntry>, Error> {
        #[derive(Deserialize)]
        struct Listed {
            #[serde(default)]
            entries: Vec<FileEntry>,
        }
        let listed: Listed = self.filesystem("ListDir", json!({ "path": text(path.as_ref())? })).await?;
        Ok(listed.entries)
    }

    /// Kind, size, mode and time of a file. The kind of a link is that of its target, the rest its own.
    ///
    /// # Errors
    /// As described above.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<FileInfo, Error> {
        #[derive(Deserialize)]
        struct Found {
            entry: FileInfo,
        }
        let found: Found = self.filesystem("Stat", json!({ "path": text(path.as_ref())? })).await?;
        Ok(found.entry)
    }

    /// Creates a directory, and those above it.
    ///
    /// # Errors
    /// 409 if it is there; as described above.
    pub async fn mkdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.filesystem("MakeDir", json!({ "path": text(path.as_ref())? })).await.map(|_: Value| ())
    }

    /// Moves a file, a link or a directory, and replaces a file that is there.
    ///
    /// # Errors
    /// As described above.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let paths = json!({ "source": text(from.as_ref())?, "destination": text(to.as_ref())? });
        self.filesystem("Move", paths).await.map(|_: Value| ())
    }

    /// Removes a file, a link, or a directory with everything in it. It is no error that nothing is there.
    ///
    /// # Errors
    /// As described above.
    pub async fn remove(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.filesystem("Remove", json!({ "path": text(path.as_ref())? })).await.map(|_: Value| ())
    }

    async fn filesystem<T: serde::de::DeserializeOwned>(&self, call: &str, body: Value) -> Result<T, Error> {
        self.access().unary(&format!("/filesystem.Filesystem/{call}"), &body).await
    }
}

fn files(path: &Path) -> Result<String, Error> {
    Ok(format!("/files?path={}", encoded(text(path)?)))
}

/// A path or a word as JSON carries it.
pub(crate) fn text<T: AsRef<OsStr> + ?Sized>(word: &T) -> Result<&str, Error> {
    let word = word.as_ref();
    word.to_str().ok_or_else(|| Error::invalid(word.to_string_lossy(), "it must be UTF-8"))
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    #[serde(rename = "FILE_TYPE_FILE", alias = "file")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY", alias = "directory")]
    Directory,
    /// A symbolic link.
    #[serde(rename = "FILE_TYPE_SYMLINK", alias = "link")]
    Link,
    /// A FIFO, a socket or a device.
    #[serde(other)]
    Other,
}

/// What [`Session::stat`] returns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct FileInfo {
    /// The kind of the file.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Size in bytes.
    #[serde(deserialize_with = "size")]
    pub size: u64,
    /// Permission bits, as chmod(2) takes them.
    pub mode: u32,
    /// When the contents last changed.
    #[serde(rename = "modifiedTime", deserialize_with = "time")]
    pub modified: SystemTime,
}

impl FileInfo {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct FileEntry {
    /// Its name.
    #[serde(deserialize_with = "name")]
    pub name: OsString,
    /// The kind of the file; of a link, that of its target.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Size in bytes.
    #[serde(deserialize_with = "size")]
    pub size: u64,
}

impl FileEntry {
    /// Whether it is a directory, or a link to one.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// A name, without a way out of its directory.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OsString, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_name = !name.contains(['/', '\0']) && !matches!(&*name, "." | "..");
    if is_name { Ok(name.into()) } else { Err(serde::de::Error::custom("no name of a file")) }
}

/// 64-bit numbers are texts in this JSON.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}
