//! What is known of the layers of an image, for people.

use std::path::PathBuf;

use serde::Serialize;

use crate::image::collect::layer_record;
use crate::image::digest::Digest;
use crate::image::layer::LayerRecord;
use crate::image::limits::LayerNote;
use crate::image::store::{Image, Store};
use crate::report::error::image::ImageError;

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
