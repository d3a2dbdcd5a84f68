//! Descriptions of images, in a layout or a registry: an index leads to manifests of several platforms, and a
//! manifest names the parts of one image. It reads texts and fetches nothing.

use std::collections::HashMap;
use std::env::consts;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::image::digest::Digest;
use crate::report::error::import::ImportError;

/// How many indexes lead to a manifest.
pub const MOST_LEVELS: usize = 4;

/// The largest description, in bytes, as in registries.
pub const MOST_DOCUMENT: u64 = 4 << 20;

/// The types of a configuration: of OCI, and of docker before it.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// Manifests of several platforms, or several images.
#[derive(Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// The parts of one image.
#[derive(Debug, Deserialize)]
pub struct Manifest {
    /// The configuration.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
}

/// Something by its digest.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    #[serde(default)]
    pub media_type: String,
    /// Its digest, which is checked.
    pub digest: Digest,
    /// Its bytes. Only who fetches it needs them: the digest says more.
    pub size: Option<u64>,
    /// Where else it is.
    pub urls: Option<Vec<String>>,
    pub(crate) annotations: Option<HashMap<String, String>>,
    pub(crate) platform: Option<DescribedPlatform>,
}

/// The platform of an entry of an index.
#[derive(Debug, Deserialize)]
pub(crate) struct DescribedPlatform {
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

/// What a digest of an image leads to.
#[derive(Debug)]
pub enum Description {
    /// An index, by its entries.
    Index(Vec<Descriptor>),
    /// The manifest of an image.
    Manifest(Box<Manifest>),
}

impl Description {
    /// Reads a description. `document` is what errors call it, and `media_type` what led to it.
    ///
    /// # Errors
    /// It is neither an index nor the manifest of an image.
    pub fn parse(document: &str, media_type: &str, text: &[u8]) -> Result<Self, ImportError> {
        let shape: Shape = parse(document, text)?;
        if shape.schema_version == Some(1) || shape.fs_layers.is_some() {
            return Err(ImportError::SchemaOne { document: document.to_owned() });
        }
        if shape.manifests.is_some() {
            return Ok(Self::Index(parse::<Index>(document, text)?.manifests));
        }
        if let Some(kind) = shape.artifact_type {
            return Err(ImportError::Artifact { kind });
        }
        if shape.layers.is_none() {
            let kind = shape.media_type.unwrap_or_else(|| media_type.to_owned());
            return Err(ImportError::Artifact { kind });
        }
        let manifest: Manifest = parse(document, text)?;
        let kind = &manifest.config.media_type;
        if !CONFIGS.contains(&&**kind) {
            return Err(ImportError::Artifact { kind: kind.clone() });
        }
        Ok(Self::Manifest(manifest.into()))
    }
}

impl Descriptor {
    /// Refuses what is no layer of files.
    ///
    /// # Errors
    /// It is encrypted, or something else.
    pub fn check_layer(&self) -> Result<(), ImportError> {
        let kind = &self.media_type;
        if kind.ends_with("+encrypted") {
            let reason = "it is encrypted: decrypt the image first (skopeo copy --decryption-key)".to_owned();
            return Err(ImportError::Document { document: self.digest.to_string(), reason });
        }
        let is_files =
            kind.contains(".tar") && (kind.contains("image.layer") || kind.contains("image.rootfs"));
        if is_files { Ok(()) } else { Err(ImportError::Artifact { kind: kind.clone() }) }
    }

    /// Whether it describes how another entry was built.
    fn is_attestation(&self) -> bool {
        self.annotations.as_ref().is_some_and(|them| them.contains_key("vnd.docker.reference.type"))
    }
}

/// Chooses what is for this machine, and remembers the platforms of everything else.
#[derive(Debug, Default)]
pub struct Platforms {
    others: Vec<String>,
}

impl Platforms {
    /// The entries of an index for this machine, the best one first: one without a variant of the processor.
    pub fn choose<'d>(&mut self, entries: &[&'d Descriptor]) -> Vec<&'d Descriptor> {
        let has_no_variant = |entry: &&'d Descriptor| {
            entry.platform.as_ref().is_none_or(|platform| platform.variant.is_none())
        };
        let (plain, variants): (Vec<_>, Vec<_>) = entries.iter().copied().partition(has_no_variant);
        let all = plain.into_iter().chain(variants);
        all.filter(|entry| {
            let is_ours = entry.platform.as_ref().is_none_or(|platform| self.is_ours(platform));
            is_ours && !entry.is_attestation()
        })
        .collect()
    }

    /// Whether a platform is that of this machine.
    fn is_ours(&mut self, platform: &DescribedPlatform) -> bool {
        let found = format!("{}/{}", platform.os, platform.architecture);
        let is_ours = found == platform_here();
        if !is_ours && found != "unknown/unknown" {
            self.met(found);
        }
        is_ours
    }

    /// Whether a configuration is for this machine. One that does not say so is. `document` is what errors
    /// call it.
    ///
    /// # Errors
    /// It is no configuration.
    pub fn has(&mut self, document: &str, config: &[u8]) -> Result<bool, ImportError> {
        match platform_of(document, config)? {
            Some(found) if found != platform_here() => {
                self.met(found);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    fn met(&mut self, platform: String) {
        if !self.others.contains(&platform) {
            self.others.push(platform);
        }
    }

    /// Why there is no image. `document` is where the search began.
    #[must_use]
    pub fn refusal(self, document: &str) -> ImportError {
        if self.others.is_empty() {
            let reason = "it names no image".to_owned();
            return ImportError::Document { document: document.to_owned(), reason };
        }
        ImportError::Platform { wanted: platform_here(), found: self.others }
    }
}

/// The platform of this machine, as images have it.
pub(crate) fn platform_here() -> String {
    let architecture = match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}

/// The platform of a configuration, if it has one.
pub(crate) fn platform_of(document: &str, config: &[u8]) -> Result<Option<String>, ImportError> {
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

/// Parses a description.
pub(crate) fn parse<T: for<'d> Deserialize<'d>>(document: &str, text: &[u8]) -> Result<T, ImportError> {
    serde_json::from_slice(text)
        .map_err(|error| ImportError::Document { document: document.to_owned(), reason: error.to_string() })
}
