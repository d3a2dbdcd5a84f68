//! Reads a configuration file that somebody else may have put there: a link, a pipe, a file of any size.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;

use kennel::internal::writers::{Writer, another_writer};

use crate::process::descriptor::path_of;

/// The largest file, in bytes. Policy files have the same limit.
const LARGEST: u64 = 1 << 20;

/// The text of a configuration file.
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Whether the file may be a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Followed,
    Refused,
}

/// Who may have written the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Any,
    /// The caller or root, and nobody else.
    Caller,
}

/// Reads a file. `None`: there is none. Where none is, this is one system call.
///
/// # Errors
/// It is no regular file of at most 1 MiB in UTF-8, cannot be read, or belongs to somebody else.
pub(super) fn read(path: &Path, links: Links, owner: Owner) -> io::Result<Option<ConfigFile>> {
    let no_link = if links == Links::Refused { libc::O_NOFOLLOW } else { 0 };
    // Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | no_link;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_kept_out(path) => return Ok(None),
        Err(error) if links == Links::Refused && error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(io::Error::other("it is a symbolic link"));
        }
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if owner == Owner::Caller {
        check_writers(&file, &found)?;
    }
    let mut bytes = Vec::new();
    if u64::try_from(file.take(LARGEST + 1).read_to_end(&mut bytes)?).is_ok_and(|size| size > LARGEST) {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))?;
    Ok(Some(ConfigFile { path: path.to_owned(), text }))
}

/// Whether another user keeps the caller out of a directory on the way, as after setpriv(1) with the HOME of
/// root. Then nothing there is the caller's. A directory of the caller does not count: a command may have
/// closed it.
fn is_kept_out(path: &Path) -> bool {
    let closed = path.ancestors().find_map(|above| Some((above, fs::metadata(above).ok()?)));
    closed.is_some_and(|(above, found)| above != path && found.uid() != geteuid().as_raw())
}

/// Refuses what another user than the caller and root can write.
fn check_writers(file: &File, found: &fs::Metadata) -> io::Result<()> {
    match another_writer(&path_of(file.as_raw_fd()), found, &[0, geteuid().as_raw()]) {
        None => Ok(()),
        Some(Writer::User(uid)) if uid == found.uid() => {
            Err(io::Error::other(format!("it belongs to uid {uid}")))
        }
        Some(who) => Err(io::Error::other(format!("{who} can write it"))),
    }
}
