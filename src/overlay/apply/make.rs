//! Making what a command has made: a file or link under a name of ours, which then takes its place; a directory.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, readlinkat},
    sys::stat::{FileStat, Mode, fchmod, fstat, futimens},
};
use xattr::FileExt;

use super::{
    Commit, Refusal,
    inode::{self, mode, set_attributes, times, without_attribute},
    record::Opened,
};
use crate::{
    below::{FileKind, Identity, change_mode, kind, own_path},
    overlay::{
        compare::{self, ordinary},
        ledger::State,
        mark::OPAQUE,
        place::Temporary,
        scan::Found,
        tree::{self, Tree},
    },
};

/// The access list of a file, as the kernel keeps it.
const ACCESS_LIST: &str = "system.posix_acl_access";

impl Commit<'_> {
    /// A copy of what a command wrote, under a name of ours.
    pub(super) fn file(
        &self,
        path: &Path,
        upper: &FileStat,
        lower: Option<&FileStat>,
        parent: OwnedFd,
    ) -> Result<Temporary, Refusal> {
        let ours = File::from(self.changed.read(path)?);
        let (temporary, file) = Temporary::file(parent)?;
        inode::copy(&ours, &file)?;
        for (name, value) in compare::attributes(&ours.into())? {
            file.set_xattr(name, &value)?;
        }
        if let Some(lower) = lower.filter(|lower| kind(lower) == FileKind::File) {
            match self.access_list(path, lower)? {
                Some(list) => file.set_xattr(ACCESS_LIST, &list)?,
                // That of its directory, which the one that is there has not got.
                None => drop(without_attribute(file.remove_xattr(ACCESS_LIST))?),
            }
        }
        fchmod(&file, mode(upper))?;
        let [accessed, modified] = times(upper);
        futimens(&file, &accessed, &modified)?;
        Ok(temporary)
    }

    /// The access list of a file of the workspace, which it keeps.
    fn access_list(&self, path: &Path, lower: &FileStat) -> Result<Option<Vec<u8>>, Refusal> {
        let held = self.workspace.open(path, OFlag::O_PATH)?;
        if Identity::of_held(&held)? != Identity::of(lower) {
            return Err(Refusal::Conflict);
        }
        let list = xattr::get_deref(own_path(&held), ACCESS_LIST);
        Ok(without_attribute(list)?.flatten())
    }

    pub(super) fn link(&self, path: &Path, upper: &FileStat, parent: OwnedFd) -> Result<Temporary, Refusal> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let to = readlinkat(self.changed.tree.parent(path)?, name)?;
        let temporary = Temporary::link(parent, &to)?;
        let [accessed, modified] = times(upper);
        temporary.set_times(&accessed, &modified)?;
        Ok(temporary)
    }

    /// Makes a directory. It stays open to us until all that lies in it is done.
    pub(super) fn new_directory(
        &mut self,
        found: &Found,
        upper: &FileStat,
        parent: OwnedFd,
        state: &mut State,
    ) -> Result<(), Refusal> {
        let path = &*found.path;
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let (temporary, held) = Temporary::directory(parent)?;
        let ours = self.changed.list(path)?;
        set_attributes(&compare::attributes(&ours)?, &held)?;
        temporary.put(name, path, found.lower.as_ref(), state)?;
        // What is taken out of it from now on must not shine through from the workspace. Without the mark, it would
        // until it is looked up again.
        let _ = File::from(ours).set_xattr(OPAQUE, b"y");
        self.made.insert(path.to_owned(), Identity::of_held(&held)?);
        self.modes.push(Opened::of(path, held, mode(upper))?);
        Ok(())
    }

    /// Attributes and mode of a directory that is there.
    pub(super) fn directory(
        &mut self,
        path: &Path,
        (upper, lower): (&FileStat, &FileStat),
        parent: &OwnedFd,
    ) -> Result<(), Refusal> {
        let name = Path::new(path.file_name().ok_or(Errno::EINVAL)?);
        let held = Tree { root: parent.as_fd() }.open(name, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
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
        // Not yet: what lies in it comes first.
        self.modes.push(Opened::of(path, held, last)?);
        Ok(())
    }

    /// All of them, or none.
    fn attributes(&self, path: &Path, held: &OwnedFd) -> Result<(), Refusal> {
        let theirs = tree::open_for_listing(held)?;
        let wanted = compare::attributes(&self.changed.list(path)?)?;
        let before = compare::attributes(&theirs)?;
        if let Err(error) = set_attributes(&wanted, &theirs) {
            let _ = set_attributes(&before, &theirs);
            return Err(error.into());
        }
        Ok(())
    }
}
