//! Applies the entries of an archive to the directory of a new layer, in the form of overlayfs with `userxattr`.
//!
//! Two things decide how: nothing may be written outside of that directory, and overlayfs must show what docker
//! shows. Where an entry depends on the layers below, they are looked at, and the layer belongs to them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Whence, linkat, lseek, mkfifoat, symlinkat};

use crate::image::archive::{Archive, ArchiveEntry, Attribute, EntryKind, FileTime, Piece, relative};
use crate::image::fault::Fault;
use crate::image::limits::{Dropped, LayerNote};
use crate::image::tree::{self, LayerFile, LowerEntry, LowerLayers};
use crate::report::error::image::EntryRefusal;
use crate::sys::dirfd::{DIRECTORY, MOST_LINKS, change_mode};
use crate::sys::inode::{FileKind, kind};

/// Whiteouts begin with this, and marks of AUFS with it twice.
const WHITEOUT: &[u8] = b".wh.";
const MARK: &[u8] = b".wh..wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

/// The mode of a directory that no layer names.
const DEFAULT_MODE: u32 = 0o755;
/// The permission bits that are kept, with the sticky bit.
const KEPT_BITS: u32 = 0o1777;
const SET_ID_BITS: u32 = 0o6000;

/// The most memory for the paths of directories, in bytes.
const MOST_PATH_BYTES: usize = 512 << 20;

const BUFFER: usize = 256 << 10;

/// What the image has taken so far, and may take.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) size: AtomicU64,
    pub(crate) max_size: u64,
    pub(crate) max_files: u64,
}

impl Budget {
    /// Counts bytes.
    pub(crate) fn spend(&self, bytes: usize) -> Result<(), Fault> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let before = self.size.fetch_add(bytes, Relaxed);
        if before.saturating_add(bytes) > self.max_size { Err(Fault::Size(self.max_size)) } else { Ok(()) }
    }
}

/// What applying an archive has shown.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Whether the layers below were looked at.
    pub(crate) depends_on_lower: bool,
    pub(crate) files: u64,
    pub(crate) notes: Vec<LayerNote>,
    /// The mode of the layer's own directory, which it does not have yet.
    pub(crate) root_mode: u32,
}

/// What a directory gets when all else is done. Until then, its owner may do all in it.
#[derive(Clone, Copy, Debug)]
struct DirectoryState {
    mode: u32,
    modified: FileTime,
    opaque: bool,
}

/// The path of a directory with NUL between its components. So comparing bytes puts parents before their children,
/// and nothing else between them. [`Path`] compares so too, but a hundred times as slowly when paths are long.
type DirectoryKey = Vec<u8>;

fn key(path: &Path) -> DirectoryKey {
    path.as_os_str().as_bytes().iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
}

/// An open directory of the new layer. The root has an empty path.
#[derive(Clone, Debug)]
struct Held {
    path: PathBuf,
    directory: Rc<OwnedFd>,
}

/// A layer that is being made.
pub(crate) struct Applier<'a> {
    root: Rc<OwnedFd>,
    lower: &'a LowerLayers,
    budget: &'a Budget,
    /// Every directory of the layer, parents before children.
    directories: BTreeMap<DirectoryKey, DirectoryState>,
    path_bytes: usize,
    any_opaque: bool,
    /// The directory of the last entry, if no link led to it.
    last: Option<Held>,
    notes: BTreeMap<Dropped, u64>,
    depends_on_lower: bool,
    /// Entries so far, with those of the layers below.
    files: u64,
    buffer: Vec<u8>,
}

impl<'a> Applier<'a> {
    /// Applies to an empty directory. `files` counts the entries of the layers below.
    pub(crate) fn new(root: OwnedFd, lower: &'a LowerLayers, budget: &'a Budget, files: u64) -> Self {
        let state = DirectoryState { mode: DEFAULT_MODE, modified: FileTime::default(), opaque: false };
        Self {
            root: Rc::new(root),
            lower,
            budget,
            directories: [(DirectoryKey::new(), state)].into(),
            path_bytes: 0,
            any_opaque: false,
            last: None,
            notes: BTreeMap::new(),
            depends_on_lower: false,
            files,
            buffer: vec![0; BUFFER],
        }
    }

    /// Applies all entries, and then the modes of directories.
    pub(crate) fn apply<R: Read>(mut self, archive: &mut Archive<R>) -> Result<Applied, Fault> {
        let below = self.files;
        while let Some(entry) = archive.next()? {
            self.count()?;
            self.entry(&entry, archive)?;
        }
        archive.name.clear();
        let root_mode = self.finish()?;
        let note = |(dropped, count)| LayerNote { dropped, count };
        Ok(Applied {
            depends_on_lower: self.depends_on_lower,
            files: self.files - below,
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
                    let held = self.directory(above, entry.modified)?;
                    // A link has nothing in it; what it leads to stays.
                    if held.path == above { self.hide_lower(&held) } else { Ok(()) }
                }
                false => Ok(()),
            };
        }
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(EntryRefusal::Whiteout.into());
            }
            let held = self.directory(above, entry.modified)?;
            return self.whiteout(&held, OsStr::from_bytes(hidden));
        }
        let held = self.directory(above, entry.modified)?;
        match entry.kind {
            EntryKind::Directory => self.named_directory(entry, &held, name),
            EntryKind::File => self.file(entry, archive, &held, name),
            EntryKind::Link => self.link(entry, &held, name),
            EntryKind::HardLink => self.hard_link(entry, &held, name),
            EntryKind::Fifo => self.fifo(entry, &held, name),
            EntryKind::Device => {
                self.note(Dropped::Devices);
                if let Some(file) = LayerFile::at(&*held.directory, name)? {
                    self.remove(&held, name, file)?;
                }
                Ok(tree::make_whiteout(&*held.directory, name)?)
            }
        }
    }

    /// Counts a file.
    fn count(&mut self) -> Result<(), Fault> {
        self.files += 1;
        if self.files > self.budget.max_files { Err(Fault::Files(self.budget.max_files)) } else { Ok(()) }
    }

    // Directories.

    fn root(&mut self, entry: &ArchiveEntry) -> Result<(), Fault> {
        if entry.kind != EntryKind::Directory {
            return Err(EntryRefusal::Root.into());
        }
        let held = Held { path: PathBuf::new(), directory: Rc::clone(&self.root) };
        self.describe(entry, &held)
    }

    fn named_directory(&mut self, entry: &ArchiveEntry, above: &Held, name: &OsStr) -> Result<(), Fault> {
        let held = match LayerFile::at(&*above.directory, name)? {
            Some(LayerFile::Directory) => self.enter(above, name)?,
            Some(file) => {
                self.remove(above, name, file)?;
                // What the lower layers have there was hidden already.
                let held = self.make_directory(above, name)?;
                self.hide_lower(&held)?;
                held
            }
            None => self.make_directory(above, name)?,
        };
        self.describe(entry, &held)
    }

    /// Gives a directory what its entry says.
    fn describe(&mut self, entry: &ArchiveEntry, held: &Held) -> Result<(), Fault> {
        let mode = self.mode(entry);
        tree::clear_attributes(&*held.directory).map_err(Fault::Write)?;
        self.attributes(entry, &held.directory)?;
        if let Some(state) = self.directories.get_mut(&key(&held.path)) {
            (state.mode, state.modified) = (mode, entry.modified);
        }
        Ok(())
    }

    fn make_directory(&mut self, above: &Held, name: &OsStr) -> Result<Held, Fault> {
        mkdirat(&*above.directory, name, Mode::S_IRWXU)?;
        let path = above.path.join(name);
        self.path_bytes += path.as_os_str().len();
        if self.path_bytes > MOST_PATH_BYTES {
            return Err(Fault::Archive("the names of its directories take more than 512 MiB"));
        }
        let state = DirectoryState { mode: DEFAULT_MODE, modified: FileTime::default(), opaque: false };
        self.directories.insert(key(&path), state);
        self.enter(above, name)
    }

    /// Makes a directory opaque.
    fn hide_lower(&mut self, held: &Held) -> Result<(), Fault> {
        tree::make_opaque(&*held.directory).map_err(Fault::Write)?;
        if let Some(state) = self.directories.get_mut(&key(&held.path)) {
            state.opaque = true;
        }
        self.any_opaque = true;
        Ok(())
    }

    /// Opens a directory in another one.
    fn enter(&self, above: &Held, name: &OsStr) -> Result<Held, Fault> {
        let directory = Rc::new(tree::open(&*above.directory, Path::new(name), OFlag::O_RDONLY | DIRECTORY)?);
        Ok(Held { path: above.path.join(name), directory })
    }

    /// Opens a directory of the new layer.
    fn open(&self, path: PathBuf) -> Result<Held, Fault> {
        let directory = Rc::new(tree::open(&*self.root, &path, OFlag::O_RDONLY | DIRECTORY)?);
        Ok(Held { path, directory })
    }

    /// The directory of the new layer that `path` leads to in the merged tree. Makes what is missing of it as the
    /// layers below have it.
    fn directory(&mut self, path: &Path, modified: FileTime) -> Result<Held, Fault> {
        if let Some(last) = self.last.as_ref().filter(|last| last.path.as_os_str() == path.as_os_str()) {
            return Ok(last.clone());
        }
        match tree::open(&*self.root, path, OFlag::O_RDONLY | DIRECTORY) {
            Ok(directory) => {
                let held = Held { path: path.to_owned(), directory: Rc::new(directory) };
                self.last = Some(held.clone());
                Ok(held)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => self.walk(path, modified),
            Err(errno) => Err(errno.into()),
        }
    }

    fn walk(&mut self, path: &Path, modified: FileTime) -> Result<Held, Fault> {
        let reversed = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
        let (mut left, mut links) = (reversed(path), 0);
        let mut held = self.open(PathBuf::new())?;
        while let Some(part) = left.pop() {
            if part == ".." {
                if !held.path.pop() {
                    return Err(EntryRefusal::LinkOut.into());
                }
                held = self.open(held.path)?;
                continue;
            }
            let target = match self.step(&held, &part, modified)? {
                Step::Into(next) => {
                    held = next;
                    continue;
                }
                Step::Link(target) => target,
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(EntryRefusal::TooManyLinks.into());
            }
            let target = Path::new(&target);
            if target.is_absolute() {
                held = self.open(PathBuf::new())?;
            }
            left.extend(reversed(target).into_iter().filter(|part| part != "/" && part != "."));
        }
        Ok(held)
    }

    /// One step of a walk: into a directory, which is made if it is missing, or a link to follow.
    fn step(&mut self, held: &Held, part: &OsStr, modified: FileTime) -> Result<Step, Fault> {
        match LayerFile::at(&*held.directory, part)? {
            Some(LayerFile::Directory) => return Ok(Step::Into(self.enter(held, part)?)),
            Some(LayerFile::Link) => return Ok(Step::Link(readlinkat(&*held.directory, part)?)),
            Some(LayerFile::Other) => return Err(EntryRefusal::NotDirectory.into()),
            Some(LayerFile::Whiteout) => {
                self.remove(held, part, LayerFile::Whiteout)?;
                let next = self.implied_directory(held, part, modified)?;
                self.hide_lower(&next)?;
                return Ok(Step::Into(next));
            }
            None => {}
        }
        let Some(lower) = self.lower(&held.path.join(part))? else {
            return Ok(Step::Into(self.implied_directory(held, part, modified)?));
        };
        match lower.file() {
            LayerFile::Link => Ok(Step::Link(lower.target()?)),
            LayerFile::Directory => {
                let next = self.implied_directory(held, part, tree::time_of(&lower.stat))?;
                if let Some(state) = self.directories.get_mut(&key(&next.path)) {
                    state.mode = lower.stat.st_mode & KEPT_BITS;
                }
                let below = lower.open(OFlag::O_PATH | DIRECTORY)?;
                let attributes = tree::attributes_of(&below).map_err(unsearchable)?;
                tree::set_attributes(&*next.directory, attributes.iter()).map_err(Fault::Write)?;
                Ok(Step::Into(next))
            }
            _ => Err(EntryRefusal::NotDirectory.into()),
        }
    }

    /// Makes a directory that the archive does not name.
    fn implied_directory(&mut self, above: &Held, name: &OsStr, modified: FileTime) -> Result<Held, Fault> {
        self.count()?;
        let held = self.make_directory(above, name)?;
        if let Some(state) = self.directories.get_mut(&key(&held.path)) {
            state.modified = modified;
        }
        Ok(held)
    }

    /// What the layers below show at a path of the new layer that has no link in it.
    fn lower(&mut self, path: &Path) -> Result<Option<LowerEntry>, Fault> {
        let is_opaque = |path| self.directories.get(&key(path)).is_some_and(|state| state.opaque);
        if self.any_opaque && path.ancestors().skip(1).any(is_opaque) {
            return Ok(None);
        }
        self.depends_on_lower = true;
        self.lower.find(path).map_err(unsearchable)
    }

    // Other files.

    /// Removes what the new layer has at a name.
    fn remove(&mut self, above: &Held, name: &OsStr, file: LayerFile) -> Result<(), Fault> {
        tree::remove(above.directory.as_fd(), name, file).map_err(Fault::Write)?;
        if file == LayerFile::Directory {
            self.last = None;
            let path = key(&above.path.join(name));
            let is_within = |at: &DirectoryKey| {
                at.strip_prefix(path.as_slice()).is_some_and(|rest| matches!(rest, [] | [0, ..]))
            };
            let from = self.directories.range(path.clone()..).map(|(at, _)| at);
            let gone: Vec<DirectoryKey> = from.take_while(|at| is_within(at)).cloned().collect();
            for at in gone {
                self.path_bytes -= at.len();
                self.directories.remove(&at);
            }
        }
        Ok(())
    }

    /// Removes what the new layer has at a name, so that a file can be made there.
    fn make_room(&mut self, above: &Held, name: &OsStr) -> Result<(), Fault> {
        match LayerFile::at(&*above.directory, name)? {
            Some(file) => self.remove(above, name, file),
            None => Ok(()),
        }
    }

    /// Hides what the layers below have at a name. What this layer itself has there stays, wherever it stands in the
    /// archive.
    fn whiteout(&mut self, above: &Held, name: &OsStr) -> Result<(), Fault> {
        match LayerFile::at(&*above.directory, name)? {
            None => Ok(tree::make_whiteout(&*above.directory, name)?),
            Some(LayerFile::Directory) => {
                let held = self.enter(above, name)?;
                self.hide_lower(&held)
            }
            // It hides them itself.
            Some(_) => Ok(()),
        }
    }

    fn file<R: Read>(
        &mut self,
        entry: &ArchiveEntry,
        archive: &mut Archive<R>,
        above: &Held,
        name: &OsStr,
    ) -> Result<(), Fault> {
        self.make_room(above, name)?;
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

    fn link(&mut self, entry: &ArchiveEntry, above: &Held, name: &OsStr) -> Result<(), Fault> {
        if entry.target.is_empty() || entry.target.contains(&0) {
            return Err(EntryRefusal::LinkTarget.into());
        }
        self.make_room(above, name)?;
        symlinkat(OsStr::from_bytes(&entry.target), &*above.directory, name)?;
        self.note_attributes(entry);
        Ok(tree::set_time_at(&*above.directory, name, entry.modified)?)
    }

    fn fifo(&mut self, entry: &ArchiveEntry, above: &Held, name: &OsStr) -> Result<(), Fault> {
        self.make_room(above, name)?;
        self.note_attributes(entry);
        let mode = self.mode(entry);
        make_fifo(above, name, mode, entry.modified)
    }

    fn hard_link(&mut self, entry: &ArchiveEntry, above: &Held, name: &OsStr) -> Result<(), Fault> {
        // As for symbolic links, an absolute target begins at the root of the image.
        let slashes = entry.target.iter().take_while(|byte| **byte == b'/').count();
        let target = relative(entry.target.get(slashes..).unwrap_or_default());
        let target = target.map_err(|refusal| match refusal {
            EntryRefusal::ParentComponent | EntryRefusal::NoName => EntryRefusal::HardLinkOut,
            refusal => refusal,
        })?;
        let file_name = target.file_name().ok_or(EntryRefusal::HardLinkDirectory)?;
        let from = self.directory(target.parent().unwrap_or(Path::new("")), entry.modified)?;
        match LayerFile::at(&*from.directory, file_name)? {
            Some(LayerFile::Directory) => return Err(EntryRefusal::HardLinkDirectory.into()),
            Some(LayerFile::Whiteout) => return Err(EntryRefusal::HardLinkLost.into()),
            Some(_) => {}
            None => {
                let lower = self.lower(&from.path.join(file_name))?.ok_or(EntryRefusal::HardLinkLost)?;
                self.copy_up(&lower, &from, file_name)?;
            }
        }
        if (&from.path, file_name) == (&above.path, name) {
            return Ok(());
        }
        self.make_room(above, name)?;
        // Without AT_SYMLINK_FOLLOW, a link itself gets the new name.
        match linkat(&*from.directory, file_name, &*above.directory, name, AtFlags::empty()) {
            // The target was in a directory that the link replaces.
            Err(Errno::ENOENT) => Err(EntryRefusal::HardLinkLost.into()),
            linked => Ok(linked?),
        }
    }

    /// Copies a file of the layers below to its own name in this layer, as overlayfs does before it links one.
    fn copy_up(&mut self, lower: &LowerEntry, to: &Held, name: &OsStr) -> Result<(), Fault> {
        self.count()?;
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
                self.budget.spend(count)?;
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

    /// Gives directories their modes and times, children first. Returns the mode of the root, which must stay
    /// writable to be moved.
    fn finish(&mut self) -> Result<u32, Fault> {
        self.last = None;
        let mut root_mode = DEFAULT_MODE;
        for (mut path, state) in std::mem::take(&mut self.directories).into_iter().rev() {
            path.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
            let path = PathBuf::from(OsString::from_vec(path));
            let directory = tree::open(&*self.root, &path, OFlag::O_RDONLY | DIRECTORY)?;
            match path.as_os_str().is_empty() {
                true => {
                    root_mode = state.mode;
                    tree::set_time(&directory, state.modified)?;
                }
                false => settle(&directory, state.mode, state.modified)?,
            }
        }
        Ok(root_mode)
    }
}

enum Step {
    Into(Held),
    Link(OsString),
}

fn unsearchable(error: io::Error) -> Fault {
    if tree::keeps_out(&error) { Fault::Entry(EntryRefusal::Unsearchable) } else { Fault::Write(error) }
}

/// Makes a file that does not exist. Its owner may write it until it is settled.
fn create(directory: &OwnedFd, name: &OsStr) -> Result<File, Fault> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
}

/// The last steps of an open file: attributes cannot be set after them.
fn settle(file: impl AsFd, mode: u32, modified: FileTime) -> Result<(), Fault> {
    tree::set_time(file.as_fd(), modified)?;
    Ok(fchmod(file, Mode::from_bits_truncate(mode))?)
}

fn make_fifo(above: &Held, name: &OsStr, mode: u32, modified: FileTime) -> Result<(), Fault> {
    mkfifoat(&*above.directory, name, Mode::S_IRUSR | Mode::S_IWUSR)?;
    tree::set_time_at(&*above.directory, name, modified)?;
    let held =
        openat(&*above.directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(change_mode(&held, Mode::from_bits_truncate(mode))?)
}
