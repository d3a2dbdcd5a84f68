//! Creates what a command created: copies contents, attributes, modes and times of one file, link or
//! directory.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use io::SeekFrom::Start;
use io::{Read as _, Seek as _};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::{FileStat, Mode, UtimensatFlags, fchmod, fstat, futimens, utimensat};
use nix::sys::time::TimeSpec;
use xattr::FileExt;

use crate::overlay::apply::{Commit, Opened};
use crate::overlay::clock::modified;
use crate::overlay::compare::{ACCESS_LISTS, AccessLists, ordinary, without_attribute};
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::place::TemporaryEntry;
use crate::overlay::scan::ChangedEntry;
use crate::overlay::tree::OverlayTree;
use crate::overlay::{compare, tree};
use crate::report::change::Refusal;
use crate::sys;
use crate::sys::dirfd::change_mode;
use crate::sys::inode::{FileKind, Identity, kind};
use crate::sys::own_path;
use crate::sys::without_sigxfsz;

/// Gives a directory exactly these user attributes.
pub(crate) fn set_attributes(wanted: &[(OsString, Vec<u8>)], of: &OwnedFd) -> io::Result<()> {
    let file = File::from(of.try_clone()?);
    for (name, _) in compare::attributes(of)? {
        if !wanted.iter().any(|(other, _)| *other == name) {
            file.remove_xattr(name)?;
        }
    }
    wanted.iter().try_for_each(|(name, value)| file.set_xattr(name, value))
}

/// Gives a file or directory exactly these access lists.
fn set_access_lists(wanted: &AccessLists, of: &OwnedFd) -> io::Result<()> {
    let file = File::from(of.try_clone()?);
    for (name, list) in ACCESS_LISTS.iter().zip(wanted) {
        match list {
            Some(list) => file.set_xattr(name, list)?,
            None => drop(without_attribute(file.remove_xattr(name))?),
        }
    }
    Ok(())
}

pub(crate) fn mode(of: &FileStat) -> Mode {
    Mode::from_bits_truncate(of.st_mode & ordinary(of))
}

pub(crate) fn times(of: &FileStat) -> [TimeSpec; 2] {
    let (seconds, nanos) = modified(of);
    [TimeSpec::new(of.st_atime, of.st_atime_nsec), TimeSpec::new(seconds, nanos)]
}

impl TemporaryEntry {
    /// Sets the times of a link.
    pub(crate) fn set_times(&self, accessed: &TimeSpec, modified: &TimeSpec) -> nix::Result<()> {
        let (parent, name) = self.place();
        utimensat(parent, name, accessed, modified, UtimensatFlags::NoFollowSymlink)
    }
}

/// Copies a file and keeps its holes.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while let Some(start) = compare::data(from, at)?.filter(|&start| start < size) {
        let end = compare::hole(from, start)?.unwrap_or(size).min(size);
        without_sigxfsz(|| copy_range(from, to, start, end))?;
        at = end;
    }
    without_sigxfsz(|| to.set_len(size))
}

/// Copies one range of data. `io::copy` copies within the kernel where it can.
fn copy_range(mut from: &File, mut to: &File, start: u64, end: u64) -> io::Result<()> {
    from.seek(Start(start))?;
    to.seek(Start(start))?;
    io::copy(&mut from.take(end - start), &mut to).map(drop)
}

// A file or link is made under a temporary name, which then replaces the target; a directory is made empty.

impl Commit<'_> {
    /// Copies a file that a command wrote to a temporary name in `parent`.
    pub(crate) fn file(
        &self,
        path: &Path,
        upper: &FileStat,
        lower: Option<&FileStat>,
        parent: OwnedFd,
    ) -> Result<TemporaryEntry, Refusal> {
        let upper_file = File::from(self.changed.read(path)?);
        let (temporary, file) = TemporaryEntry::file(parent)?;
        copy(&upper_file, &file)?;
        let (upper_file, file) = (OwnedFd::from(upper_file), OwnedFd::from(file));
        set_attributes(&compare::attributes(&upper_file)?, &file)?;
        let own = compare::access_lists(&upper_file)?;
        if compare::has_own_lists(&upper_file, &own)? {
            set_access_lists(&own, &file)?;
        } else if let Some(lower) = lower.filter(|lower| kind(lower) == FileKind::File) {
            // The copy may have inherited a list from its directory. The file that it replaces may have
            // another.
            set_access_lists(&[self.access_list(path, lower)?, None], &file)?;
        }
        fchmod(&file, mode(upper))?;
        let [accessed, modified] = times(upper);
        futimens(&file, &accessed, &modified)?;
        Ok(temporary)
    }

    /// The access control list of a workspace file. The replacement keeps it.
    fn access_list(&self, path: &Path, lower: &FileStat) -> Result<Option<Vec<u8>>, Refusal> {
        let held = self.workspace.open(path, OFlag::O_PATH)?;
        if Identity::of_held(&held)? != Identity::of(lower) {
            return Err(Refusal::Conflict);
        }
        let list = xattr::get_deref(own_path(&held), ACCESS_LISTS[0]);
        Ok(without_attribute(list)?.flatten())
    }

    pub(crate) fn link(
        &self,
        path: &Path,
        upper: &FileStat,
        parent: OwnedFd,
    ) -> Result<TemporaryEntry, Refusal> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let to = readlinkat(self.changed.tree.parent(path)?, name)?;
        let temporary = TemporaryEntry::link(parent, &to)?;
        let [accessed, modified] = times(upper);
        temporary.set_times(&accessed, &modified)?;
        Ok(temporary)
    }

    /// Makes a directory. The caller keeps full access to it until everything below it is done.
    pub(crate) fn new_directory(
        &mut self,
        found: &ChangedEntry,
        upper: &FileStat,
        parent: OwnedFd,
        state: &mut LedgerState,
    ) -> Result<(), Refusal> {
        let path = &*found.path;
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let (temporary, held) = TemporaryEntry::directory(parent)?;
        let upper_directory = self.changed.list(path)?;
        set_attributes(&compare::attributes(&upper_directory)?, &held)?;
        let own = compare::access_lists(&upper_directory)?;
        if compare::has_own_lists(&upper_directory, &own)? {
            set_access_lists(&own, &held)?;
        }
        temporary.put(name, path, found.lower.as_ref(), state)?;
        // The overlay now has a lower directory here. Mark the upper one opaque, so that an entry removed
        // from it does not show the lower one.
        let _ = File::from(upper_directory).set_xattr(sys::OPAQUE, b"y");
        self.made.insert(path.to_owned(), Identity::of_held(&held)?);
        self.modes.push(Opened::new(path, held, mode(upper))?);
        Ok(())
    }

    /// Sets attributes and mode of an existing directory.
    pub(crate) fn directory(
        &mut self,
        path: &Path,
        upper: &FileStat,
        lower: &FileStat,
        parent: &OwnedFd,
    ) -> Result<(), Refusal> {
        let name = Path::new(path.file_name().ok_or(Errno::EINVAL)?);
        let held = OverlayTree { root: parent.as_fd() }.open(name, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let stat = fstat(&held)?;
        if (Identity::of(&stat), stat.st_mode) != (Identity::of(lower), lower.st_mode) {
            return Err(Refusal::Conflict);
        }
        let kept = lower.st_mode & 0o7777;
        let last = Mode::from_bits_truncate(kept & !ordinary(upper)) | mode(upper);
        let kept = Mode::from_bits_truncate(kept);
        change_mode(&held, kept | Mode::S_IRWXU)?;
        if let Err(refusal) = self.attributes(path, &held) {
            change_mode(&held, kept)?;
            return Err(refusal);
        }
        // The final mode comes after everything below is done.
        self.modes.push(Opened::new(path, held, last)?);
        Ok(())
    }

    /// Sets all attributes and access lists, or none.
    fn attributes(&self, path: &Path, held: &OwnedFd) -> Result<(), Refusal> {
        let directory = tree::open_for_listing(held)?;
        let upper = self.changed.list(path)?;
        let read = |of: &OwnedFd| Ok::<_, io::Error>((compare::attributes(of)?, compare::access_lists(of)?));
        let (wanted, before) = (read(&upper)?, read(&directory)?);
        let has_lists = compare::has_own_lists(&upper, &wanted.1)?;
        let set = |(attributes, lists): &(Vec<_>, AccessLists)| {
            set_attributes(attributes, &directory)?;
            if has_lists { set_access_lists(lists, &directory) } else { Ok(()) }
        };
        if let Err(error) = set(&wanted) {
            let _ = set(&before);
            return Err(error.into());
        }
        Ok(())
    }
}
