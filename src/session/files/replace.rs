//! Writing that is seen whole or not at all: a temporary file beside the place, renamed onto it.

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
use crate::sys::entries::under_temporary_name;
use crate::sys::inode::{FileKind, Identity, is_regular, kind};

/// Bits of a mode that a written file can have; the others would make it more than a file.
const ORDINARY: u32 = 0o777;

/// A file under a name of ours, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    parent: OwnedFd,
    pub(crate) name: OsString,
    is_there: bool,
}

impl TemporaryFile {
    /// Makes one in `parent`, of that mode less the file mask of this program.
    pub(crate) fn make(parent: OwnedFd, mode: u32) -> io::Result<(Self, File)> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(mode & ORDINARY);
        let (name, file) = under_temporary_name(|name| openat(&parent, name, flags, mode))?;
        Ok((Self { parent, name, is_there: true }, File::from(file)))
    }

    /// Renames it to `name`, in the same directory.
    ///
    /// # Errors
    /// `ESTALE` where something else has its name by now.
    pub(crate) fn rename(mut self, file: &File, name: &OsStr) -> io::Result<()> {
        let there = dirfd::stat(&self.parent, &self.name)?.ok_or(Errno::ENOENT)?;
        if Identity::of(&there) != Identity::of_held(file)? {
            return Err(Errno::ESTALE.into());
        }
        renameat(&self.parent, self.name.as_os_str(), &self.parent, name)?;
        self.is_there = false;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.is_there {
            // Who else removed it was faster.
            let _ = unlinkat(&self.parent, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A file of the sandbox that is being written anew.
#[derive(Debug)]
pub(crate) struct Replacement {
    temporary: TemporaryFile,
    place: FilePlace,
    /// The mode of what it replaces.
    mode: Option<u32>,
    visit: FileCall,
}

impl Replacement {
    /// Begins to write the file at an absolute `path`; `mode` is what a new one has, less the file mask of this program.
    pub(crate) fn begin(visit: FileCall, path: &Path, mode: u32) -> io::Result<(Self, File)> {
        let ends_in_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let place =
            FilePlace::behind_links(visit.root(), path)?.filter(|_| !ends_in_slash).ok_or(Errno::EISDIR)?;
        let before = place.stat()?;
        if before.is_some_and(|stat| kind(&stat) == FileKind::Directory) {
            return Err(Errno::EISDIR.into());
        }
        // A cover is refused as such, not as the device that it is.
        place.is_no_mount()?;
        // Whoever may not write there is told so only where somebody could.
        if fstatvfs(&place.parent)?.flags().contains(FsFlags::ST_RDONLY) {
            return Err(Errno::EROFS.into());
        }
        let mode_before = before.map(|stat| is_regular(&stat).map(|()| stat.st_mode)).transpose()?;
        refuse_watched(&visit, &place, Creation::File)?;
        if mode_before.is_some() {
            let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
            faccessat(&place.parent, place.name.as_os_str(), AccessFlags::W_OK, flags)?;
        }
        // Nobody reads it by a wider mode than the one it replaces.
        let first = if mode_before.is_some() { 0o600 } else { mode };
        let (temporary, file) = TemporaryFile::make(place.parent.try_clone()?, first)?;
        Ok((Self { temporary, place, mode: mode_before.map(|mode| mode & ORDINARY), visit }, file))
    }

    /// Puts it in its place.
    pub(crate) fn commit(self, file: &File) -> io::Result<()> {
        let Self { temporary, place, mode, visit } = self;
        if let Some(mode) = mode {
            fchmod(file, Mode::from_bits_truncate(mode))?;
        }
        place.is_no_mount()?;
        refuse_watched(&visit, &place, Creation::File)?;
        temporary.rename(file, &place.name)?;
        undo_watched(&visit, &place, Creation::File)
    }
}

/// # Errors
/// `EROFS` for a path where nothing may be made.
pub(crate) fn refuse_watched(visit: &FileCall, place: &FilePlace, making: Creation) -> io::Result<()> {
    match forbid::forbids(visit.watches(), place.parent.as_fd(), &place.name, making)? {
        true => Err(Errno::EROFS.into()),
        false => Ok(()),
    }
}

/// To be called when something was made: somebody inside may have moved the directory around it to where it may not be.
/// Who does so later is a command that still runs, after which everything there is undone.
///
/// # Errors
/// `EROFS`, and what was made is not there any more.
pub(crate) fn undo_watched(visit: &FileCall, place: &FilePlace, making: Creation) -> io::Result<()> {
    let refused = refuse_watched(visit, place, making);
    if refused.is_err() {
        recheck::log(&recheck::undo(visit.watches()));
    }
    refused
}
