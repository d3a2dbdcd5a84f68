//! From the name of an image to the manifest and the configuration of the one for this machine. It fetches no
//! layer.

use kennel::{
    image::{Digest, ImageConfig, ImportError, PullError, Reference, Store},
    internal::{Description, Descriptor, MOST_LEVELS, Manifest, Platforms},
};

use super::registry::Registry;

/// How many descriptions are fetched to find an image.
const MOST_DOCUMENTS: usize = 50;

/// An image in a registry.
pub(super) struct FoundImage {
    /// The digest of the manifest or index that the name leads to.
    pub(super) manifest: Digest,
    /// The configuration, whose digest is the image's.
    pub(super) config: Vec<u8>,
    /// The layers, lowest first.
    pub(super) layers: Vec<FoundLayer>,
}

/// A layer in a registry.
#[derive(Clone, Copy)]
pub(super) struct FoundLayer {
    pub(super) digest: Digest,
    pub(super) diff_id: Digest,
    /// Bytes that are to be fetched.
    pub(super) size: u64,
}

/// Finds the image of a name. `known` is the digest that the registry has said to have for it.
///
/// # Errors
/// There is none for this machine, or a description is wrong.
pub(super) fn find(
    registry: &Registry,
    store: &Store,
    name: &Reference,
    known: Option<Digest>,
) -> Result<FoundImage, PullError> {
    let known = name.digest().or(known);
    let version = known.map_or_else(|| name.tag().unwrap_or_default().to_owned(), |known| known.to_string());
    let text = registry.manifest(&version, known.as_ref())?;
    let mut search = Search { registry, store, platforms: Platforms::default(), documents: 0 };
    let description = Description::parse(&version, "", &text)?;
    match search.image(&version, description, 0)? {
        Some(Described { manifest, config }) => {
            Ok(FoundImage { manifest: Digest::of(&text), layers: layers(&manifest, &config)?, config })
        }
        None => Err(search.platforms.refusal(&version).into()),
    }
}

/// The descriptions of an image.
struct Described {
    manifest: Box<Manifest>,
    config: Vec<u8>,
}

struct Search<'a> {
    registry: &'a Registry,
    store: &'a Store,
    platforms: Platforms,
    /// Descriptions that were fetched.
    documents: usize,
}

impl Search<'_> {
    /// The image for this machine that a description leads to, and its configuration.
    fn image(
        &mut self,
        name: &str,
        description: Description,
        level: usize,
    ) -> Result<Option<Described>, PullError> {
        let entries = match description {
            Description::Manifest(manifest) => {
                let config = self.config(&manifest.config)?;
                let is_ours = self.platforms.has(&manifest.config.digest.to_string(), &config)?;
                return Ok(is_ours.then_some(Described { manifest, config }));
            }
            Description::Index(entries) => entries,
        };
        let refused = |reason| ImportError::Document { document: name.to_owned(), reason };
        if level >= MOST_LEVELS {
            return Err(refused(format!("more than {MOST_LEVELS} indexes lead to the manifest")).into());
        }
        for entry in self.platforms.choose(&entries.iter().collect::<Vec<_>>()) {
            self.documents += 1;
            if self.documents > MOST_DOCUMENTS {
                return Err(refused(format!("it leads to more than {MOST_DOCUMENTS} descriptions")).into());
            }
            let description = self.registry.described(entry)?;
            if let Some(found) = self.image(&entry.digest.to_string(), description, level + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A configuration, from the store if that has the image.
    fn config(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        match self.store.find(&Reference::of_image(descriptor.digest)) {
            Ok(Some(image)) => Ok(image.config_json().as_bytes().to_owned()),
            _ => self.registry.config(descriptor),
        }
    }
}

/// The layers of a manifest, with what the configuration says about them.
fn layers(manifest: &Manifest, config: &[u8]) -> Result<Vec<FoundLayer>, PullError> {
    let document = manifest.config.digest.to_string();
    let wrong = |reason: String| ImportError::Document { document: document.clone(), reason };
    let config = ImageConfig::from_json(config).map_err(|error| wrong(error.to_string()))?;
    let (layers, diff_ids) = (manifest.layers.len(), config.diff_ids.len());
    if layers != diff_ids {
        return Err(wrong(format!("it has {diff_ids} diff ids for {layers} layers")).into());
    }
    let all = manifest.layers.iter().zip(config.diff_ids);
    all.map(|(layer, diff_id)| {
        layer.check_layer()?;
        let size = layer.size.ok_or_else(|| wrong(format!("the layer {} has no size", layer.digest)))?;
        Ok(FoundLayer { digest: layer.digest, diff_id, size })
    })
    .collect()
}
