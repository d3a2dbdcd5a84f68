//! Finds files within the view of a session, and replaces them atomically: by a temporary file in the same
//! directory and a rename.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};
use xattr::FileExt as _;

use crate::caller::writers::ACCESS_LIST;
use crate::protect::forbid::Creation;
use crate::protect::{forbid, recheck};
use crate::session::files::view_fd::FileCall;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::dirfd::{MOST_LINKS, under_temporary_name};
use crate::sys::file_system::regular;
use crate::sys::file_system::stores;
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
    /// What the replaced file has beside its contents.
    before: Option<KeptAttributes>,
    call: FileCall,
}

impl Replacement {
    /// Starts to write the file at the absolute `path`. `mode` is the mode of a new file; the umask of this
    /// program applies.
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
        before.map(|stat| is_regular(&stat)).transpose()?;
        refuse_watched(&call, &place, Creation::File)?;
        if before.is_some() {
            let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
            faccessat(&place.parent, place.name.as_os_str(), AccessFlags::W_OK, flags)?;
        }
        // The temporary file must not be readable by more users than the file that it replaces.
        let first = if before.is_some() { 0o600 } else { mode };
        let (temporary, file) = TemporaryFile::create(place.parent.try_clone()?, first)?;
        let before = before.map(|_| KeptAttributes::of(&place.parent, &place.name)).transpose()?;
        Ok((Self { temporary, place, before, call }, file))
    }

    /// Moves the replacement into place.
    pub(crate) fn commit(self, file: &File) -> io::Result<()> {
        let Self { temporary, place, before, call } = self;
        if let Some(before) = before {
            before.give(file)?;
        }
        place.refuse_mount()?;
        refuse_watched(&call, &place, Creation::File)?;
        temporary.rename(file, &place.name)?;
        undo_if_watched(&call, &place, Creation::File)
    }
}

/// The most bytes of attributes that are kept.
const MOST_ATTRIBUTES: usize = 1 << 20;

/// What a replacement keeps of the file: its mode, user attributes and access list.
#[derive(Debug)]
pub(crate) struct KeptAttributes {
    mode: u32,
    attributes: Vec<(OsString, Vec<u8>)>,
}

impl KeptAttributes {
    /// Reads them of the regular file `name`.
    ///
    /// # Errors
    /// `EACCES` if it has attributes and the caller may not read the file; `E2BIG` if they are too long.
    pub(crate) fn of(parent: &OwnedFd, name: &OsStr) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let held = openat(parent, name, flags, Mode::empty())?;
        regular(&held)?;
        let mode = fstat(&held)?.st_mode & ORDINARY;
        let path = sys::own_path(&held);
        let names = match xattr::list_deref(&path) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
            names => Some(names?),
        };
        let is_kept = |name: &OsString| name.as_bytes().starts_with(b"user.") || name == ACCESS_LIST;
        let (mut attributes, mut bytes) = (Vec::new(), 0);
        for name in names.into_iter().flatten().filter(is_kept) {
            let Some(value) = xattr::get_deref(&path, &name)? else { continue };
            bytes += name.len() + value.len();
            if bytes > MOST_ATTRIBUTES {
                return Err(Errno::E2BIG.into());
            }
            attributes.push((name, value));
        }
        Ok(Self { mode, attributes })
    }

    /// Gives them to the new file.
    pub(crate) fn give(&self, file: &File) -> io::Result<()> {
        for (name, value) in &self.attributes {
            file.set_xattr(name, value)?;
        }
        if !self.attributes.iter().any(|(name, _)| name == ACCESS_LIST) {
            // The new file may have inherited one from its directory.
            match file.remove_xattr(ACCESS_LIST) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        // Last: with an access list, the mode holds its mask.
        Ok(fchmod(file, Mode::from_bits_truncate(self.mode))?)
    }
}

/// Refuses a protected path.
///
/// # Errors
/// `EROFS`.
pub(crate) fn refuse_watched(call: &FileCall, place: &FilePlace, making: Creation) -> io::Result<()> {
    if forbid::forbids(call.watches(), place.parent.as_fd(), &place.name, making)? {
        Err(Errno::EROFS.into())
    } else {
        Ok(())
    }
}

/// Undoes a change at a protected path. Call it after the change: meanwhile, a command may have moved the
/// directory to a protected path. If a command moves it later, Kennel undoes the change when that command
/// ends.
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

/// A name in an open directory. It stays in the same directory, even if others rename the directory.
#[derive(Debug)]
pub(crate) struct FilePlace {
    pub(crate) parent: OwnedFd,
    pub(crate) name: OsString,
}

impl FilePlace {
    /// The last name of a path, which need not exist; `None` if the path does not end in a name.
    pub(crate) fn find(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let parent = open(root, above, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        stores(&parent)?;
        Ok(Some(Self { parent, name: name.to_owned() }))
    }

    /// Like [`find`](Self::find), but follows links at the end of the path.
    pub(crate) fn follow_links(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Self>> {
        let mut path = PathBuf::from(path);
        for _ in 0..MOST_LINKS {
            let Some(place) = Self::find(root, &path)? else { return Ok(None) };
            let to = match readlinkat(&place.parent, place.name.as_os_str()) {
                Err(Errno::EINVAL | Errno::ENOENT) => return Ok(Some(place)),
                to => to?,
            };
            // An absolute target replaces the whole path.
            path = path.parent().unwrap_or(Path::new("/")).join(to);
        }
        Err(Errno::ELOOP.into())
    }

    /// The file of this name; `None` if there is none.
    pub(crate) fn stat(&self) -> io::Result<Option<FileStat>> {
        Ok(dirfd::stat(&self.parent, &self.name)?)
    }

    /// Refuses to replace or remove a mount point. The kernel refuses it only in the mount namespace of the
    /// mount; from this namespace, it would remove the mount.
    ///
    /// # Errors
    /// `EROFS` for a read-only mount, `EBUSY` for another one.
    pub(crate) fn refuse_mount(&self) -> io::Result<()> {
        let name = CString::new(self.name.as_bytes())?;
        let is_mount = match sys::is_mount_root(self.parent.as_fd(), &name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
            is_mount => is_mount?,
        };
        if !is_mount {
            return Ok(());
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mounted = openat(&self.parent, name.as_c_str(), flags, Mode::empty())?;
        let is_read_only = fstatvfs(mounted)?.flags().contains(FsFlags::ST_RDONLY);
        Err(if is_read_only { Errno::EROFS } else { Errno::EBUSY }.into())
    }
}

/// Opens a path in `root`. Links stay in `root`: openat2(2) with `RESOLVE_IN_ROOT`, Linux 5.6.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    dirfd::open(root, path, how)
}

/// Opens a regular file for reading. It never opens anything else, even if others replace the file meanwhile.
/// A lease on the file (fcntl(2), `F_SETLEASE`) does not block the thread.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let held = open(root, path, OFlag::O_PATH)?;
    regular(&held)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(&sys::own_path(&held), flags, Mode::empty())?)
}

/// The mode of new files; the umask of this program applies.
pub(crate) const NEW_FILE: u32 = 0o666;
