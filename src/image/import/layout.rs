//! The OCI image layout, in a directory or an archive: `index.json` leads to the manifests, by digests that
//! are checked.

use std::collections::HashMap;
use std::env::consts;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::members::Members;
use super::{Found, FoundLayer, docker};
use crate::image::digest::Digest;
use crate::report::error::import::ImportError;

/// What begins a layout.
pub(super) const INDEX: &str = "index.json";

/// What marks a layout.
pub(super) const MARK: &str = "oci-layout";

/// How many indexes lead to a manifest.
const MOST_LEVELS: usize = 4;

/// How many descriptions are read to find the images.
const MOST_DOCUMENTS: usize = 1_000;

/// The annotations with names of images, the better one first: the second may be the tag alone.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The types of a configuration: of OCI, and of docker before it.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// Manifests of several platforms, or several images.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

/// The parts of one image.
#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// Something by its digest. Its size is not needed: the digest says more.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(super) digest: Digest,
    urls: Option<Vec<String>>,
    annotations: Option<HashMap<String, String>>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

/// What kind of description a JSON object is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    schema_version: Option<u64>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    fs_layers: Option<IgnoredAny>,
}

/// The images of a layout for this machine.
///
/// # Errors
/// There is none, or a description is wrong.
pub(super) fn images(members: &Members) -> Result<Vec<Found>, ImportError> {
    let text = members.document(INDEX)?.ok_or_else(|| lacks(MARK, INDEX))?;
    let index: Index = parse(INDEX, &text)?;
    let mut search = Search { members, documents: 0, platforms: Vec::new() };
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
        return Err(search.nothing());
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
    /// The platforms that were met.
    platforms: Vec<String>,
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
        let (plain, variants): (Vec<&Descriptor>, Vec<&Descriptor>) =
            entries.iter().partition(|entry| entry.platform.as_ref().is_none_or(|it| it.variant.is_none()));
        for entry in plain.into_iter().chain(variants) {
            if entry.platform.as_ref().is_none_or(|platform| self.is_ours(platform)) && !is_attestation(entry)
            {
                chosen.extend(self.read(document, entry, level)?);
            }
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
        let shape: Shape = parse(&name, &text)?;
        if shape.schema_version == Some(1) || shape.fs_layers.is_some() {
            return Err(ImportError::SchemaOne { document: name });
        }
        if shape.manifests.is_some() {
            let index: Index = parse(&name, &text)?;
            let mut chosen = self.choose(&name, &index.manifests.iter().collect::<Vec<_>>(), level + 1)?;
            chosen.truncate(1);
            return Ok(chosen);
        }
        if let Some(kind) = shape.artifact_type {
            return Err(ImportError::Artifact { kind });
        }
        if shape.layers.is_none() {
            let kind = shape.media_type.unwrap_or_else(|| entry.media_type.clone());
            return Err(ImportError::Artifact { kind });
        }
        let manifest: Manifest = parse(&name, &text)?;
        Ok(self.image(&name, &manifest)?.into_iter().collect())
    }

    /// The image of a manifest. `None`: it is for another machine.
    fn image(&mut self, name: &str, manifest: &Manifest) -> Result<Option<Found>, ImportError> {
        let kind = &manifest.config.media_type;
        if !CONFIGS.contains(&&**kind) {
            return Err(ImportError::Artifact { kind: kind.clone() });
        }
        let config = self.members.blob(name, &manifest.config)?;
        if !self.is_for_us(&manifest.config.digest.to_string(), &config)? {
            return Ok(None);
        }
        let mut layers = Vec::new();
        for layer in &manifest.layers {
            check_layer(layer)?;
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

    /// Whether a platform is that of this machine.
    fn is_ours(&mut self, platform: &Platform) -> bool {
        let found = format!("{}/{}", platform.os, platform.architecture);
        let is_ours = found == platform_here();
        if !is_ours && found != "unknown/unknown" {
            self.met(found);
        }
        is_ours
    }

    /// Whether a configuration is for this machine. One that does not say so is.
    fn is_for_us(&mut self, document: &str, config: &[u8]) -> Result<bool, ImportError> {
        match platform_of(document, config)? {
            Some(found) if found != platform_here() => {
                self.met(found);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    fn met(&mut self, platform: String) {
        if !self.platforms.contains(&platform) {
            self.platforms.push(platform);
        }
    }

    /// Why there is no image.
    fn nothing(self) -> ImportError {
        if self.platforms.is_empty() {
            let reason = "it names no image".to_owned();
            return ImportError::Document { document: INDEX.to_owned(), reason };
        }
        ImportError::Platform { wanted: platform_here(), found: self.platforms }
    }
}

/// Whether an entry describes how another one was built.
fn is_attestation(entry: &Descriptor) -> bool {
    let is_marked =
        |annotations: &HashMap<String, String>| annotations.contains_key("vnd.docker.reference.type");
    entry.annotations.as_ref().is_some_and(is_marked)
}

/// The platform of this machine, as images have it.
pub(super) fn platform_here() -> String {
    let architecture = match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}

/// The platform of a configuration, if it has one.
pub(super) fn platform_of(document: &str, config: &[u8]) -> Result<Option<String>, ImportError> {
    #[derive(Deserialize)]
    struct Machine {
        os: Option<String>,
        architecture: Option<String>,
    }
    let machine: Machine = parse(document, config)?;
    let is_given = |text: &String| !text.is_empty();
    let (os, architecture) = (machine.os.filter(is_given), machine.architecture.filter(is_given));
    Ok(os.zip(architecture).map(|(os, architecture)| format!("{os}/{architecture}")))
}

/// Refuses what is no layer of files.
fn check_layer(layer: &Descriptor) -> Result<(), ImportError> {
    let kind = &layer.media_type;
    if kind.ends_with("+encrypted") {
        let reason = "it is encrypted: decrypt the image first (skopeo copy --decryption-key)".to_owned();
        return Err(ImportError::Document { document: layer.digest.to_string(), reason });
    }
    let is_files = kind.contains(".tar") && (kind.contains("image.layer") || kind.contains("image.rootfs"));
    if is_files { Ok(()) } else { Err(ImportError::Artifact { kind: kind.clone() }) }
}

/// Where a layout has the content of a descriptor.
pub(super) fn path_of(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest.hex())
}

/// Parses a description.
pub(super) fn parse<T: for<'d> Deserialize<'d>>(document: &str, text: &[u8]) -> Result<T, ImportError> {
    serde_json::from_slice(text)
        .map_err(|error| ImportError::Document { document: document.to_owned(), reason: error.to_string() })
}

pub(super) fn lacks(document: &str, member: &str) -> ImportError {
    ImportError::Lacks { document: document.to_owned(), member: member.to_owned() }
}
