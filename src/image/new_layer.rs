//! The tree of directories of a layer that is being made, and the way to each as the merged tree has it.
//!
//! Where the way depends on the layers below, they are looked at, and the layer belongs to them from then on.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::{Mode, fchmod, mkdirat};

use crate::image::extension::FileTime;
use crate::image::fault::Fault;
use crate::image::tree::{self, LayerFile, LowerEntry, LowerLayers};
use crate::report::error::image::EntryRefusal;
use crate::sys::dirfd::{DIRECTORY, MOST_LINKS};

/// The permission bits that are kept, with the sticky bit.
pub(crate) const KEPT_BITS: u32 = 0o1777;

/// The mode of a directory that no layer names.
const DEFAULT_MODE: u32 = 0o755;

/// The most memory for the paths of directories, in bytes.
const MOST_PATH_BYTES: usize = 512 << 20;

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

/// What a directory gets when all else is done. Until then, its owner may do all in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryState {
    pub(crate) mode: u32,
    pub(crate) modified: FileTime,
    opaque: bool,
}

/// The path of a directory with NUL between its components. So comparing bytes puts parents before their
/// children, and nothing else between them. [`Path`] compares so too, but a hundred times as slowly when
/// paths are long.
type DirectoryKey = Vec<u8>;

fn key(path: &Path) -> DirectoryKey {
    path.as_os_str().as_bytes().iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
}

/// An open directory of the new layer. The root has an empty path.
#[derive(Clone, Debug)]
pub(crate) struct HeldDirectory {
    pub(crate) path: PathBuf,
    pub(crate) directory: Rc<OwnedFd>,
}

/// A layer that is being made.
pub(crate) struct NewLayer<'a> {
    root: Rc<OwnedFd>,
    lower: &'a LowerLayers,
    pub(crate) budget: &'a Budget,
    /// Every directory of the layer, parents before children.
    directories: BTreeMap<DirectoryKey, DirectoryState>,
    path_bytes: usize,
    any_opaque: bool,
    /// The directory of the last entry, if no link led to it.
    last: Option<HeldDirectory>,
    pub(crate) depends_on_lower: bool,
    /// Entries so far, with those of the layers below.
    pub(crate) files: u64,
}

impl<'a> NewLayer<'a> {
    /// A layer in an empty directory. `files` counts the entries of the layers below.
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
            depends_on_lower: false,
            files,
        }
    }

    /// The layer's own directory.
    pub(crate) fn root(&self) -> HeldDirectory {
        HeldDirectory { path: PathBuf::new(), directory: Rc::clone(&self.root) }
    }

    /// What a directory of the layer will get.
    pub(crate) fn state(&mut self, held: &HeldDirectory) -> Option<&mut DirectoryState> {
        self.directories.get_mut(&key(&held.path))
    }

    /// Counts a file.
    pub(crate) fn count(&mut self) -> Result<(), Fault> {
        self.files += 1;
        if self.files > self.budget.max_files { Err(Fault::Files(self.budget.max_files)) } else { Ok(()) }
    }

    pub(crate) fn make_directory(
        &mut self,
        above: &HeldDirectory,
        name: &OsStr,
    ) -> Result<HeldDirectory, Fault> {
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
    pub(crate) fn hide_lower(&mut self, held: &HeldDirectory) -> Result<(), Fault> {
        tree::make_opaque(&*held.directory).map_err(Fault::Write)?;
        if let Some(state) = self.state(held) {
            state.opaque = true;
        }
        self.any_opaque = true;
        Ok(())
    }

    /// Opens a directory in another one.
    pub(crate) fn enter(&self, above: &HeldDirectory, name: &OsStr) -> Result<HeldDirectory, Fault> {
        let directory = Rc::new(tree::open(&*above.directory, Path::new(name), OFlag::O_RDONLY | DIRECTORY)?);
        Ok(HeldDirectory { path: above.path.join(name), directory })
    }

    /// Opens a directory of the new layer.
    fn open(&self, path: PathBuf) -> Result<HeldDirectory, Fault> {
        let directory = Rc::new(tree::open(&*self.root, &path, OFlag::O_RDONLY | DIRECTORY)?);
        Ok(HeldDirectory { path, directory })
    }

    /// The directory of the new layer that `path` leads to in the merged tree. Makes what is missing of it
    /// as the layers below have it.
    pub(crate) fn directory(&mut self, path: &Path, modified: FileTime) -> Result<HeldDirectory, Fault> {
        if let Some(last) = self.last.as_ref().filter(|last| last.path.as_os_str() == path.as_os_str()) {
            return Ok(last.clone());
        }
        match tree::open(&*self.root, path, OFlag::O_RDONLY | DIRECTORY) {
            Ok(directory) => {
                let held = HeldDirectory { path: path.to_owned(), directory: Rc::new(directory) };
                self.last = Some(held.clone());
                Ok(held)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => self.walk(path, modified),
            Err(errno) => Err(errno.into()),
        }
    }

    fn walk(&mut self, path: &Path, modified: FileTime) -> Result<HeldDirectory, Fault> {
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
                WalkStep::Into(next) => {
                    held = next;
                    continue;
                }
                WalkStep::Link(target) => target,
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
    fn step(&mut self, held: &HeldDirectory, part: &OsStr, modified: FileTime) -> Result<WalkStep, Fault> {
        match LayerFile::at(&*held.directory, part)? {
            Some(LayerFile::Directory) => return Ok(WalkStep::Into(self.enter(held, part)?)),
            Some(LayerFile::Link) => return Ok(WalkStep::Link(readlinkat(&*held.directory, part)?)),
            Some(LayerFile::Other) => return Err(EntryRefusal::NotDirectory.into()),
            Some(LayerFile::Whiteout) => {
                self.remove(held, part, LayerFile::Whiteout)?;
                let next = self.implied_directory(held, part, modified)?;
                self.hide_lower(&next)?;
                return Ok(WalkStep::Into(next));
            }
            None => {}
        }
        let Some(lower) = self.lower(&held.path.join(part))? else {
            return Ok(WalkStep::Into(self.implied_directory(held, part, modified)?));
        };
        match lower.file() {
            LayerFile::Link => Ok(WalkStep::Link(lower.target()?)),
            LayerFile::Directory => {
                let next = self.implied_directory(held, part, tree::time_of(&lower.stat))?;
                if let Some(state) = self.state(&next) {
                    state.mode = lower.stat.st_mode & KEPT_BITS;
                }
                let below = lower.open(OFlag::O_PATH | DIRECTORY)?;
                let attributes = tree::attributes_of(&below).map_err(unsearchable)?;
                tree::set_attributes(&*next.directory, attributes.iter()).map_err(Fault::Write)?;
                Ok(WalkStep::Into(next))
            }
            _ => Err(EntryRefusal::NotDirectory.into()),
        }
    }

    /// Makes a directory that the archive does not name.
    fn implied_directory(
        &mut self,
        above: &HeldDirectory,
        name: &OsStr,
        modified: FileTime,
    ) -> Result<HeldDirectory, Fault> {
        self.count()?;
        let held = self.make_directory(above, name)?;
        if let Some(state) = self.state(&held) {
            state.modified = modified;
        }
        Ok(held)
    }

    /// What the layers below show at a path of the new layer that has no link in it.
    pub(crate) fn lower(&mut self, path: &Path) -> Result<Option<LowerEntry>, Fault> {
        let is_opaque = |path| self.directories.get(&key(path)).is_some_and(|state| state.opaque);
        if self.any_opaque && path.ancestors().skip(1).any(is_opaque) {
            return Ok(None);
        }
        self.depends_on_lower = true;
        self.lower.find(path).map_err(unsearchable)
    }

    /// Removes what the new layer has at a name.
    pub(crate) fn remove(
        &mut self,
        above: &HeldDirectory,
        name: &OsStr,
        file: LayerFile,
    ) -> Result<(), Fault> {
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
    pub(crate) fn make_room(&mut self, above: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
        match LayerFile::at(&*above.directory, name)? {
            Some(file) => self.remove(above, name, file),
            None => Ok(()),
        }
    }

    /// Hides what the layers below have at a name. What this layer itself has there stays, wherever it
    /// stands in the archive.
    pub(crate) fn whiteout(&mut self, above: &HeldDirectory, name: &OsStr) -> Result<(), Fault> {
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

    /// Gives directories their modes and times, children first. Returns the mode of the root, which must stay
    /// writable to be moved.
    pub(crate) fn finish(&mut self) -> Result<u32, Fault> {
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

enum WalkStep {
    Into(HeldDirectory),
    Link(OsString),
}

fn unsearchable(error: io::Error) -> Fault {
    if tree::keeps_out(&error) { Fault::Entry(EntryRefusal::Unsearchable) } else { Fault::Write(error) }
}

/// The last steps of an open file: attributes cannot be set after them.
pub(crate) fn settle(file: impl AsFd, mode: u32, modified: FileTime) -> Result<(), Fault> {
    tree::set_time(file.as_fd(), modified)?;
    Ok(fchmod(file, Mode::from_bits_truncate(mode))?)
}
