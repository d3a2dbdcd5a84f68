//! Finds what commands changed: compares the upper directory of the overlay with the workspace.
//!
//! It writes nothing, except that it opens up directories the caller owns but cannot read, for the time of
//! the scan.
//!
//! A file that overlayfs copied up but that is equal to the workspace's, with its modification time, is no
//! change: overlayfs copies on every open for writing, and when something below a directory changes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::FileStat;

use crate::overlay::compare::{ORIGIN, mark, same_contents, same_mode, same_time};
use crate::overlay::ledger_state::LedgerState;
use crate::overlay::tree::{OverlayTree, ReadableTree};
use crate::overlay::{compare, tree};
use crate::report::change::ChangeKind;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::dirfd::names;
use crate::sys::inode::{FileKind, Identity, kind};

/// The most bytes that the list of changes may take. Commands choose the paths, so the list could grow
/// without limit.
pub(crate) const MAX_BYTES: usize = 128 << 20;

/// The deepest path that is scanned: each path is resolved from the root.
pub(crate) const MAX_DEPTH: usize = 200;

/// An entry that differs from the workspace.
#[derive(Clone, Debug)]
pub(crate) struct ChangedEntry {
    pub(crate) path: PathBuf,
    pub(crate) kind: ChangeKind,
    /// Its file type; for a deletion, the type it had.
    pub(crate) file: FileKind,
    /// Its state in the upper directory; `None` if deleted.
    pub(crate) upper: Option<FileStat>,
    /// The workspace directory that contains it, if that exists.
    pub(crate) above: Option<Identity>,
    /// Its state in the workspace; `None` if it does not exist there.
    pub(crate) lower: Option<FileStat>,
    /// Whether another program changed the workspace entry since the session began.
    pub(crate) conflict: bool,
    /// Why it could not be read.
    pub(crate) unreadable: Option<Errno>,
}

/// A directory to walk.
struct Level {
    path: PathBuf,
    /// The workspace directory that this one merges with.
    lower: Option<Identity>,
    /// Whether this directory hides that one.
    is_opaque: bool,
    conflict: bool,
}

impl Level {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.path.as_os_str().len()
    }
}

pub(crate) struct Scan<'s> {
    state: &'s LedgerState,
    changed: &'s ReadableTree<'s>,
    below: &'s ReadableTree<'s>,
    lower: OverlayTree<'s>,
    found: Vec<ChangedEntry>,
    levels: Vec<Level>,
    /// The size of `found` and `levels`.
    bytes: usize,
}

/// Everything that commands changed, sorted by path.
///
/// # Errors
/// `E2BIG` if the changes exceed [`MAX_BYTES`], and errors of reading directories.
pub(crate) fn scan(
    state: &mut LedgerState,
    changed: &ReadableTree<'_>,
    below: &ReadableTree<'_>,
) -> io::Result<Vec<ChangedEntry>> {
    let found = changes(state, changed, below)?;
    state.note_closed(below.close());
    Ok(found)
}

fn changes(
    state: &LedgerState,
    changed: &ReadableTree<'_>,
    below: &ReadableTree<'_>,
) -> io::Result<Vec<ChangedEntry>> {
    let lower = below.tree;
    let root = Identity::of_held(lower.root)?;
    let top = Level { path: PathBuf::new(), lower: Some(root), is_opaque: false, conflict: false };
    let mut scan = Scan { state, changed, below, lower, found: Vec::new(), levels: vec![top], bytes: 0 };
    while let Some(level) = scan.levels.pop() {
        scan.bytes = scan.bytes.saturating_sub(level.bytes());
        match scan.level(&level) {
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => return Err(error),
            Err(error) => scan.cannot_read(&level.path, &error)?,
            Ok(()) => {}
        }
    }
    let mut found = scan.found;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

impl Scan<'_> {
    fn level(&mut self, level: &Level) -> io::Result<()> {
        let directory = self.changed.list(&level.path)?;
        let lower = if level.lower.is_some() { self.below.directory(&level.path)? } else { None };
        let names = names(&directory)?;
        for name in &names {
            let Some(upper) = dirfd::stat(&directory, name)? else { continue };
            if kind(&upper) != FileKind::Directory && self.state.is_applied(&level.path.join(name), &upper) {
                continue;
            }
            let there = lower.as_ref().map(|lower| dirfd::stat(lower, name)).transpose()?.flatten();
            let path = level.path.join(name);
            self.entry(path, upper, there, level)?;
        }
        if let Some(lower) = lower.filter(|_| level.is_opaque) {
            self.deletions_in_opaque(level, &lower, &names)?;
        }
        Ok(())
    }

    /// Adds the deletions that an opaque directory implies: entries of the workspace that it does not
    /// contain.
    fn deletions_in_opaque(&mut self, level: &Level, lower: &OwnedFd, listed: &[OsString]) -> io::Result<()> {
        let lower = tree::open_for_listing(lower)?;
        for name in names(&lower)? {
            let path = level.path.join(&name);
            // In a directory that a commit made, only committed entries count.
            let counts = !self.state.made(&level.path) || self.state.is_committed(&path);
            if counts
                && listed.binary_search(&name).is_err()
                && let Some(there) = dirfd::stat(&lower, &name)?
            {
                self.deleted(path, there, level)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: PathBuf,
        upper: FileStat,
        lower: Option<FileStat>,
        level: &Level,
    ) -> io::Result<()> {
        if sys::is_whiteout(&upper) {
            return lower.map_or(Ok(()), |lower| self.deleted(path, lower, level));
        }
        if kind(&upper) == FileKind::Directory {
            return self.directory(&path, upper, lower, level);
        }
        let unreadable = match self.is_unchanged(&path, &upper, lower.as_ref()) {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) => error.raw_os_error().map(Errno::from_raw),
        };
        let gone = lower.is_none() && self.lost_original(&path, &upper, level)?;
        let newer = self.is_newer(&path, lower.as_ref());
        let conflict = level.conflict || gone || newer;
        self.push(ChangedEntry { conflict, unreadable, ..found(path, Some(upper), lower, level) })
    }

    fn directory(
        &mut self,
        path: &Path,
        upper: FileStat,
        lower: Option<FileStat>,
        level: &Level,
    ) -> io::Result<()> {
        if path.components().count() > MAX_DEPTH {
            return self.cannot_read(path, &Errno::ENAMETOOLONG.into());
        }
        let directory = match self.changed.list(path) {
            Ok(directory) => directory,
            Err(error) => return self.cannot_read(path, &error),
        };
        // Directories below an opaque one have no mark of their own: overlayfs does not look at the lower
        // layer there.
        let is_opaque = level.is_opaque || mark(&directory, sys::OPAQUE)?.is_some_and(|value| value == b"y");
        let below = lower.filter(|lower| kind(lower) == FileKind::Directory);
        // An origin mark means that it was copied up from this path, as overlayfs does not rename lower
        // directories: so the workspace directory is gone.
        let gone = below.is_none() && !is_opaque && mark(&directory, ORIGIN)?.is_some();
        let moved = below.is_some_and(|below| self.state.was_moved(path, &below));
        let conflict = level.conflict || gone || moved;
        let same = match &below {
            Some(below) if same_mode(&upper, below) => self.same_attributes(&directory, path),
            _ => Ok(false),
        };
        let same = match same {
            Ok(same) => same,
            Err(error) => return self.cannot_read(path, &error),
        };
        if !same {
            // The change time covers mode and attributes alike: another program may have changed those.
            let conflict = conflict || self.is_newer(path, lower.as_ref());
            self.push(ChangedEntry { conflict, ..found(path.to_owned(), Some(upper), lower, level) })?;
        }
        let level =
            Level { path: path.to_owned(), lower: below.as_ref().map(Identity::of), is_opaque, conflict };
        self.account(level.bytes())?;
        self.levels.push(level);
        Ok(())
    }

    fn deleted(&mut self, path: PathBuf, lower: FileStat, level: &Level) -> io::Result<()> {
        let conflict = level.conflict || self.state.is_newer(&path, &lower);
        self.push(ChangedEntry { conflict, ..found(path, None, Some(lower), level) })
    }

    /// Whether another program changed the workspace entry since the session began.
    fn is_newer(&self, path: &Path, lower: Option<&FileStat>) -> bool {
        lower.is_some_and(|lower| self.state.is_newer(path, lower))
    }

    /// Whether a copied-up file has lost its original in the workspace. A command may have renamed it
    /// instead; it counts only if another program changed the containing directory.
    fn lost_original(&self, path: &Path, upper: &FileStat, level: &Level) -> io::Result<bool> {
        if kind(upper) != FileKind::File || level.lower.is_none() {
            return Ok(false);
        }
        let Some(parent) = self.below.stat_before(&level.path)? else { return Ok(false) };
        if !self.state.is_newer_than_base(path, &level.path, &parent) {
            return Ok(false);
        }
        let file = self.changed.read(path)?;
        Ok(mark(&file, ORIGIN)?.is_some())
    }

    fn is_unchanged(&self, path: &Path, upper: &FileStat, lower: Option<&FileStat>) -> io::Result<bool> {
        let Some(lower) = lower.filter(|lower| kind(lower) == kind(upper)) else { return Ok(false) };
        match kind(upper) {
            FileKind::File => {
                if upper.st_size != lower.st_size || !same_mode(upper, lower) {
                    return Ok(false);
                }
                // What others did to the time alone is no conflict: then it is theirs.
                if !same_time(upper, lower) && !self.state.is_newer(path, lower) {
                    return Ok(false);
                }
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
                let (upper_file, lower_file) = (self.changed.read(path)?, self.lower.open(path, flags)?);
                Ok(compare::attributes(&upper_file)? == compare::attributes(&lower_file)?
                    && self.same_lists(&upper_file, &lower_file)?
                    && same_contents(&upper_file, &lower_file, upper.st_size.unsigned_abs())?)
            }
            FileKind::Link => {
                let name = path.file_name().unwrap_or_default();
                let to =
                    |tree: OverlayTree<'_>| -> io::Result<_> { Ok(readlinkat(tree.parent(path)?, name)?) };
                Ok(to(self.changed.tree)? == to(self.lower)?)
            }
            _ => Ok(false),
        }
    }

    fn same_attributes(&self, upper: &OwnedFd, path: &Path) -> io::Result<bool> {
        match self.lower.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(lower) => Ok(compare::attributes(upper)? == compare::attributes(&lower)?
                && self.same_lists(upper, &lower)?),
            // A command could not read them either.
            Err(Errno::EACCES) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether both have the same access lists. What a command made in place of another has those of that
    /// one, unless it has some of its own.
    fn same_lists(&self, upper: &OwnedFd, lower: &OwnedFd) -> io::Result<bool> {
        let lists = compare::access_lists(upper)?;
        Ok(lists == compare::access_lists(lower)? || !compare::has_own_lists(upper, &lists)?)
    }

    fn cannot_read(&mut self, path: &Path, error: &io::Error) -> io::Result<()> {
        let unreadable = Some(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw));
        let lower = self.lower.stat(path).unwrap_or_default();
        let conflict = false;
        let kind = if lower.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        let (path, file) = (path.to_owned(), FileKind::Directory);
        self.push(ChangedEntry { path, kind, file, upper: None, above: None, lower, conflict, unreadable })
    }

    fn push(&mut self, found: ChangedEntry) -> io::Result<()> {
        self.account(size_of::<ChangedEntry>() + found.path.as_os_str().len())?;
        self.found.push(found);
        Ok(())
    }

    fn account(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        if self.bytes > MAX_BYTES { Err(Errno::E2BIG.into()) } else { Ok(()) }
    }
}

fn found(path: PathBuf, upper: Option<FileStat>, lower: Option<FileStat>, level: &Level) -> ChangedEntry {
    let change = match (&upper, &lower) {
        (None, _) => ChangeKind::Deleted,
        (Some(_), None) => ChangeKind::Added,
        (Some(_), Some(_)) => ChangeKind::Modified,
    };
    let file = upper.as_ref().or(lower.as_ref()).map_or(FileKind::Other, kind);
    ChangedEntry {
        path,
        kind: change,
        file,
        upper,
        above: level.lower,
        lower,
        conflict: false,
        unreadable: None,
    }
}
