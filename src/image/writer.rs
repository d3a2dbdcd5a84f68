//! Writing to the store: layers, images, names. A layer is made in `tmp/` and renamed, so that half of one
//! never counts.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::syncfs;
use serde::Serialize;

use crate::image::blob::{self, AppliedBlob, ExpectedDigests, Workplace};
use crate::image::config::ImageConfig;
use crate::image::digest::Digest;
use crate::image::layer::{LayerId, LayerLock, LayerRecord, StoredLayer, chain_id, next_chain_id};
use crate::image::limits::ImageLimits;
use crate::image::new_layer::Budget;
use crate::image::reference::Reference;
use crate::image::store::{IMAGES, Image, ImageRecord, LAYERS, NAMES, NameRecord, Store, lock_file};
use crate::image::tree::{self, LowerLayers};
use crate::image::work::{TEMPORARY, WorkDirectory, remove_tree, unnamed_file};
use crate::report::error::image::ImageError;
use crate::sys::dirfd;

/// How long it waits where several look at one layer that is missing.
const PAUSE: Duration = Duration::from_millis(1);

/// The directory of a layer in its temporary one.
const TREE: &str = "tree";

/// A file of the store in its temporary directory.
const RECORD: &str = "record";

/// A store that is open for writing.
#[derive(Clone, Debug)]
pub struct StoreWriter {
    pub(crate) store: Store,
    limits: ImageLimits,
}

/// The archive of a layer: a tar file, plain or compressed with gzip or zstd, and what is known of it.
pub struct LayerBlob<'r> {
    reader: Box<dyn Read + 'r>,
    expected: ExpectedDigests,
}

impl fmt::Debug for LayerBlob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBlob").field("expected", &self.expected).finish_non_exhaustive()
    }
}

impl<'r> LayerBlob<'r> {
    /// The archive that `reader` gives. It is not read if the store has the layer.
    pub fn new(reader: impl Read + 'r) -> Self {
        Self { reader: Box::new(reader), expected: ExpectedDigests::default() }
    }

    /// Expects this digest of the archive as it is, compressed or not.
    #[must_use]
    pub fn with_digest(mut self, digest: Digest) -> Self {
        self.expected.digest = Some(digest);
        self
    }

    /// Expects this digest of the uncompressed archive. With it, a layer that the store has is not read
    /// again.
    #[must_use]
    pub fn with_diff_id(mut self, diff_id: Digest) -> Self {
        self.expected.diff_id = Some(diff_id);
        self
    }

    /// What errors call the layer.
    fn name(&self, below: &[StoredLayer]) -> String {
        match self.expected.diff_id.or(self.expected.digest) {
            Some(digest) => digest.to_string(),
            None => (below.len() + 1).to_string(),
        }
    }
}

impl Store {
    /// Opens the store for writing. Makes it if it does not exist, checks that its file system can hold
    /// layers, and removes what killed imports left.
    ///
    /// # Errors
    /// The directory cannot be made or used, or its file system lacks something that layers need.
    pub fn writer(&self) -> Result<StoreWriter, ImageError> {
        let make = |path: &Path| {
            let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(path);
            made.map_err(ImageError::io("make", path))
        };
        make(self.path())?;
        self.check()?;
        [NAMES, IMAGES, LAYERS, TEMPORARY].iter().try_for_each(|name| make(&self.path().join(name)))?;
        let writer = StoreWriter { store: self.clone(), limits: ImageLimits::default() };
        // First, as it makes room.
        writer.clean_up()?;
        match writer.probe() {
            // Images can be removed from a full disk. Who writes to it is told then.
            Err(ImageError::Io { source, .. } | ImageError::FileSystem { source, .. })
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {}
            probed => probed?,
        }
        Ok(writer)
    }
}

impl StoreWriter {
    /// The same writer with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: ImageLimits) -> Self {
        self.limits = limits;
        self
    }

    /// How much one image may take.
    #[must_use]
    pub fn limits(&self) -> ImageLimits {
        self.limits
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Tries out what layers need of a file system.
    fn probe(&self) -> Result<(), ImageError> {
        let work = WorkDirectory::make(&self.store)?;
        let path = self.store.path();
        let lacks =
            |lacks| move |source: io::Error| ImageError::FileSystem { path: path.to_owned(), lacks, source };
        let made = tree::make_whiteout(&*work.directory, "whiteout".as_ref());
        made.map_err(|errno| lacks("whiteouts (device 0:0)")(errno.into()))?;
        tree::make_opaque(&*work.directory).map_err(lacks("user extended attributes"))?;
        work.remove()
    }

    /// The layer with this diff id above these layers, if the store has it. So its archive need not be
    /// fetched.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find_layer(
        &self,
        diff_id: &Digest,
        below: &[StoredLayer],
    ) -> Result<Option<StoredLayer>, ImageError> {
        match self.find(&LayerId::Shared(*diff_id))? {
            None => self.find(&LayerId::Chained(chain_id(below, diff_id))),
            found => Ok(found),
        }
    }

    /// Which layers of an image the store has, by the diff ids of all of them, lowest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find_layers(&self, diff_ids: &[Digest]) -> Result<Vec<Option<StoredLayer>>, ImageError> {
        let mut chain = None;
        let mut found = Vec::new();
        for diff_id in diff_ids {
            let id = chain.map_or(*diff_id, |below| next_chain_id(below, diff_id));
            chain = Some(id);
            found.push(match self.find(&LayerId::Shared(*diff_id))? {
                None => self.find(&LayerId::Chained(id))?,
                layer => layer,
            });
        }
        Ok(found)
    }

    /// A file in the store without a name, for what is to be unpacked. Nothing of it is left when it is
    /// closed.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn temporary_file(&self) -> Result<File, ImageError> {
        unnamed_file(&self.store)
            .map_err(ImageError::io("make a file in", &self.store.path().join(TEMPORARY)))
    }

    /// The layer of this name, if the store has it. Waits while another process makes it.
    fn find(&self, id: &LayerId) -> Result<Option<StoredLayer>, ImageError> {
        match LayerLock::take(&self.store, &id.to_string(), FlockArg::LockShared, false)? {
            Some(lock) => lock.layer(id, true),
            None => Ok(None),
        }
    }

    /// Uses a layer, or locks it to make it. Waits while somebody else makes it.
    fn claim(&self, id: &LayerId) -> Result<ClaimedLayer, ImageError> {
        let name = id.to_string();
        loop {
            // Only a shared lock is waited for: who has used a layer may keep it for as long as a whole
            // import.
            if let Some(lock) = LayerLock::take(&self.store, &name, FlockArg::LockShared, true)?
                && let Some(layer) = lock.layer(id, true)?
            {
                return Ok(ClaimedLayer::Found(layer));
            }
            if let Some(lock) = LayerLock::take(&self.store, &name, FlockArg::LockExclusiveNonblock, true)?
                && lock.record()?.is_none()
            {
                return Ok(ClaimedLayer::Missing(lock));
            }
            // Another one looks at it in this moment, too.
            thread::sleep(PAUSE);
        }
    }

    /// Applies the archive of a layer above others, which are lowest first, and stores the result. If another
    /// process stores the same layer, waits for it and uses that one.
    ///
    /// # Errors
    /// The archive is damaged, is not what was expected, has an entry that is refused, or takes more than the
    /// limits. Then nothing of it is left.
    pub fn add_layer(&self, blob: LayerBlob<'_>, below: &[StoredLayer]) -> Result<StoredLayer, ImageError> {
        let Some(diff_id) = blob.expected.diff_id else {
            let made = self.make(blob, below)?;
            return self.settle(&made, below, None);
        };
        if let Some(layer) = self.find_layer(&diff_id, below)? {
            return Ok(layer);
        }
        // Locked while the layer is made, so that other processes wait.
        let lock = match self.claim(&LayerId::Shared(diff_id))? {
            ClaimedLayer::Found(layer) => return Ok(layer),
            ClaimedLayer::Missing(lock) => lock,
        };
        // Another process may have been faster.
        if let Some(layer) = self.find(&LayerId::Chained(chain_id(below, &diff_id)))? {
            let _ = lock.remove();
            return Ok(layer);
        }
        match self.make(blob, below) {
            Ok(made) => self.settle(&made, below, Some(lock)),
            Err(error) => {
                // If this fails, the next writer removes it.
                let _ = lock.remove();
                Err(error)
            }
        }
    }

    /// Makes a layer in a temporary directory.
    fn make(&self, blob: LayerBlob<'_>, below: &[StoredLayer]) -> Result<MadeLayer, ImageError> {
        let layer = blob.name(below);
        let work = WorkDirectory::make(&self.store)?;
        let failed = || ImageError::io("make a layer in", &work.path);
        let tree = work.path.join(TREE);
        fs::DirBuilder::new().mode(0o700).create(&tree).map_err(failed())?;
        let open = |path: &Path| dirfd::open_without_links(path, OFlag::O_DIRECTORY).map_err(failed());
        let paths: Vec<PathBuf> = below.iter().map(|layer| self.store.layer_path(&layer.id)).collect();
        let lower = LowerLayers::open(paths.iter().map(PathBuf::as_path)).map_err(failed())?;
        let ImageLimits { max_size, max_files } = self.limits;
        let size = AtomicU64::new(below.iter().map(StoredLayer::size).sum());
        let workplace = Workplace {
            root: open(&tree)?,
            writable: open(&work.path)?,
            readable: open(&self.store.layers_path())?,
            lower: &lower,
            budget: &Budget { size, max_size, max_files },
            files: below.iter().map(StoredLayer::files).sum(),
        };
        let blob = blob::apply(blob.reader, blob.expected, &layer, workplace)?;
        Ok(MadeLayer { work, blob })
    }

    /// Puts a layer in place. `lock` is that of its diff id, if that was known.
    fn settle(
        &self,
        made: &MadeLayer,
        below: &[StoredLayer],
        lock: Option<LayerLock>,
    ) -> Result<StoredLayer, ImageError> {
        let AppliedBlob { applied, diff_id, size } = &made.blob;
        let chain_id = applied.depends_on_lower.then(|| chain_id(below, diff_id));
        let id = chain_id.map_or(LayerId::Shared(*diff_id), LayerId::Chained);
        let (claimed, other) = match (lock, &id) {
            (Some(lock), LayerId::Shared(_)) => (ClaimedLayer::Missing(lock), None),
            (other, id) => (self.claim(id)?, other),
        };
        let layer = match claimed {
            ClaimedLayer::Found(layer) => Some(layer),
            ClaimedLayer::Missing(lock) => {
                let (notes, files) = (applied.notes.clone(), applied.files);
                let record = LayerRecord { diff_id: *diff_id, chain_id, size: *size, files, notes };
                let placed = place(&made.work.path.join(TREE), &lock, &record, applied.root_mode);
                placed.map_err(ImageError::io("put a layer in place at", lock.directory()))?;
                lock.share()?;
                lock.layer(&id, false)?
            }
        };
        if let Some(other) = other {
            let _ = other.remove();
        }
        layer.ok_or_else(|| ImageError::io("lock layer", self.store.path())(Errno::ESTALE.into()))
    }

    /// Stores an image: its configuration, byte for byte, and its layers, lowest first; and gives it
    /// names, which are taken from the images that had them. Waits until all of it is on the disk.
    ///
    /// # Errors
    /// The configuration is none, or names other layers; or the store cannot be written. Then nothing has
    /// changed.
    pub fn add_image(
        &self,
        config: &[u8],
        layers: &[StoredLayer],
        names: &[Reference],
    ) -> Result<Image, ImageError> {
        self.add(config, layers, names, None)
    }

    /// The same for an image from a registry, with the digest of the manifest or index that the registry has
    /// for the name. [`Store::manifest`] gives it back.
    ///
    /// # Errors
    /// As [`add_image`](Self::add_image).
    pub fn add_pulled_image(
        &self,
        config: &[u8],
        layers: &[StoredLayer],
        name: &Reference,
        manifest: &Digest,
    ) -> Result<Image, ImageError> {
        self.add(config, layers, std::slice::from_ref(name), Some(*manifest))
    }

    fn add(
        &self,
        config: &[u8],
        layers: &[StoredLayer],
        names: &[Reference],
        manifest: Option<Digest>,
    ) -> Result<Image, ImageError> {
        let refused = |reason: &str| {
            Err(ImageError::Document { what: "image configuration", reason: reason.to_owned() })
        };
        if !ImageConfig::from_json(config)?
            .diff_ids
            .iter()
            .copied()
            .eq(layers.iter().map(StoredLayer::diff_id))
        {
            return refused("it names other layers than the image has");
        }
        let Ok(text) = std::str::from_utf8(config) else { return refused("it is not UTF-8") };
        let digest = Digest::of(config);
        let record = ImageRecord {
            config: text.to_owned(),
            layers: layers.iter().map(|layer| layer.id.clone()).collect(),
            size: layers.iter().map(StoredLayer::size).sum(),
        };
        // Layers that a loss of power cuts off must have no image: one syncfs(2) for all of them, before
        // it. Until then no image leads to them, and the next writer removes them.
        let synced = File::open(self.store.path()).and_then(|store| Ok(syncfs(store)?));
        synced.map_err(ImageError::io("write to disk", self.store.path()))?;
        // Written before the image gets its place, so that none is left without its names on a full disk.
        let names = names.iter().map(|name| self.name_record(&digest, name, manifest));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let known = self.store.lock_image(&digest, FlockArg::LockShared)?;
        let is_whole = |ids: &[String]| ids.iter().all(|id| self.store.layer_path(id).is_dir());
        let _lease = match known {
            Some(known) if is_whole(&known.record.layers) => known.lock,
            _ => self.write(&record, self.store.image_path(&digest))?.put()?,
        };
        names.into_iter().try_for_each(|name| name.put().map(drop))?;
        let lost = || ImageError::NotFound { name: digest.to_string() };
        self.store.image(&digest)?.ok_or_else(lost)
    }

    /// Gives an image that the store has another name.
    ///
    /// # Errors
    /// The store has no such image; a digest of an image is no name.
    pub fn add_name(&self, image: &Digest, name: &Reference) -> Result<(), ImageError> {
        let record = self.name_record(image, name, None)?;
        // While it is locked nobody removes it for want of a name.
        let not_found = || ImageError::NotFound { name: image.to_string() };
        let _lease = self.store.lock_record(image, FlockArg::LockShared)?.ok_or_else(not_found)?;
        record.put().map(drop)
    }

    fn name_record(
        &self,
        image: &Digest,
        name: &Reference,
        manifest: Option<Digest>,
    ) -> Result<WrittenRecord, ImageError> {
        let Some(name) = name.name() else {
            let reason = "the digest of an image is no name";
            return Err(ImageError::Reference { text: name.to_string(), reason });
        };
        let path = self.store.name_path(&name);
        self.write(&NameRecord { name, image: *image, manifest }, path)
    }

    /// Writes a file of the store as a whole, and waits until it is on the disk. It has a shared lock from
    /// its beginning, and its place later.
    fn write(&self, record: &impl Serialize, to: PathBuf) -> Result<WrittenRecord, ImageError> {
        let failed = || ImageError::io("write", &to);
        let work = WorkDirectory::make(&self.store)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(work.path.join(RECORD)).map_err(failed())?;
        let lock = lock_file(file, FlockArg::LockShared).map_err(|errno| failed()(errno.into()))?;
        let text = serde_json::to_vec(record).map_err(|error| failed()(error.into()))?;
        let mut file = &*lock;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed())?;
        Ok(WrittenRecord { work, lock, to })
    }
}

/// A file of the store that is not in its place yet. Dropping it removes it.
struct WrittenRecord {
    work: WorkDirectory,
    lock: Flock<File>,
    to: PathBuf,
}

impl WrittenRecord {
    /// Puts it there, in place of another one.
    fn put(self) -> Result<Flock<File>, ImageError> {
        let failed = || ImageError::io("write", &self.to);
        fs::rename(self.work.path.join(RECORD), &self.to).map_err(failed())?;
        let directory = self.to.parent().map(File::open).transpose().map_err(failed())?;
        directory.map(|directory| directory.sync_all()).transpose().map_err(failed())?;
        Ok(self.lock)
    }
}

/// A layer that the store has, or the lock of one that it does not have.
enum ClaimedLayer {
    Found(StoredLayer),
    Missing(LayerLock),
}

/// A layer in its temporary directory.
struct MadeLayer {
    work: WorkDirectory,
    blob: AppliedBlob,
}

/// Renames a layer into its place.
fn place(tree: &Path, lock: &LayerLock, record: &LayerRecord, root_mode: u32) -> io::Result<()> {
    let to = lock.directory();
    // A removal that was killed left it.
    if to.symlink_metadata().is_ok() {
        remove_tree(to)?;
    }
    fs::rename(tree, to)?;
    // To move a directory to another parent takes the right to write in it, so its mode comes after that. The
    // layer counts from its record on.
    fs::set_permissions(to, fs::Permissions::from_mode(root_mode))?;
    lock.write(record)
}
