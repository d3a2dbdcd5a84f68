//! Installs `kennel-exec` in the runtime directory. An existing file is used only if contents, owner, mode
//! and link count are right; otherwise it is replaced.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io, thread};

use kennel_helper::EXEC_IMAGE;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::caller::runtime::Directory;
use crate::report::error::listen::ListenError;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::dirfd::{is_temporary_name, under_temporary_name};
use crate::sys::inode::{FileKind, kind};

const NAME: &str = "kennel-exec";

/// Seconds after which a temporary file counts as abandoned.
const STALE: i64 = 24 * 60 * 60;

/// How often to check, 1 ms apart, whether a forked child still holds the new file open for writing.
const CHECKS: u32 = 200;

/// Installs the client and returns its path.
pub(crate) fn install(directory: &Directory) -> Result<PathBuf, ListenError> {
    let path = directory.path().join(NAME);
    if !is_installed(directory) {
        put(directory).map_err(ListenError::io("install the client", &path))?;
    }
    sweep(directory);
    Ok(path)
}

/// Removes temporary files of processes that were killed while they wrote the client. Recent files may still
/// be in use.
fn sweep(directory: &Directory) {
    let is_old = |name: &OsStr| {
        let age = dirfd::stat(directory, name).ok().flatten().map(|stat| stat.st_mtime);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        age.is_some_and(|age| age.saturating_add(STALE) < i64::try_from(now).unwrap_or(0))
    };
    let Ok(names) = fs::read_dir(directory.own_path("")) else { return };
    for name in names.flatten().map(|entry| entry.file_name()) {
        if is_temporary_name(&name) && is_old(&name) {
            let _ = unlinkat(directory, &*name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Whether this version of the client is installed and no other user can change it.
fn is_installed(directory: &Directory) -> bool {
    let look = || -> io::Result<bool> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = File::from(openat(directory, NAME, flags, Mode::empty())?);
        let stat = fstat(&file)?;
        let is_ours = stat.st_uid == geteuid().as_raw()
            && kind(&stat) == FileKind::File
            && stat.st_mode & 0o7777 == 0o700
            && stat.st_nlink == 1
            && u64::try_from(stat.st_size) == Ok(EXEC_IMAGE.len() as u64);
        let mut bytes = Vec::with_capacity(EXEC_IMAGE.len());
        Ok(is_ours
            && file.take(stat.st_size.unsigned_abs()).read_to_end(&mut bytes)? > 0
            && bytes == EXEC_IMAGE)
    };
    look().unwrap_or(false)
}

/// Writes the client under a temporary name, and renames it once it can be executed.
fn put(directory: &Directory) -> io::Result<()> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let create = |name: &OsStr| openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
    let (temporary, file) = under_temporary_name(create)?;
    let put = write(directory, &temporary, file.into())
        .and_then(|()| renameat(directory, &*temporary, directory, NAME).map_err(io::Error::from));
    if put.is_err() {
        let _ = unlinkat(directory, &*temporary, UnlinkatFlags::NoRemoveDir);
    }
    put
}

fn write(directory: &Directory, temporary: &OsStr, mut file: File) -> io::Result<()> {
    sys::without_sigxfsz(|| file.write_all(EXEC_IMAGE))?;
    fchmod(&file, Mode::S_IRWXU)?;
    drop(file);
    let readable = openat(directory, temporary, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    wait_for_no_writer(&readable);
    Ok(())
}

/// Waits until no process has the file open for writing: until then execve(2) fails with ETXTBSY. A child
/// that another thread just forked has copies of our descriptors until it calls execve(2).
fn wait_for_no_writer(file: &OwnedFd) {
    for _ in 0..CHECKS {
        if sys::has_no_writer(file.as_fd()) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
