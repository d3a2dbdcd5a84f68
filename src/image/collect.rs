//! What the store holds, and removing from it: names, images, layers that no image has, what killed processes
//! left.
//!
//! A layer is removed only by who has its lock for itself and then finds no image with it. Who imports
//! holds a shared lock on each layer until the image is in place, and who uses an image holds one on the
//! image.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::fcntl::FlockArg;
use serde::Serialize;

use crate::image::digest::Digest;
use crate::image::layer::{LayerLock, LayerRecord};
use crate::image::limits::LayerNote;
use crate::image::reference::Reference;
use crate::image::store::{Image, ImageRecord, RECORD_SUFFIX, Store, file_names, read_record, undamaged};
use crate::image::work::{WorkDirectory, remove_tree};
use crate::image::writer::StoreWriter;
use crate::report::error::image::ImageError;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Names that were removed.
    pub names: Vec<Reference>,
    /// Images that were removed.
    pub images: Vec<Digest>,
    /// How many layers were removed.
    pub layers: u64,
    /// The bytes of their archives, uncompressed.
    pub size: u64,
}

/// How much the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreUsage {
    /// Images.
    pub images: u64,
    /// Names.
    pub names: u64,
    /// Layers; those that images share count once.
    pub layers: u64,
    /// Entries of those layers.
    pub files: u64,
    /// Bytes of those layers' archives, uncompressed.
    pub size: u64,
    /// Bytes of the layers that only images without a name have, or none.
    pub reclaimable: u64,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The digest of its archive, uncompressed.
    pub diff_id: Digest,
    /// Bytes of its archive, uncompressed.
    pub size: u64,
    /// The number of its entries, with the directories that they imply.
    pub files: u64,
    /// Whether images share it, whatever is below it.
    pub shared: bool,
    /// What was left out of it.
    pub left_out: Vec<LayerNote>,
    /// Its directory, which is read-only for everybody but the store.
    pub path: PathBuf,
}

impl Store {
    /// The layers of an image, lowest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn layers(&self, image: &Image) -> Result<Vec<LayerSummary>, ImageError> {
        let summary = |path: &PathBuf| {
            let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let record = layer_record(self, id).ok_or_else(|| ImageError::LayerLost {
                image: image.digest.to_string(),
                layer: id.to_owned(),
            })?;
            let LayerRecord { diff_id, chain_id, size, files, notes } = record;
            Ok(LayerSummary {
                diff_id,
                shared: chain_id.is_none(),
                size,
                files,
                left_out: notes,
                path: path.clone(),
            })
        };
        image.layers.iter().map(summary).collect()
    }
}

impl StoreWriter {
    /// Removes a name, and its image if it was the last one; or, by its digest, an image with all its
    /// names. Then removes the layers that no image has any more.
    ///
    /// # Errors
    /// There is no such image, or somebody uses it. Then nothing was removed.
    pub fn remove(&self, reference: &Reference) -> Result<Pruned, ImageError> {
        let mut pruned = Pruned::default();
        let not_found = || ImageError::NotFound { name: reference.to_string() };
        let image = self.store.resolve(reference)?.ok_or_else(not_found)?;
        let name = reference.name().filter(|name| self.store.name_path(name).exists());
        let others = self.names_of(&image)?.into_iter().filter(|other| Some(other) != name.as_ref());
        match (&name, others.count()) {
            (Some(name), 1..) => self.remove_name(name, &mut pruned)?,
            _ => self.remove_image(&image, |_, _| true, &mut pruned)?,
        }
        self.collect_layers(&mut pruned)?;
        Ok(pruned)
    }

    /// Removes images without a name and, with a time, those that nobody has used for so long; then layers
    /// that no image has. What somebody uses stays.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, unused_for: Option<Duration>) -> Result<Pruned, ImageError> {
        let mut pruned = Pruned::default();
        let now = SystemTime::now();
        // A time in the future is no age.
        let is_old = |used| {
            let age = now.duration_since(used).unwrap_or_default();
            unused_for.is_some_and(|most| age >= most)
        };
        let named: BTreeSet<Digest> = self.store.names()?.iter().map(|name| name.image).collect();
        for digest in self.store.digests()? {
            let Some(used) = self.store.last_use(&digest)? else { continue };
            if named.contains(&digest) && !is_old(used) {
                continue;
            }
            // Before the lock, an import may have named it, or somebody may have used it.
            let condition = |names: &[String], used| names.is_empty() || is_old(used);
            match self.remove_image(&digest, condition, &mut pruned) {
                Err(ImageError::InUse { .. } | ImageError::NotFound { .. }) => {}
                removed => removed?,
            }
        }
        self.collect_layers(&mut pruned)?;
        Ok(pruned)
    }

    /// How much the store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn usage(&self) -> Result<StoreUsage, ImageError> {
        let mut usage = StoreUsage::default();
        let names = self.store.names()?;
        usage.names = count(names.len());
        let named: BTreeSet<Digest> = names.iter().map(|name| name.image).collect();
        let mut kept = BTreeSet::new();
        for digest in self.store.digests()? {
            let record = undamaged(read_record::<ImageRecord>(&self.store.image_path(&digest)))?;
            let Some(record) = record.flatten() else { continue };
            usage.images += 1;
            if named.contains(&digest) {
                kept.extend(record.layers);
            }
        }
        for id in layer_ids(&self.store)? {
            let Some(record) = layer_record(&self.store, &id) else { continue };
            usage.layers += 1;
            usage.files += record.files;
            usage.size += record.size;
            if !kept.contains(&id) {
                usage.reclaimable += record.size;
            }
        }
        Ok(usage)
    }

    /// Removes what killed processes left, and layers that no image has.
    pub(crate) fn clean_up(&self) -> Result<(), ImageError> {
        WorkDirectory::clean_up(&self.store)?;
        self.collect_layers(&mut Pruned::default())
    }

    fn names_of(&self, image: &Digest) -> Result<Vec<String>, ImageError> {
        let names = self.store.names()?.into_iter().filter(|name| name.image == *image);
        Ok(names.map(|name| name.name).collect())
    }

    fn remove_name(&self, name: &str, pruned: &mut Pruned) -> Result<(), ImageError> {
        let path = self.store.name_path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed.map_err(ImageError::io("remove", &path))?;
                pruned.names.extend(name.parse::<Reference>());
            }
        }
        Ok(())
    }

    /// Removes an image that nobody uses, with its names, if its names and the time of its last use meet a
    /// condition.
    fn remove_image(
        &self,
        digest: &Digest,
        condition: impl FnOnce(&[String], SystemTime) -> bool,
        pruned: &mut Pruned,
    ) -> Result<(), ImageError> {
        let not_found = || ImageError::NotFound { name: digest.to_string() };
        let path = self.store.image_path(digest);
        // A damaged one can be removed, too.
        let lock = self.store.lock_record(digest, FlockArg::LockExclusiveNonblock)?;
        let lock = lock.ok_or_else(not_found)?;
        let used = lock.metadata().and_then(|metadata| metadata.modified());
        let used = used.map_err(ImageError::io("look at image", &path))?;
        let names = self.names_of(digest)?;
        if !condition(&names, used) {
            return Ok(());
        }
        for name in names {
            self.remove_name(&name, pruned)?;
        }
        fs::remove_file(&path).map_err(ImageError::io("remove", &path))?;
        drop(lock);
        pruned.images.push(*digest);
        Ok(())
    }

    /// Removes the layers that no image has and nobody holds.
    fn collect_layers(&self, pruned: &mut Pruned) -> Result<(), ImageError> {
        let Some(used) = self.used_layers()? else { return Ok(()) };
        let mut locked = Vec::new();
        for id in layer_ids(&self.store)? {
            if !used.contains(&id) {
                locked.extend(LayerLock::take(&self.store, &id, FlockArg::LockExclusiveNonblock, true)?);
            }
        }
        if locked.is_empty() {
            return Ok(());
        }
        // Before the locks, an import may have ended.
        let Some(used) = self.used_layers()? else { return Ok(()) };
        for lock in locked.into_iter().filter(|lock| !used.contains(lock.id())) {
            let record = lock.record()?;
            let directory = lock.directory().clone();
            self.remove_layer(lock).map_err(ImageError::io("remove", &directory))?;
            if let Some(record) = record {
                pruned.layers += 1;
                pruned.size += record.size;
            }
        }
        Ok(())
    }

    /// Removes a layer whose lock nobody else has.
    fn remove_layer(&self, lock: LayerLock) -> io::Result<()> {
        lock.clear()?;
        let directory = lock.directory();
        if let Ok(metadata) = fs::symlink_metadata(directory) {
            // To move a directory to another parent takes the right to write in it.
            let mode = metadata.mode() & 0o7777 | 0o700;
            fs::set_permissions(directory, fs::Permissions::from_mode(mode))?;
            // On a full disk there may be no room for the directory to move it to; then it goes where it is.
            let moved = WorkDirectory::make(&self.store)
                .ok()
                .filter(|work| fs::rename(directory, work.path.join("tree")).is_ok());
            if moved.is_none() {
                remove_tree(directory)?;
            }
        }
        lock.remove()
    }

    /// The layers that images have; `None` if the record of an image is damaged, so that this is not known.
    fn used_layers(&self) -> Result<Option<BTreeSet<String>>, ImageError> {
        let mut used = BTreeSet::new();
        for digest in self.store.digests()? {
            match undamaged(read_record::<ImageRecord>(&self.store.image_path(&digest)))? {
                None => return Ok(None),
                Some(record) => used.extend(record.into_iter().flat_map(|record| record.layers)),
            }
        }
        Ok(Some(used))
    }
}

/// The names of all layers, complete or not.
fn layer_ids(store: &Store) -> Result<BTreeSet<String>, ImageError> {
    let id = |name: String| name.strip_suffix(RECORD_SUFFIX).map(str::to_owned).unwrap_or(name);
    Ok(file_names(&store.layers_path())?.into_iter().map(id).collect())
}

/// The record of a layer that is complete.
fn layer_record(store: &Store, id: &str) -> Option<LayerRecord> {
    let path = store.layers_path().join(format!("{id}{RECORD_SUFFIX}"));
    read_record(&path).ok().flatten().filter(|_| store.layer_path(id).is_dir())
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
