//! Puts a snapshot into the store.

use serde_json::{Value, json};

use crate::image::export::tree_archive::{Marks, TreeArchive, TreeError};
use crate::image::export::with_diff_ids;
use crate::image::import::{Imported, add_tree, named};
use crate::image::layer::StoredLayer;
use crate::image::reference::Reference;
use crate::image::snapshot::Snapshot;
use crate::image::writer::StoreWriter;
use crate::report::error::image::ImageError;

impl Snapshot {
    /// Stores a new image: the layers of the session's image, and one more with the changes. Its
    /// configuration is that of the session's image.
    ///
    /// Set-user-id bits, capabilities of files and device nodes are left out, and so are sockets and names
    /// that begin with `.wh.`, which no layer can hold.
    ///
    /// # Errors
    /// The store does not have the session's image, or refuses the layer. A file with a mode that keeps its
    /// owner out cannot be read. Nothing is stored then.
    pub fn store(&self, writer: &StoreWriter, name: Option<&Reference>) -> Result<Imported, ImageError> {
        let lost = || ImageError::NotFound { name: self.image.to_string() };
        let base = writer.store().image(&self.image)?.ok_or_else(lost)?;
        let found = writer.find_layers(&base.config.diff_ids)?;
        let mut layers: Vec<StoredLayer> = found.into_iter().collect::<Option<_>>().ok_or_else(lost)?;
        let archive = TreeArchive::of_directory(&self.upper, Marks::Kept).map_err(TreeError::unread)?;
        let (layer, left_out) = add_tree(writer, archive, &layers, TreeError::unread)?;
        layers.push(layer);
        let mut config = with_diff_ids(base.config_json(), layers.iter().map(StoredLayer::diff_id))?;
        // Where there is a history, it has an entry for each layer.
        if let Some(history) = config.get_mut("history").and_then(Value::as_array_mut) {
            history.push(json!({ "created_by": "snapshot of a session" }));
        }
        named(writer, &config, layers, name, left_out)
    }
}
