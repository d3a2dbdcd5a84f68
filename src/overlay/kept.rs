//! The kept changes of caches, as a person sees them: what there is, and how to remove it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag};
use serde::Serialize;

use crate::caller::Caller;
use crate::report::error::Error;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::dirfd;
use crate::sys::dirfd::{DIRECTORY, open_without_links};
use crate::sys::remove;
use crate::view::{cache_store, toolchains};

/// Deeper directories are not counted.
const DEEPEST: u32 = 128;

/// What commands with [`Caches::Keep`](crate::policy::profile::Caches::Keep) have added to one cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptCache {
    /// The cache, as commands see it.
    pub path: PathBuf,
    /// Bytes on the disk.
    pub size: u64,
    /// When something last changed there, in seconds since 1970.
    pub changed: u64,
    /// Whether a sandbox uses it now.
    pub in_use: bool,
}

/// What commands have added to caches and Kennel keeps for later sandboxes, by path.
///
/// # Errors
/// Kennel's directory cannot be read.
pub fn kept_caches() -> Result<Vec<KeptCache>, Error> {
    let caller = Caller::current();
    let mut all = BTreeMap::new();
    for layer in layers(&caller)? {
        let in_use = layer.lock().is_err();
        let mut found: Vec<KeptCache> = toolchains::caches(&caller)
            .filter_map(|path| layer.cache(path.strip_prefix(&layer.lower).ok()?, in_use))
            .collect();
        if found.is_empty() {
            found.extend(layer.cache(Path::new(""), in_use));
        }
        all.extend(found.into_iter().map(|cache| (cache.path.clone(), cache)));
    }
    Ok(all.into_values().collect())
}

/// Removes what commands have added to the caches at `paths`, or to all caches if there are none.
///
/// # Errors
/// A sandbox uses one of them, nothing is kept for a path, or a file cannot be removed. The others are
/// removed all the same.
pub fn clear_kept_caches(paths: &[PathBuf]) -> Result<(), Error> {
    let caller = Caller::current();
    let layers = layers(&caller)?;
    let clear = |path: &PathBuf| {
        let absolute = caller.absolute(path);
        let path = fs::canonicalize(&absolute).unwrap_or(absolute);
        let around = layers.iter().filter(|layer| path.starts_with(&layer.lower));
        match around.max_by_key(|layer| layer.lower.as_os_str().len()) {
            Some(layer) => layer.remove(path.strip_prefix(&layer.lower).unwrap_or(Path::new(""))),
            None => Err(refused(&path, io::ErrorKind::NotFound.into(), see_list())),
        }
    };
    let cleared: Vec<Result<(), Error>> = match paths {
        [] => layers.iter().map(|layer| layer.remove(Path::new(""))).collect(),
        paths => paths.iter().map(clear).collect(),
    };
    cleared.into_iter().collect()
}

/// The kept changes of one layer.
struct KeptLayer {
    /// The directory of the host under the layer.
    lower: PathBuf,
    /// Kennel's directory of all of them, and the one of this layer.
    all: OwnedFd,
    directory: OwnedFd,
}

/// What is in a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    size: u64,
    changed: u64,
    entries: u64,
}

impl Count {
    fn add(&mut self, stat: &FileStat) {
        self.size += u64::try_from(stat.st_blocks).unwrap_or_default() * 512;
        self.changed = self.changed.max(u64::try_from(stat.st_ctime).unwrap_or_default());
    }
}

/// All layers with kept changes.
fn layers(caller: &Caller) -> Result<Vec<KeptLayer>, Error> {
    let read = || {
        let path = match fs::canonicalize(cache_store::directory(caller)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            path => path?,
        };
        let all = open_without_links(&path, OFlag::O_DIRECTORY)?;
        let all = openat(&all, ".", DIRECTORY, Mode::empty())?;
        let layer = |name: &OsStr| {
            let lower = cache_store::path_of(name)?;
            let directory = openat(&all, name, DIRECTORY, Mode::empty()).ok()?;
            Some(KeptLayer { lower, all: all.try_clone().ok()?, directory })
        };
        Ok(dirfd::names(&all)?.iter().filter_map(|name| layer(name)).collect())
    };
    read().map_err(Error::io("read the kept caches"))
}

impl KeptLayer {
    fn lock(&self) -> io::Result<impl Sized + use<>> {
        cache_store::lock(self.directory.try_clone()?)
    }

    /// Opens a directory of the changes. No link is followed: commands made what is there.
    fn open(&self, below: &Path) -> nix::Result<OwnedFd> {
        let mut at = openat(&self.directory, cache_store::UPPER, DIRECTORY, Mode::empty())?;
        for part in below.components() {
            let Component::Normal(part) = part else { return Err(Errno::EINVAL) };
            at = openat(&at, part, DIRECTORY, Mode::empty())?;
        }
        Ok(at)
    }

    /// What is kept for a part of the layer, if there is something.
    fn cache(&self, below: &Path, in_use: bool) -> Option<KeptCache> {
        let mut count = Count::default();
        add(&self.open(below).ok()?, &mut count, 0);
        let Count { size, changed, entries } = count;
        (entries > 0).then(|| KeptCache { path: self.lower.join(below), size, changed, in_use })
    }

    fn remove(&self, below: &Path) -> Result<(), Error> {
        let path = self.lower.join(below);
        let _lock = self.lock().map_err(|error| {
            refused(&path, error, "a sandbox uses it: end it first, or stop its session".into())
        })?;
        let any = &|_: BorrowedFd<'_>, _: &OsStr, _: &Path| Ok(());
        let removed = match (below.parent(), below.file_name()) {
            (Some(above), Some(name)) => match self.open(above) {
                Ok(above) => remove::tree(above.as_fd(), name, any),
                Err(errno) => Err(errno.into()),
            },
            _ => remove::tree(self.all.as_fd(), &cache_store::name_of(&self.lower), any),
        };
        removed.map_err(|error| refused(&path, error, see_list()))
    }
}

/// Adds what is in a directory. Directories that cannot be opened count for themselves only.
fn add(directory: &OwnedFd, count: &mut Count, depth: u32) {
    let Ok(mut entries) = dirfd::listing(directory) else { return };
    for name in entries.iter().flatten().filter_map(|entry| dirfd::name(&entry)) {
        let name = name.as_os_str();
        let Ok(Some(stat)) = dirfd::stat(directory, name) else { continue };
        count.add(&stat);
        if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFDIR {
            count.entries += 1;
        } else if depth < DEEPEST
            && let Ok(inner) = openat(directory, name, DIRECTORY, Mode::empty())
        {
            add(&inner, count, depth + 1);
        }
    }
}

/// The remedy for what is not kept, or not by its path.
fn see_list() -> Remedy {
    remedy!["see ", SettingKey::ListCaches]
}

fn refused(path: &Path, source: io::Error, remedy: Remedy) -> Error {
    Error::Grant { what: "kept cache", path: path.to_owned(), source, remedy: Some(remedy) }
}
