//! What commands changed in the image of a session, opened to look at it.
//!
//! Commands are hostile: what they wrote is read below its directory, without links. Layers may come from
//! anywhere, so the same holds for them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::FileStat;

use crate::image::{Image, Snapshot};
use crate::overlay::compare::{mark, same_mode, same_time};
use crate::overlay::contents::Side;
use crate::overlay::scan::{MAX_BYTES, MAX_DEPTH};
use crate::overlay::tree::{OverlayTree, ReadableTree};
use crate::report::change::{Change, ChangeKind};
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::sys;
use crate::sys::dirfd;
use crate::sys::inode::{FileKind, kind};
use crate::view::root::tree::{Found, LayerTree};

/// What commands of a session changed in its image, for people who look at it.
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), kennel::Error> {
/// use kennel::{image::Store, overlay::ImageReview};
///
/// let snapshot = session.snapshot().await?;
/// let name = snapshot.image().to_string().parse()?;
/// let image = Store::open_default()?.find(&name)?.expect("the session keeps it");
/// for change in ImageReview::of(&snapshot, image)?.changes() {
///     println!("{change}"); // A usr/bin/sl
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ImageReview {
    upper: OwnedFd,
    layers: LayerTree,
    changes: Vec<Change>,
    /// Keeps the layers.
    _image: Image,
}

impl ImageReview {
    /// Looks through a snapshot of a session, which began with `image`. What commands change later is not in
    /// the list.
    ///
    /// # Errors
    /// A directory cannot be read; the list needs more than 128 MiB.
    pub fn of(snapshot: &Snapshot, image: Image) -> Result<Self, Error> {
        let listed = || -> io::Result<_> {
            let upper = snapshot.directory().try_clone_to_owned()?;
            let layers = LayerTree::new(image.layers.iter().rev().cloned());
            let scan = Scan { upper: upper_of(&upper), layers: &layers, found: Vec::new(), bytes: 0 };
            let changes = scan.changes()?;
            Ok((upper, layers, changes))
        };
        let (upper, layers, changes) = listed().map_err(OverlayError::list)?;
        Ok(Self { upper, layers, changes, _image: image })
    }

    /// The changes, sorted by path, which is relative to the root. A file is no change if it has size, mode
    /// and modification time of the image's. Mount points that Kennel made are among the changes, and so is a
    /// directory that commands closed or nested too deeply; what is in it is not.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// What the image has at the path of a change, and what commands made of it. Reads at most `most` bytes
    /// of each.
    #[must_use]
    pub fn sides(&self, change: &Change, most: u64) -> [Side; 2] {
        let before = || match self.layers.on_host(&absolute(&change.path)) {
            Some(on_host) => read(&on_host, most),
            None => Ok(Side::default()),
        };
        let after = || {
            let upper = upper_of(&self.upper);
            if change.kind != ChangeKind::Deleted && change.file == FileKind::Directory {
                list(&upper, &change.path)?;
            }
            Side::read(&upper, &change.path, most)
        };
        [before(), after()].map(|side| side.unwrap_or_else(|error| Side::unreadable(&error)))
    }
}

/// The upper directory, whose modes stay as they are: the session uses it.
fn upper_of(upper: &OwnedFd) -> ReadableTree<'_> {
    ReadableTree::as_it_is(OverlayTree { root: upper.as_fd() })
}

/// Opens a directory that commands made or changed.
///
/// # Errors
/// `EACCES` if its owner cannot read it either, `ENAMETOOLONG` if it is too deep.
fn list(upper: &ReadableTree<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.components().count() > MAX_DEPTH { Err(Errno::ENAMETOOLONG.into()) } else { upper.list(path) }
}

fn absolute(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}

/// What a layer has at a path of the host.
fn read(on_host: &Path, most: u64) -> io::Result<Side> {
    let (Some(above), Some(name)) = (on_host.parent(), on_host.file_name()) else {
        return Ok(Side::default());
    };
    let above = File::open(above)?;
    Side::read(&ReadableTree::as_it_is(OverlayTree { root: above.as_fd() }), name.as_ref(), most)
}

struct Scan<'s> {
    upper: ReadableTree<'s>,
    layers: &'s LayerTree,
    found: Vec<Change>,
    /// The size of `found`.
    bytes: usize,
}

impl Scan<'_> {
    /// All changes, sorted by path.
    fn changes(mut self) -> io::Result<Vec<Change>> {
        // Directories, and whether they hide those of the image.
        let mut levels = vec![(PathBuf::new(), false)];
        while let Some((path, is_opaque)) = levels.pop() {
            let directory = self.upper.list(&path)?;
            let is_opaque = is_opaque || mark(&directory, sys::OPAQUE)?.is_some_and(|value| value == b"y");
            let names = dirfd::names(&directory)?;
            for name in &names {
                let Some(upper) = dirfd::stat(&directory, name)? else { continue };
                let path = path.join(name);
                let is_directory = kind(&upper) == FileKind::Directory;
                let can_enter = is_directory && list(&self.upper, &path).is_ok();
                // What is in a closed directory may have changed.
                self.entry(&path, &upper, is_directory && !can_enter)?;
                if can_enter {
                    levels.push((path, is_opaque));
                }
            }
            if is_opaque {
                let names: BTreeSet<OsString> = names.into_iter().collect();
                for name in self.layers.names(&absolute(&path)).difference(&names) {
                    let path = path.join(name);
                    if let Some(lower) = self.layers.stat(&absolute(&path)) {
                        self.push(&path, ChangeKind::Deleted, &lower)?;
                    }
                }
            }
        }
        self.found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(self.found)
    }

    fn entry(&mut self, path: &Path, upper: &FileStat, is_closed: bool) -> io::Result<()> {
        match self.layers.stat(&absolute(path)) {
            None if sys::is_whiteout(upper) => Ok(()),
            Some(lower) if sys::is_whiteout(upper) => self.push(path, ChangeKind::Deleted, &lower),
            None => self.push(path, ChangeKind::Added, upper),
            Some(lower) if !is_closed && self.is_same(path, upper, &lower)? => Ok(()),
            Some(_) => self.push(path, ChangeKind::Modified, upper),
        }
    }

    fn is_same(&self, path: &Path, upper: &FileStat, lower: &FileStat) -> io::Result<bool> {
        Ok(match (kind(upper), kind(lower)) {
            (FileKind::Directory, FileKind::Directory) => same_mode(upper, lower),
            (FileKind::File, FileKind::File) => {
                upper.st_size == lower.st_size && same_mode(upper, lower) && same_time(upper, lower)
            }
            (FileKind::Link, FileKind::Link) => {
                let to = readlinkat(self.upper.tree.parent(path)?, path.file_name().unwrap_or_default())?;
                self.layers.find(&absolute(path)) == Found::Link { to: to.into() }
            }
            _ => false,
        })
    }

    fn push(&mut self, path: &Path, change: ChangeKind, of: &FileStat) -> io::Result<()> {
        self.bytes += size_of::<Change>() + path.as_os_str().len();
        if self.bytes > MAX_BYTES {
            return Err(Errno::E2BIG.into());
        }
        self.found.push(Change { path: path.to_owned(), kind: change, file: kind(of) });
        Ok(())
    }
}
