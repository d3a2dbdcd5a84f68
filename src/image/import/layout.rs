//! The OCI image layout, in a directory or an archive: `index.json` leads to the manifests, by digests that
//! are checked.

use super::members::Members;
use super::{Found, FoundLayer, docker};
use crate::image::manifest::{Description, Descriptor, Index, MOST_LEVELS, Manifest, Platforms, parse};
use crate::report::error::import::ImportError;

/// What begins a layout.
pub(super) const INDEX: &str = "index.json";

/// What marks a layout.
pub(super) const MARK: &str = "oci-layout";

/// How many descriptions are read to find the images.
const MOST_DOCUMENTS: usize = 1_000;

/// The annotations with names of images, the better one first: the second may be the tag alone.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The images of a layout for this machine.
///
/// # Errors
/// There is none, or a description is wrong.
pub(super) fn images(members: &Members) -> Result<Vec<Found>, ImportError> {
    let text = members.document(INDEX)?.ok_or_else(|| lacks(MARK, INDEX))?;
    let index: Index = parse(INDEX, &text)?;
    let mut search = Search { members, documents: 0, platforms: Platforms::default() };
    let mut groups: Vec<(Option<String>, Vec<&Descriptor>)> = Vec::new();
    for entry in &index.manifests {
        let name = name_of(entry);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, entries)) => entries.push(entry),
            None => groups.push((name, vec![entry])),
        }
    }
    let mut images: Vec<Found> = Vec::new();
    for (name, entries) in groups {
        let mut chosen = search.choose(INDEX, &entries, 0)?;
        // Entries that share a name are platforms of one image. Without a name and a platform they are images
        // of their own.
        if name.is_some() || entries.iter().any(|entry| entry.platform.is_some()) {
            chosen.truncate(1);
        }
        for mut image in chosen {
            image.names.extend(name.clone());
            match images.iter_mut().find(|known| known.config == image.config) {
                Some(known) => known.names.extend(image.names),
                None => images.push(image),
            }
        }
    }
    if images.is_empty() {
        return Err(search.platforms.refusal(INDEX));
    }
    if images.iter().all(|image| image.names.is_empty()) {
        docker::add_names(members, &mut images)?;
    }
    Ok(images)
}

/// The name of an image, if it is more than a tag.
fn name_of(entry: &Descriptor) -> Option<String> {
    let annotations = entry.annotations.as_ref()?;
    let mut names = NAMES.iter().filter_map(|key| annotations.get(*key));
    names.find(|name| name.contains([':', '/'])).cloned()
}

/// The way from an index to manifests for this machine.
struct Search<'m> {
    members: &'m Members,
    /// Descriptions that were read.
    documents: usize,
    platforms: Platforms,
}

impl Search<'_> {
    /// The images for this machine among entries of an index.
    fn choose(
        &mut self,
        document: &str,
        entries: &[&Descriptor],
        level: usize,
    ) -> Result<Vec<Found>, ImportError> {
        if level >= MOST_LEVELS {
            let reason = format!("more than {MOST_LEVELS} indexes lead to the manifest");
            return Err(ImportError::Document { document: document.to_owned(), reason });
        }
        let mut chosen = Vec::new();
        for entry in self.platforms.choose(entries) {
            chosen.extend(self.read(document, entry, level)?);
        }
        Ok(chosen)
    }

    /// The images that an entry leads to.
    fn read(&mut self, document: &str, entry: &Descriptor, level: usize) -> Result<Vec<Found>, ImportError> {
        self.documents += 1;
        if self.documents > MOST_DOCUMENTS {
            let reason = format!("it leads to more than {MOST_DOCUMENTS} descriptions");
            return Err(ImportError::Document { document: INDEX.to_owned(), reason });
        }
        let text = self.members.blob(document, entry)?;
        let name = entry.digest.to_string();
        match Description::parse(&name, &entry.media_type, &text)? {
            Description::Index(entries) => {
                let mut chosen = self.choose(&name, &entries.iter().collect::<Vec<_>>(), level + 1)?;
                chosen.truncate(1);
                Ok(chosen)
            }
            Description::Manifest(manifest) => Ok(self.image(&name, &manifest)?.into_iter().collect()),
        }
    }

    /// The image of a manifest. `None`: it is for another machine.
    fn image(&mut self, name: &str, manifest: &Manifest) -> Result<Option<Found>, ImportError> {
        let config = self.members.blob(name, &manifest.config)?;
        if !self.platforms.has(&manifest.config.digest.to_string(), &config)? {
            return Ok(None);
        }
        let mut layers = Vec::new();
        for layer in &manifest.layers {
            layer.check_layer()?;
            let member = path_of(layer);
            let part = self.members.open(&member)?.ok_or_else(|| match &layer.urls {
                Some(urls) if !urls.is_empty() => ImportError::Document {
                    document: name.to_owned(),
                    reason: format!(
                        "the layer {} is not stored with the image, because its licence forbids that",
                        layer.digest
                    ),
                },
                _ => lacks(name, &member),
            })?;
            layers.push(FoundLayer { digest: Some(layer.digest), part });
        }
        Ok(Some(Found { names: Vec::new(), config, layers }))
    }
}

/// Where a layout has the content of a descriptor.
pub(super) fn path_of(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest.hex())
}

pub(super) fn lacks(document: &str, member: &str) -> ImportError {
    ImportError::Lacks { document: document.to_owned(), member: member.to_owned() }
}
