//! Applies the entries of an archive to the directory of a new layer, in the form of overlayfs with
//! `userxattr`.
//!
//! Two things decide how: nothing may be written outside of that directory, and overlayfs must show what
//! docker shows. Where an entry depends on the layers below, they are looked at, and the layer belongs to
//! them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Whence, linkat, lseek, mkfifoat, symlinkat};

use crate::image::archive::{Archive, ArchiveEntry, EntryKind, Piece, relative};
use crate::image::extension::{Attribute, FileTime};
use crate::image::fault::Fault;
use crate::image::limits::{Dropped, LayerNote};
use crate::image::new_layer::{HeldDirectory, KEPT_BITS, NewLayer, settle};
use crate::image::tree::{self, LayerFile, LowerEntry};
use crate::report::error::image::EntryRefusal;
use crate::sys::dirfd::change_mode;
use crate::sys::inode::{FileKind, kind};

/// Whiteouts begin with this, and marks of AUFS with it twice.
const WHITEOUT: &[u8] = b".wh.";
const MARK: &[u8] = b".wh..wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

const SET_ID_BITS: u32 = 0o6000;

const BUFFER: usize = 256 << 10;

/// What applying an archive has shown.
#[derive(Debug, Default)]
pub(crate) struct ApplySummary {
    /// Whether the layers below were looked at.
    pub(crate) depends_on_lower: bool,
    pub(crate) files: u64,
    pub(crate) notes: Vec<LayerNote>,
    /// The mode of the layer's own directory, which it does not have yet.
    pub(crate) root_mode: u32,
}

/// Applies one archive.
pub(crate) struct Applier<'a> {
    layer: NewLayer<'a>,
    notes: BTreeMap<Dropped, u64>,
    buffer: Vec<u8>,
}

impl<'a> Applier<'a> {
    pub(crate) fn new(layer: NewLayer<'a>) -> Self {
        Self { layer, notes: BTreeMap::new(), buffer: vec![0; BUFFER] }
    }

    /// Applies all entries, and then the modes of directories.
    pub(crate) fn apply<R: Read>(mut self, archive: &mut Archive<R>) -> Result<ApplySummary, Fault> {
        let below = self.layer.files;
        while let Some(entry) = archive.next()? {
            self.layer.count()?;
            self.entry(&entry, archive)?;
        }
        archive.name.clear();
        let root_mode = self.layer.finish()?;
        let note = |(dropped, count)| LayerNote { dropped, count };
        Ok(ApplySummary {
            depends_on_lower: self.layer.depends_on_lower,
            files: self.layer.files - below,
            notes: self.notes.into_iter().map(note).collect(),
            root_mode,
        })
    }

    fn entry<R: Read>(&mut self, entry: &ArchiveEntry, archive: &mut Archive<R>) -> Result<(), Fault> {
        let path = relative(&entry.name)?;
        let Some(name) = path.file_name() else { return self.root(entry) };
        let above = path.parent().unwrap_or(Path::new(""));
        let begins = |part: &OsStr, with: &[u8]| part.as_bytes().starts_with(with);
        if above.iter().any(|part| begins(part, MARK)) {
            return Ok(());
        }
        if above.iter().any(|part| begins(part, WHITEOUT)) {
            return Err(EntryRefusal::Whiteout.into());
        }
        if begins(name, MARK) {
            return match name.as_bytes() == OPAQUE_MARK {
                true => {
                    let held = self.layer.directory(above, entry.modified)?;
                    // A link has nothing in it; what it leads to stays.
                    if held.path == above { self.layer.hide_lower(&held) } else { Ok(()) }
                }
                false => Ok(()),
            };
        }
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(EntryRefusal::Whiteout.into());
            }
            let held = self.layer.directory(above, entry.modified)?;
            return self.layer.whiteout(&held, OsStr::from_bytes(hidden));
        }
        let held = self.layer.directory(above, entry.modified)?;
        match entry.kind {
            EntryKind::Directory => self.named_directory(entry, &held, name),
            EntryKind::File => self.file(entry, archive, &held, name),
            EntryKind::Link => self.link(entry, &held, name),
            EntryKind::HardLink => self.hard_link(entry, &held, name),
            EntryKind::Fifo => self.fifo(entry, &held, name),
            EntryKind::Device => {
                self.note(Dropped::Devices);
                if let Some(file) = LayerFile::at(&*held.directory, name)? {
                    self.layer.remove(&held, name, file)?;
                }
                Ok(tree::make_whiteout(&*held.directory, name)?)
            }
        }
    }

    // Directories.

    fn root(&mut self, entry: &ArchiveEntry) -> Result<(), Fault> {
        if entry.kind != EntryKind::Directory {
            return Err(EntryRefusal::Root.into());
        }
        let held = self.layer.root();
        self.describe(entry, &held)
    }

    fn named_directory(
        &mut self,
        entry: &ArchiveEntry,
        above: &HeldDirectory,
        name: &OsStr,
    ) -> Result<(), Fault> {
        let held = match LayerFile::at(&*above.directory, name)? {
            Some(LayerFile::Directory) => self.layer.enter(above, name)?,
            Some(file) => {
                self.layer.remove(above, name, file)?;
                // What the lower layers have there was hidden already.
                let held = self.layer.make_directory(above, name)?;
                self.layer.hide_lower(&held)?;
                held
            }
            None => self.layer.make_directory(above, name)?,
        };
        self.describe(entry, &held)
    }

    /// Gives a directory what its entry says.
    fn describe(&mut self, entry: &ArchiveEntry, held: &HeldDirectory) -> Result<(), Fault> {
        let mode = self.mode(entry);
        tree::clear_attributes(&*held.directory).map_err(Fault::Write)?;
        self.attributes(entry, &held.directory)?;
        if let Some(state) = self.layer.state(held) {
            (state.mode, state.modified) = (mode, entry.modified);
        }
        Ok(())
    }

    // Other files.

    fn file<R: Read>(
        &mut self,
        entry: &ArchiveEntry,
        archive: &mut Archive<R>,
        above: &HeldDirectory,
        name: &OsStr,
    ) -> Result<(), Fault> {
        self.layer.make_room(above, name)?;
        let mut file = create(&above.directory, name)?;
        let whole = [Piece { offset: 0, length: entry.length }];
        for piece in entry.pieces.as_deref().unwrap_or(&whole) {
            if entry.pieces.is_some() {
                file.seek(SeekFrom::Start(piece.offset)).map_err(Fault::Write)?;
            }
            let mut left = piece.length;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                let buffer = self.buffer.get_mut(..most).unwrap_or_default();
                let count = archive.read(buffer)?;
                let read = buffer.get(..count).filter(|read| !read.is_empty());
                let read = read.ok_or(Fault::Entry(EntryRefusal::Sparse))?;
                file.write_all(read).map_err(Fault::Write)?;
                left -= u64::try_from(count).unwrap_or(left);
            }
        }
        if entry.pieces.is_some() {
            file.set_len(entry.length).map_err(Fault::Write)?;
        }
        self.attributes(entry, &file)?;
        let mode = self.mode(entry);
        settle(&file, mode, entry.modified)
    }

    fn link(&mut self, entry: &ArchiveEntry, above: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
        if entry.target.is_empty() || entry.target.contains(&0) {
            return Err(EntryRefusal::LinkTarget.into());
        }
        self.layer.make_room(above, name)?;
        symlinkat(OsStr::from_bytes(&entry.target), &*above.directory, name)?;
        self.note_attributes(entry);
        Ok(tree::set_time_at(&*above.directory, name, entry.modified)?)
    }

    fn fifo(&mut self, entry: &ArchiveEntry, above: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
        self.layer.make_room(above, name)?;
        self.note_attributes(entry);
        let mode = self.mode(entry);
        make_fifo(above, name, mode, entry.modified)
    }

    fn hard_link(&mut self, entry: &ArchiveEntry, above: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
        // As for symbolic links, an absolute target begins at the root of the image.
        let slashes = entry.target.iter().take_while(|byte| **byte == b'/').count();
        let target = relative(entry.target.get(slashes..).unwrap_or_default());
        let target = target.map_err(|refusal| match refusal {
            EntryRefusal::ParentComponent | EntryRefusal::NoName => EntryRefusal::HardLinkOut,
            refusal => refusal,
        })?;
        let file_name = target.file_name().ok_or(EntryRefusal::HardLinkDirectory)?;
        let from = self.layer.directory(target.parent().unwrap_or(Path::new("")), entry.modified)?;
        match LayerFile::at(&*from.directory, file_name)? {
            Some(LayerFile::Directory) => return Err(EntryRefusal::HardLinkDirectory.into()),
            Some(LayerFile::Whiteout) => return Err(EntryRefusal::HardLinkLost.into()),
            Some(_) => {}
            None => {
                let lower =
                    self.layer.lower(&from.path.join(file_name))?.ok_or(EntryRefusal::HardLinkLost)?;
                self.copy_up(&lower, &from, file_name)?;
            }
        }
        if (&from.path, file_name) == (&above.path, name) {
            return Ok(());
        }
        self.layer.make_room(above, name)?;
        // Without AT_SYMLINK_FOLLOW, a link itself gets the new name.
        match linkat(&*from.directory, file_name, &*above.directory, name, AtFlags::empty()) {
            // The target was in a directory that the link replaces.
            Err(Errno::ENOENT) => Err(EntryRefusal::HardLinkLost.into()),
            linked => Ok(linked?),
        }
    }

    /// Copies a file of the layers below to its own name in this layer, as overlayfs does before it links
    /// one.
    fn copy_up(&mut self, lower: &LowerEntry, to: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
        self.layer.count()?;
        let modified = tree::time_of(&lower.stat);
        let mode = lower.stat.st_mode & KEPT_BITS;
        match lower.file() {
            LayerFile::Directory => return Err(EntryRefusal::HardLinkDirectory.into()),
            LayerFile::Link => {
                symlinkat(lower.target()?.as_os_str(), &*to.directory, name)?;
                return Ok(tree::set_time_at(&*to.directory, name, modified)?);
            }
            _ if kind(&lower.stat) != FileKind::File => return make_fifo(to, name, mode, modified),
            _ => {}
        }
        let mut from = File::from(lower.open(OFlag::O_RDONLY).map_err(|errno| match errno {
            Errno::EACCES => Fault::Entry(EntryRefusal::HardLinkUnreadable),
            errno => errno.into(),
        })?);
        let mut file = create(&to.directory, name)?;
        self.copy(&mut from, &mut file)?;
        let attributes = tree::attributes_of(&from).map_err(Fault::Write)?;
        tree::set_attributes(&file, attributes.iter()).map_err(Fault::Write)?;
        settle(&file, mode, modified)
    }

    /// Copies data and leaves holes out.
    fn copy(&mut self, from: &mut File, to: &mut File) -> Result<(), Fault> {
        let length = from.metadata().map_err(Fault::Write)?.len();
        let mut end = 0;
        loop {
            let data = match lseek(&*from, end, Whence::SeekData) {
                Err(Errno::ENXIO) => break,
                data => data?,
            };
            end = lseek(&*from, data, Whence::SeekHole)?;
            let offset = SeekFrom::Start(data.unsigned_abs());
            from.seek(offset).map_err(Fault::Write)?;
            to.seek(offset).map_err(Fault::Write)?;
            let mut piece = Read::take(&*from, (end - data).unsigned_abs());
            loop {
                let count = piece.read(&mut self.buffer).map_err(Fault::Write)?;
                let Some(read) = self.buffer.get(..count).filter(|read| !read.is_empty()) else { break };
                self.layer.budget.spend(count)?;
                to.write_all(read).map_err(Fault::Write)?;
            }
        }
        to.set_len(length).map_err(Fault::Write)
    }

    // What is left out.

    fn note(&mut self, dropped: Dropped) {
        *self.notes.entry(dropped).or_default() += 1;
    }

    fn mode(&mut self, entry: &ArchiveEntry) -> u32 {
        if entry.mode & SET_ID_BITS != 0 {
            self.note(Dropped::SetIdBits);
        }
        entry.mode & KEPT_BITS
    }

    /// Sets the attributes that are kept, and counts the others.
    fn attributes(&mut self, entry: &ArchiveEntry, file: impl AsFd) -> Result<(), Fault> {
        let is_kept = |attribute: &&Attribute| tree::is_kept(&attribute.name);
        for attribute in entry.attributes.iter().filter(|it| !is_kept(it)) {
            self.note(match attribute.name.as_slice() {
                b"security.capability" => Dropped::FileCapabilities,
                name if name.starts_with(tree::OF_OVERLAY) => Dropped::OverlayAttributes,
                _ => Dropped::Attributes,
            });
        }
        tree::set_attributes(file, entry.attributes.iter().filter(is_kept)).map_err(Fault::Write)
    }

    /// Links and FIFOs have no attributes of users.
    fn note_attributes(&mut self, entry: &ArchiveEntry) {
        entry.attributes.iter().for_each(|_| self.note(Dropped::Attributes));
    }
}

/// Makes a file that does not exist. Its owner may write it until it is settled.
fn create(directory: &OwnedFd, name: &OsStr) -> Result<File, Fault> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

fn make_fifo(above: &HeldDirectory, name: &OsStr, mode: u32, modified: FileTime) -> Result<(), Fault> {
    mkfifoat(&*above.directory, name, Mode::S_IRUSR | Mode::S_IWUSR)?;
    tree::set_time_at(&*above.directory, name, modified)?;
    let held =
        openat(&*above.directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(change_mode(&held, Mode::from_bits_truncate(mode))?)
}
