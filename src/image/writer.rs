//! Writing to the store: layers, images, names; removing and cleaning up.

use std::io::Read;
use std::time::Duration;

use crate::image::digest::Digest;
use crate::image::limits::{ImageLimits, LayerNote};
use crate::image::reference::Reference;
use crate::image::store::{Image, Store};
use crate::report::error::image::ImageError;

/// A store that is open for writing.
#[derive(Clone, Debug)]
pub struct StoreWriter {
    store: Store,
    limits: ImageLimits,
}

/// The archive of a layer: a tar file, plain or compressed with gzip or zstd, and what is known of it.
pub struct LayerBlob<'r> {
    reader: Box<dyn Read + 'r>,
    digest: Option<Digest>,
    diff_id: Option<Digest>,
}

impl<'r> LayerBlob<'r> {
    /// The archive that `reader` gives. It is not read if the store has the layer.
    pub fn new(reader: impl Read + 'r) -> Self {
        Self { reader: Box::new(reader), digest: None, diff_id: None }
    }

    /// Expects this digest of the archive as it is, compressed or not.
    #[must_use]
    pub fn with_digest(mut self, digest: Digest) -> Self {
        self.digest = Some(digest);
        self
    }

    /// Expects this digest of the uncompressed archive. With it, a layer that the store has is not read again.
    #[must_use]
    pub fn with_diff_id(mut self, diff_id: Digest) -> Self {
        self.diff_id = Some(diff_id);
        self
    }
}

/// A layer in the store. It stays there for as long as this or a clone of it lives; after that, if an image has it.
#[derive(Clone, Debug)]
pub struct StoredLayer {}

impl StoredLayer {
    /// The digest of the uncompressed archive.
    #[must_use]
    pub fn diff_id(&self) -> Digest {
        unimplemented!()
    }

    /// The bytes of the uncompressed archive.
    #[must_use]
    pub fn size(&self) -> u64 {
        unimplemented!()
    }

    /// The number of its entries.
    #[must_use]
    pub fn files(&self) -> u64 {
        unimplemented!()
    }

    /// What was left out of it.
    #[must_use]
    pub fn notes(&self) -> &[LayerNote] {
        unimplemented!()
    }

    /// Whether the store had it before.
    #[must_use]
    pub fn was_there(&self) -> bool {
        unimplemented!()
    }
}

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
    /// Bytes of the layers that only images without a name have.
    pub reclaimable: u64,
}

impl Store {
    /// Opens the store for writing. Makes it if it does not exist, checks that its file system can hold layers, and
    /// removes what killed imports left.
    ///
    /// # Errors
    /// The directory cannot be made or used, or its file system lacks something that layers need.
    pub fn writer(&self) -> Result<StoreWriter, ImageError> {
        unimplemented!()
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

    /// The layer with this diff id above these layers, if the store has it. So its archive need not be fetched.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find_layer(
        &self,
        diff_id: &Digest,
        below: &[StoredLayer],
    ) -> Result<Option<StoredLayer>, ImageError> {
        unimplemented!()
    }

    /// Applies the archive of a layer above others, which are lowest first, and stores the result. If another
    /// process stores the same layer, waits for it and uses that one.
    ///
    /// # Errors
    /// The archive is damaged, is not what was expected, has an entry that is refused, or takes more than the
    /// limits. Then nothing of it is left.
    pub fn add_layer(&self, blob: LayerBlob<'_>, below: &[StoredLayer]) -> Result<StoredLayer, ImageError> {
        unimplemented!()
    }

    /// Stores an image: its configuration, byte for byte, and its layers, lowest first; and gives it names, which
    /// are taken from the images that had them. Waits until all of it is on the disk.
    ///
    /// # Errors
    /// The configuration is none, or names other layers.
    pub fn add_image(
        &self,
        config: &[u8],
        layers: &[StoredLayer],
        names: &[Reference],
    ) -> Result<Image, ImageError> {
        unimplemented!()
    }

    /// Gives an image that the store has another name.
    ///
    /// # Errors
    /// The store has no such image.
    pub fn add_name(&self, image: &Digest, name: &Reference) -> Result<(), ImageError> {
        unimplemented!()
    }

    /// Removes a name, and its image if it was the last one; or, by its digest, an image with all its names. Then
    /// removes the layers that no image has any more.
    ///
    /// # Errors
    /// There is no such image, or somebody uses it.
    pub fn remove(&self, reference: &Reference) -> Result<Pruned, ImageError> {
        unimplemented!()
    }

    /// Removes images without a name and, with a time, those that nobody has used for so long; then layers that no
    /// image has. What somebody uses stays.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, unused_for: Option<Duration>) -> Result<Pruned, ImageError> {
        unimplemented!()
    }

    /// How much the store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn usage(&self) -> Result<StoreUsage, ImageError> {
        unimplemented!()
    }
}
