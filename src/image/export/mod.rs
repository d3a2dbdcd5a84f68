//! An image of the store as an archive: an OCI image layout with the names, and the list that `docker load`
//! reads. Layers are written as they are in the store, uncompressed.

pub(crate) mod tree_archive;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::image::digest::Digest;
use crate::image::export::tree_archive::{Marks, TreeArchive, TreeError};
use crate::image::reference::Reference;
use crate::image::store::Image;
use crate::report::error::image::ImageError;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// Bytes of a block of tar.
const BLOCK: usize = 512;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 17;

/// An archive that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// The digest of the configuration in the archive. It is another one than that of the image in the store,
    /// because layers that were unpacked have other archives than before.
    pub digest: Digest,
    /// The digest of the manifest, by which registries will know the image.
    pub manifest: Digest,
    /// Bytes of the archive.
    pub size: u64,
}

/// A layer as it will be written.
struct LayerArchive<'i> {
    directory: &'i Path,
    digest: Digest,
    size: u64,
}

/// Writes an image with these names. Each layer is read twice: first for its digest, which is in front of it.
///
/// # Errors
/// A file of a layer cannot be read, or the archive cannot be written.
pub fn export(image: &Image, names: &[Reference], to: &mut dyn Write) -> Result<Exported, ImageError> {
    let layers = image.layers.iter().map(|path| measured(path)).collect::<Result<Vec<_>, _>>()?;
    let config = text(&with_diff_ids(image.config_json(), layers.iter().map(|layer| layer.digest))?);
    let config_digest = Digest::of(&config);
    let parts: Vec<Value> =
        layers.iter().map(|layer| descriptor(LAYER_TYPE, layer.digest, layer.size)).collect();
    let manifest = text(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, config_digest, config.len() as u64),
        "layers": parts,
    }));
    let manifest_digest = Digest::of(&manifest);
    let mut archive = Writer { to, size: 0 };
    // Without these entries, skopeo makes the directories itself and gives them to root, which fails for
    // everybody else.
    archive.header("blobs/", EntryType::Directory, 0)?;
    archive.header("blobs/sha256/", EntryType::Directory, 0)?;
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.file("index.json", &index(&manifest, names))?;
    archive.file("manifest.json", &list(config_digest, &layers, names))?;
    archive.file(&blob(manifest_digest), &manifest)?;
    archive.file(&blob(config_digest), &config)?;
    let mut written = BTreeSet::new();
    for layer in layers {
        if written.insert(layer.digest) {
            archive.layer(&layer)?;
        }
    }
    archive.write(&[0; 2 * BLOCK])?;
    archive.to.flush().map_err(unwritten)?;
    Ok(Exported { digest: config_digest, manifest: manifest_digest, size: archive.size })
}

/// Reads a layer for its digest and its size.
fn measured(directory: &Path) -> Result<LayerArchive<'_>, ImageError> {
    let (mut hash, mut size) = (Sha256::new(), 0);
    each_chunk(directory, |chunk| {
        hash.update(chunk);
        size += chunk.len() as u64;
        Ok(())
    })?;
    Ok(LayerArchive { directory, digest: Digest::of_hash(hash), size })
}

/// Gives the archive of a layer piece by piece.
fn each_chunk(
    directory: &Path,
    mut take: impl FnMut(&[u8]) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut archive = TreeArchive::of(directory, Marks::Kept).map_err(TreeError::unread)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match archive.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => take(buffer.get(..count).unwrap_or_default())?,
            Err(source) => {
                let other = TreeError { path: directory.to_owned(), source };
                return Err(archive.take_error().unwrap_or(other).unread());
            }
        }
    }
}

/// The configuration with these digests of layers, lowest first.
pub(crate) fn with_diff_ids(
    config: &str,
    diff_ids: impl Iterator<Item = Digest>,
) -> Result<Value, ImageError> {
    let failed = |reason: serde_json::Error| ImageError::Document {
        what: "image configuration",
        reason: reason.to_string(),
    };
    let mut config: Value = serde_json::from_str(config).map_err(failed)?;
    let diff_ids: Vec<Digest> = diff_ids.collect();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
    Ok(config)
}

/// What leads to the manifest: once for each name, in the two forms that programs look for.
fn index(manifest: &[u8], names: &[Reference]) -> Vec<u8> {
    let entry = descriptor(MANIFEST_TYPE, Digest::of(manifest), manifest.len() as u64);
    let named = |name: &Reference| {
        let mut entry = entry.clone();
        entry["annotations"] = json!({
            "io.containerd.image.name": name.to_string(),
            "org.opencontainers.image.ref.name": name.to_string(),
        });
        entry
    };
    let entries: Vec<Value> = match names {
        [] => vec![entry],
        names => names.iter().map(named).collect(),
    };
    text(&json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries }))
}

/// The list of `docker save`, for versions before 25.
fn list(config: Digest, layers: &[LayerArchive<'_>], names: &[Reference]) -> Vec<u8> {
    let tags: Vec<String> =
        names.iter().filter(|name| name.tag().is_some()).map(Reference::familiar).collect();
    let layers: Vec<String> = layers.iter().map(|layer| blob(layer.digest)).collect();
    text(&json!([{ "Config": blob(config), "RepoTags": tags, "Layers": layers }]))
}

fn descriptor(kind: &str, digest: Digest, size: u64) -> Value {
    json!({ "mediaType": kind, "digest": digest, "size": size })
}

fn blob(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Writes members of a tar archive.
struct Writer<'w> {
    to: &'w mut dyn Write,
    /// Bytes that were written.
    size: u64,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.size += bytes.len() as u64;
        self.to.write_all(bytes).map_err(unwritten)
    }

    fn header(&mut self, name: &str, kind: EntryType, size: u64) -> Result<(), ImageError> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        // Sizes beyond eleven octal digits are binary, as GNU tar and Go read them.
        header.set_size(size);
        if let Some(ustar) = header.as_ustar_mut() {
            ustar.name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    /// Fills up the last block of a content.
    fn pad(&mut self, size: u64) -> Result<(), ImageError> {
        let rest = size.next_multiple_of(BLOCK as u64) - size;
        self.write([0; BLOCK].get(..usize::try_from(rest).unwrap_or_default()).unwrap_or_default())
    }

    fn file(&mut self, name: &str, content: &[u8]) -> Result<(), ImageError> {
        self.header(name, EntryType::Regular, content.len() as u64)?;
        self.write(content)?;
        self.pad(content.len() as u64)
    }

    fn layer(&mut self, layer: &LayerArchive<'_>) -> Result<(), ImageError> {
        self.header(&blob(layer.digest), EntryType::Regular, layer.size)?;
        let (mut hash, mut size) = (Sha256::new(), 0);
        each_chunk(layer.directory, |chunk| {
            hash.update(chunk);
            size += chunk.len() as u64;
            if size > layer.size {
                return Err(changed(layer.directory));
            }
            self.write(chunk)
        })?;
        if Digest::of_hash(hash) != layer.digest {
            return Err(changed(layer.directory));
        }
        self.pad(layer.size)
    }
}

fn changed(directory: &Path) -> ImageError {
    let reason = "the layer was changed while it was read".to_owned();
    ImageError::Damaged { path: directory.to_owned(), reason }
}

fn unwritten(source: io::Error) -> ImageError {
    ImageError::Io { what: "write", path: "the archive".into(), source }
}
