//! Images from files: what a file or directory is, and what of it the store gets. The content decides, never
//! a name. It unpacks nothing: the store does.
//!
//! | what | how it is known | file |
//! | --- | --- | --- |
//! | OCI image layout, in a directory or an archive | `index.json` | `layout` |
//! | archive of `docker save` | `manifest.json` with a list | `docker` |
//! | root file system as a tar archive | a tar header, and neither of these | `source` |
//! | root file system as a directory | everything else | `source`, `crate::image::export::tree_archive` |
//!
//! What has `etc`, `usr` or another such directory at its top is a root file system, whatever else is in it.

mod archive;
mod compression;
mod docker;
mod layout;
mod members;
mod source;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use archive::Part;
pub use source::Given;
use source::{Spool, contents};

use crate::image::config::ImageConfig;
use crate::image::digest::Digest;
use crate::image::export::tree_archive::{Marks, TreeArchive, TreeError};
use crate::image::layer::StoredLayer;
use crate::image::limits::LayerNote;
use crate::image::manifest::platform_here;
use crate::image::reference::Reference;
use crate::image::work::unnamed_file;
use crate::image::writer::{LayerBlob, StoreWriter};
use crate::report::error::image::ImageError;
use crate::report::error::import::ImportError;

/// Top directories of a root file system. No archive of images has them.
const ROOT: [&str; 12] =
    ["bin", "boot", "dev", "etc", "home", "lib", "opt", "proc", "root", "sbin", "usr", "var"];

/// An image that was found.
#[derive(Debug)]
struct Found {
    /// The names that the archive has for it.
    names: Vec<String>,
    config: Vec<u8>,
    /// The layers, the lowest first.
    layers: Vec<FoundLayer>,
}

/// A layer that was found, not read yet.
#[derive(Debug)]
struct FoundLayer {
    /// The digest of what is stored, if the archive says one.
    digest: Option<Digest>,
    part: Part,
}

/// What a file or directory is.
#[derive(Debug)]
enum Contents {
    /// Images with their descriptions.
    Images(Vec<Found>),
    /// A root file system as a tar archive, perhaps compressed.
    Files(Part),
    /// A root file system as a directory.
    Tree(PathBuf),
}

/// An image that is in the store now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The digest of its configuration.
    pub digest: Digest,
    /// The names that it got.
    pub names: Vec<Reference>,
    /// Its layers, lowest first.
    pub layers: Vec<StoredLayer>,
    /// Names that the archive has for it and that are none, or only a tag.
    pub other_names: Vec<String>,
    /// Files of a directory that no layer can hold: sockets, and names that begin with `.wh.`.
    pub left_out: Vec<PathBuf>,
}

impl Imported {
    /// What was left out of its layers, each kind once.
    #[must_use]
    pub fn notes(&self) -> Vec<LayerNote> {
        LayerNote::sum(self.layers.iter().flat_map(StoredLayer::notes))
    }
}

/// Imports the images of a file or directory. With a name, that is the one of the image, whatever the archive
/// says. Of several platforms, that of this machine is taken. Several images of one archive are imported one
/// after the other; all descriptions are checked before the first layer is unpacked.
///
/// # Errors
/// What was given is no image for this machine, is not complete, or was changed; [`ImageError::Import`] says
/// what it is. Or the store refuses a layer.
pub fn import(
    writer: &StoreWriter,
    given: Given<'_>,
    name: Option<&Reference>,
) -> Result<Vec<Imported>, ImageError> {
    let shown = given.shown();
    let failed = |source| ImageError::Import { from: shown.clone(), source: Box::new(source) };
    let make = || unnamed_file(writer.store());
    let spool = Spool { make: &make, limit: writer.limits().max_size };
    match contents(given, &spool).map_err(failed)? {
        Contents::Images(images) => {
            if let Some(name) = name.filter(|_| images.len() > 1) {
                let (count, name) = (images.len(), name.familiar());
                return Err(failed(ImportError::Several { count, name }));
            }
            let plans = images.into_iter().map(Plan::of).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            plans.into_iter().map(|plan| plan.carry_out(writer, name)).collect()
        }
        Contents::Files(part) => {
            let layer = writer.add_layer(LayerBlob::new(part), &[])?;
            Ok(vec![of_files(writer, layer, name, Vec::new())?])
        }
        Contents::Tree(top) => of_tree(writer, &top, name).map(|imported| vec![imported]),
    }
}

/// What is imported of an image.
struct Plan {
    image: Found,
    diff_ids: Vec<Digest>,
}

impl Plan {
    /// Checks that the configuration is one and has a digest for each layer.
    fn of(image: Found) -> Result<Self, ImportError> {
        let wrong = |reason| ImportError::Document { document: "the configuration".to_owned(), reason };
        let config = ImageConfig::from_json(&image.config).map_err(|error| wrong(error.to_string()))?;
        let (layers, diff_ids) = (image.layers.len(), config.diff_ids.len());
        if layers != diff_ids {
            return Err(wrong(format!("it has {diff_ids} diff ids for {layers} layers")));
        }
        Ok(Self { image, diff_ids: config.diff_ids })
    }

    fn carry_out(self, writer: &StoreWriter, name: Option<&Reference>) -> Result<Imported, ImageError> {
        let Found { names: given, config, layers: found } = self.image;
        let mut layers: Vec<StoredLayer> = Vec::new();
        for (layer, diff_id) in found.into_iter().zip(self.diff_ids) {
            let blob = LayerBlob::new(layer.part).with_diff_id(diff_id);
            let blob = match layer.digest {
                Some(digest) => blob.with_digest(digest),
                None => blob,
            };
            layers.push(writer.add_layer(blob, &layers)?);
        }
        let (mut names, mut other_names) = (Vec::new(), Vec::new());
        match name {
            Some(name) => names.push(name.clone()),
            None => given.into_iter().for_each(|given| match given.parse::<Reference>() {
                Ok(name) if name.repository().is_some() => names.push(name),
                _ => other_names.push(given),
            }),
        }
        names.sort();
        names.dedup();
        let image = writer.add_image(&config, &layers, &names)?;
        Ok(Imported { digest: image.digest, names, layers, other_names, left_out: Vec::new() })
    }
}

/// An image of a directory.
fn of_tree(writer: &StoreWriter, top: &Path, name: Option<&Reference>) -> Result<Imported, ImageError> {
    let failed = |error: TreeError| {
        let source = Box::new(ImportError::Read { path: error.path, source: error.source });
        ImageError::Import { from: top.display().to_string(), source }
    };
    let archive = TreeArchive::of(top, Marks::Ignored).map_err(failed)?;
    let (layer, left_out) = add_tree(writer, archive, &[], failed)?;
    of_files(writer, layer, name, left_out)
}

/// Stores a directory as a layer. Also answers what of it no layer can hold.
pub(crate) fn add_tree(
    writer: &StoreWriter,
    mut archive: TreeArchive,
    below: &[StoredLayer],
    failed: impl FnOnce(TreeError) -> ImageError,
) -> Result<(StoredLayer, Vec<PathBuf>), ImageError> {
    match writer.add_layer(LayerBlob::new(&mut archive), below) {
        Ok(layer) => Ok((layer, archive.left_out().to_vec())),
        // The store knows only that it cannot read an archive.
        Err(error) => Err(archive.take_error().map_or(error, failed)),
    }
}

/// An image of one layer of files. Its configuration says nothing that the files do not: the same files give
/// the same image.
fn of_files(
    writer: &StoreWriter,
    layer: StoredLayer,
    name: Option<&Reference>,
    left_out: Vec<PathBuf>,
) -> Result<Imported, ImageError> {
    let platform = platform_here();
    let (os, architecture) = platform.split_once('/').unwrap_or_default();
    let config = serde_json::json!({
        "architecture": architecture,
        "config": {},
        "os": os,
        "rootfs": { "type": "layers", "diff_ids": [layer.diff_id()] },
    });
    named(writer, &config, vec![layer], name, left_out)
}

/// Stores an image that this program describes, under a name if there is one.
pub(crate) fn named(
    writer: &StoreWriter,
    config: &serde_json::Value,
    layers: Vec<StoredLayer>,
    name: Option<&Reference>,
    left_out: Vec<PathBuf>,
) -> Result<Imported, ImageError> {
    let names: Vec<Reference> = name.into_iter().cloned().collect();
    let image = writer.add_image(config.to_string().as_bytes(), &layers, &names)?;
    Ok(Imported { digest: image.digest, names, layers, other_names: Vec::new(), left_out })
}
