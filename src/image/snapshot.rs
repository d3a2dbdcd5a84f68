//! What commands of a session changed in their image, as one more layer of a new image.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::image::digest::Digest;

#[cfg(feature = "image")]
use serde_json::{Value, json};

#[cfg(feature = "image")]
use crate::image::export::tree_archive::{Marks, TreeArchive, TreeError};
#[cfg(feature = "image")]
use crate::image::import::Imported;
#[cfg(feature = "image")]
use crate::image::layer::StoredLayer;
#[cfg(feature = "image")]
use crate::image::reference::Reference;
#[cfg(feature = "image")]
use crate::image::writer::{LayerBlob, StoreWriter};
#[cfg(feature = "image")]
use crate::report::error::image::ImageError;

/// What keeps commands of the session from starting.
pub(crate) trait Hold: Send + Sync {}

impl<T: Send + Sync> Hold for T {}

/// What the commands of a session changed in its image so far. While it lives, no command of the session
/// starts.
pub struct Snapshot {
    image: Digest,
    upper: OwnedFd,
    _hold: Box<dyn Hold>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("image", &self.image).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// `upper` is the upper directory of an overlay over that image.
    pub(crate) fn new(image: Digest, upper: OwnedFd, hold: impl Hold + 'static) -> Self {
        Self { image, upper, _hold: Box::new(hold) }
    }

    /// The image that the session began with.
    #[must_use]
    pub fn image(&self) -> Digest {
        self.image
    }

    /// The directory with the changes, in the form of overlayfs with `userxattr`. What commands wrote there
    /// is not to be trusted: it has links and names of any kind.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.upper.as_fd()
    }

    /// Stores a new image: the layers of the session's image, and one more with the changes. Its
    /// configuration is that of the session's image.
    ///
    /// Set-user-id bits, capabilities of files and device nodes are left out, and so are sockets and names
    /// that begin with `.wh.`, which no layer can hold.
    ///
    /// # Errors
    /// The store does not have the session's image, or refuses the layer. A file with a mode that keeps its
    /// owner out cannot be read. Nothing is stored then.
    #[cfg(feature = "image")]
    pub fn store(&self, writer: &StoreWriter, name: Option<&Reference>) -> Result<Imported, ImageError> {
        let base = writer.store().image(&self.image)?;
        let base = base.ok_or_else(|| ImageError::NotFound { name: self.image.to_string() })?;
        let lost = || ImageError::NotFound { name: self.image.to_string() };
        let found = writer.find_layers(&base.config.diff_ids)?;
        let mut layers: Vec<StoredLayer> = found.into_iter().collect::<Option<_>>().ok_or_else(lost)?;
        let failed =
            |error: TreeError| ImageError::Io { what: "read", path: error.path, source: error.source };
        let mut archive = TreeArchive::of_directory(&self.upper, Marks::Kept).map_err(failed)?;
        let layer = match writer.add_layer(LayerBlob::new(&mut archive), &layers) {
            Ok(layer) => layer,
            // The store knows only that it cannot read an archive.
            Err(error) => return Err(archive.take_error().map_or(error, failed)),
        };
        let left_out = archive.left_out().to_vec();
        layers.push(layer);
        let config = with_layer(base.config_json(), &layers)?;
        let names: Vec<Reference> = name.into_iter().cloned().collect();
        let image = writer.add_image(config.as_bytes(), &layers, &names)?;
        Ok(Imported { digest: image.digest, names, layers, other_names: Vec::new(), left_out })
    }
}

/// The configuration with these layers, of which the last is new.
#[cfg(feature = "image")]
fn with_layer(config: &str, layers: &[StoredLayer]) -> Result<String, ImageError> {
    let mut config: Value = serde_json::from_str(config)
        .map_err(|error| ImageError::Document { what: "image configuration", reason: error.to_string() })?;
    let diff_ids: Vec<Digest> = layers.iter().map(StoredLayer::diff_id).collect();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
    // Where there is a history, it has an entry for each layer.
    if let Some(history) = config.get_mut("history").and_then(Value::as_array_mut) {
        history.push(json!({ "created_by": "snapshot of a session" }));
    }
    Ok(config.to_string())
}
