//! Layers of the store: what they are called, what is known of them, and the locks that keep them.
//!
//! A layer that does not depend on those below it is shared by all images, and is called by its diff id.
//! Any other is called by its chain id: the digest of all diff ids up to its own. The names are short: an
//! image can have as many layers as names fit into the page that mount(2) takes, and those of 140 do. What
//! builds images stops at 127.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, fs, io};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::image::digest::Digest;
use crate::image::limits::LayerNote;
use crate::image::store::{RECORD_SUFFIX, Store, lock_file, parse_record};
use crate::report::error::image::ImageError;

/// A layer by its name in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LayerId {
    /// By its diff id.
    Shared(Digest),
    /// By its chain id.
    Chained(Digest),
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, digest) = match self {
            Self::Shared(digest) => ('d', digest),
            Self::Chained(digest) => ('c', digest),
        };
        // The whole digest is compared in the layer's record.
        write!(f, "{letter}{}", digest.short())
    }
}

/// The chain id of a layer, by the diff ids of all layers up to it.
pub(crate) fn chain_id(below: &[StoredLayer], diff_id: &Digest) -> Digest {
    let mut diff_ids = below.iter().map(StoredLayer::diff_id).chain([*diff_id]);
    let first = diff_ids.next().unwrap_or(*diff_id);
    diff_ids.fold(first, |chain, diff_id| next_chain_id(chain, &diff_id))
}

/// The chain id of a layer, by that of the layer below it.
pub(crate) fn next_chain_id(below: Digest, diff_id: &Digest) -> Digest {
    Digest::of(format!("{below} {diff_id}").as_bytes())
}

/// What is known of a layer. Its file is empty as long as the layer is not complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) diff_id: Digest,
    /// `None` for a layer that is shared.
    pub(crate) chain_id: Option<Digest>,
    pub(crate) size: u64,
    pub(crate) files: u64,
    pub(crate) notes: Vec<LayerNote>,
}

impl LayerRecord {
    fn is_of(&self, id: &LayerId) -> bool {
        match id {
            LayerId::Shared(diff_id) => self.chain_id.is_none() && self.diff_id == *diff_id,
            LayerId::Chained(chain_id) => self.chain_id == Some(*chain_id),
        }
    }
}

/// A layer in the store. It stays there for as long as this or a clone of it lives; after that, if an
/// image has it.
#[derive(Clone, Debug)]
pub struct StoredLayer {
    pub(crate) id: String,
    record: Arc<LayerRecord>,
    was_there: bool,
    _lock: Arc<LayerLock>,
}

impl StoredLayer {
    /// The digest of the uncompressed archive.
    #[must_use]
    pub fn diff_id(&self) -> Digest {
        self.record.diff_id
    }

    /// The bytes of the uncompressed archive.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.record.size
    }

    /// The number of its entries, with the directories that they imply.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.record.files
    }

    /// What was left out of it.
    #[must_use]
    pub fn notes(&self) -> &[LayerNote] {
        &self.record.notes
    }

    /// Whether the store had it before.
    #[must_use]
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    /// Whether images share it, whatever is below it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.record.chain_id.is_none()
    }
}

/// The locked file of a layer. Exclusive: somebody makes or removes the layer. Shared: it stays.
#[derive(Debug)]
pub(crate) struct LayerLock {
    file: Flock<File>,
    id: String,
    path: PathBuf,
    directory: PathBuf,
}

impl LayerLock {
    /// Locks the file of a layer. `None` if it does not exist and `make` does not make it, or if somebody
    /// else holds it and the lock does not wait.
    pub(crate) fn take(
        store: &Store,
        id: &str,
        how: FlockArg,
        make: bool,
    ) -> Result<Option<Self>, ImageError> {
        let path = store.layers_path().join(format!("{id}{RECORD_SUFFIX}"));
        let failed = || ImageError::io("lock layer", &path);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(make).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        loop {
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
                file => file.map_err(failed())?,
            };
            let file = match lock_file(file, how) {
                Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                file => file.map_err(|errno| failed()(errno.into()))?,
            };
            // Somebody removed it between the opening and the lock.
            if file.metadata().map_err(failed())?.nlink() > 0 {
                let directory = store.layer_path(id);
                return Ok(Some(Self { file, id: id.to_owned(), path, directory }));
            }
        }
    }

    /// The record of a layer that is complete.
    pub(crate) fn record(&self) -> Result<Option<LayerRecord>, ImageError> {
        let failed = || ImageError::io("read layer", &self.path);
        let mut file = &*self.file;
        file.rewind().map_err(failed())?;
        let is_empty = file.metadata().map_err(failed())?.len() == 0;
        // A record that was cut off by a loss of power is of a layer that no image has.
        let record = if is_empty { None } else { parse_record::<LayerRecord>(file, &self.path).ok() };
        Ok(record.filter(|_| self.directory.is_dir()))
    }

    /// Writes the record, once the directory of the layer is in place.
    pub(crate) fn write(&self, record: &LayerRecord) -> io::Result<()> {
        self.clear()?;
        let mut file = &*self.file;
        file.rewind()?;
        file.write_all(&serde_json::to_vec(record)?)
    }

    /// From now on the layer does not count.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Removes the file of a layer that is gone. Who waits for the lock makes a new one.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// The name of the layer.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The directory of the layer.
    pub(crate) fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Lets others use the layer, and keeps it.
    pub(crate) fn share(&self) -> Result<(), ImageError> {
        let failed = || ImageError::io("lock layer", &self.path);
        // Nobody waits for an exclusive lock, so nobody gets one in between.
        self.file.relock(FlockArg::LockShared).map_err(|errno| failed()(errno.into()))
    }

    /// The layer that this locks, if the store has it. The lock is a shared one.
    pub(crate) fn layer(self, id: &LayerId, was_there: bool) -> Result<Option<StoredLayer>, ImageError> {
        let Some(record) = self.record()? else { return Ok(None) };
        if !record.is_of(id) {
            let reason = "it is of another layer whose digest begins so".to_owned();
            return Err(ImageError::Damaged { path: self.path, reason });
        }
        let (id, record) = (self.id.clone(), Arc::new(record));
        Ok(Some(StoredLayer { id, record, was_there, _lock: Arc::new(self) }))
    }
}
