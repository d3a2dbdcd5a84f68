//! Replaces a file atomically: writes a temporary file in the same directory and renames it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};

use crate::protect::forbid::Creation;
use crate::protect::{forbid, recheck};
use crate::session::files::calls::FilePlace;
use crate::session::view_fd::FileCall;
use crate::sys::dirfd;
use crate::sys::dirfd::under_temporary_name;
use crate::sys::inode::{FileKind, Identity, is_regular, kind};

/// The mode bits that a written file can have: no set-user-id, set-group-id or sticky bit.
const ORDINARY: u32 = 0o777;

/// A temporary file. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    parent: OwnedFd,
    pub(crate) name: OsString,
    is_named: bool,
}

impl TemporaryFile {
    /// Creates a file in `parent`. The umask of this program applies to `mode`.
    pub(crate) fn create(parent: OwnedFd, mode: u32) -> io::Result<(Self, File)> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(mode & ORDINARY);
        let (name, file) = under_temporary_name(|name| openat(&parent, name, flags, mode))?;
        Ok((Self { parent, name, is_named: true }, File::from(file)))
    }

    /// Renames the file to `name` in the same directory.
    ///
    /// # Errors
    /// `ESTALE` if another file has the temporary name now.
    pub(crate) fn rename(mut self, file: &File, name: &OsStr) -> io::Result<()> {
        let there = dirfd::stat(&self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        if Identity::of(&there) != Identity::of_held(file)? {
            return Err(Errno::ESTALE.into());
        }
        renameat(&self.parent, self.name.as_os_str(), &self.parent, name)?;
        self.is_named = false;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.is_named {
            // Another process may have removed it already.
            let _ = unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// The replacement of a file in the sandbox, not yet in place.
#[derive(Debug)]
pub(crate) struct Replacement {
    temporary: TemporaryFile,
    place: FilePlace,
    /// The mode of the replaced file.
    mode: Option<u32>,
    call: FileCall,
}

impl Replacement {
    /// Starts to write the file at the absolute `path`. `mode` is the mode of a new file; the umask of this program applies.
    pub(crate) fn begin(call: FileCall, path: &Path, mode: u32) -> io::Result<(Self, File)> {
        let ends_in_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let place =
            FilePlace::follow_links(call.root(), path)?.filter(|_| !ends_in_slash).ok_or(Errno::EISDIR)?;
        let before = place.stat()?;
        if before.is_some_and(|stat| kind(&stat) == FileKind::Directory) {
            return Err(Errno::EISDIR.into());
        }
        // Before the check of the kind: a masked file shows a device, but the reason is the mount.
        place.refuse_mount()?;
        // On a read-only mount the error is EROFS, also if the modes refuse the write.
        if fstatvfs(&place.parent)?.flags().contains(FsFlags::ST_RDONLY) {
            return Err(Errno::EROFS.into());
        }
        let mode_before = before.map(|stat| is_regular(&stat).map(|()| stat.st_mode)).transpose()?;
        refuse_watched(&call, &place, Creation::File)?;
        if mode_before.is_some() {
            let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
            faccessat(&place.parent, place.name.as_os_str(), AccessFlags::W_OK, flags)?;
        }
        // The temporary file must not be readable by more users than the file that it replaces.
        let first = if mode_before.is_some() { 0o600 } else { mode };
        let (temporary, file) = TemporaryFile::create(place.parent.try_clone()?, first)?;
        Ok((Self { temporary, place, mode: mode_before.map(|mode| mode & ORDINARY), call }, file))
    }

    /// Moves the replacement into place.
    pub(crate) fn commit(self, file: &File) -> io::Result<()> {
        let Self { temporary, place, mode, call } = self;
        if let Some(mode) = mode {
            fchmod(file, Mode::from_bits_truncate(mode))?;
        }
        place.refuse_mount()?;
        refuse_watched(&call, &place, Creation::File)?;
        temporary.rename(file, &place.name)?;
        undo_if_watched(&call, &place, Creation::File)
    }
}

/// Refuses a protected path.
///
/// # Errors
/// `EROFS`.
pub(crate) fn refuse_watched(call: &FileCall, place: &FilePlace, making: Creation) -> io::Result<()> {
    match forbid::forbids(call.watches(), place.parent.as_fd(), &place.name, making)? {
        true => Err(Errno::EROFS.into()),
        false => Ok(()),
    }
}

/// Undoes a change at a protected path. Call it after the change: meanwhile, a command may have moved the directory to a
/// protected path. If a command moves it later, Kennel undoes the change when that command ends.
///
/// # Errors
/// `EROFS`, and the new file is gone.
pub(crate) fn undo_if_watched(call: &FileCall, place: &FilePlace, making: Creation) -> io::Result<()> {
    let refused = refuse_watched(call, place, making);
    if refused.is_err() {
        recheck::log(&recheck::undo(call.watches()));
    }
    refused
}
