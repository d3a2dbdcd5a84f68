//! The configuration of an image: the document whose digest is the image's.
//!
//! The few fields that Kennel obeys, read by serde: `oci-spec` would bring all documents of OCI, builders and
//! another error type for these.

use serde::{Deserialize, Deserializer};

use crate::image::digest::Digest;
use crate::report::error::image::ImageError;

/// The longest configuration that is read, in bytes.
const LONGEST: usize = 8 << 20;

/// What an image says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageConfig {
    /// The environment: `NAME=VALUE`. Entries without `=` are kept as they are.
    pub env: Vec<String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The default arguments; the program if there is no entry point.
    pub cmd: Vec<String>,
    /// The directory in which the command starts; `None` for `/`.
    pub working_dir: Option<String>,
    /// Who runs it: `NAME`, `UID`, `USER:GROUP`; `None` for root.
    pub user: Option<String>,
    /// What the image was built for.
    pub platform: Platform,
    /// When it was built, as RFC 3339 writes times.
    pub created: Option<String>,
    /// The digests of its layers' uncompressed archives, lowest first.
    pub diff_ids: Vec<Digest>,
}

/// The machine that an image is for, in the words of Go: `linux`, `amd64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Platform {
    /// The operating system.
    pub os: String,
    /// The processor.
    pub architecture: String,
    /// Its variant: `v8`.
    pub variant: Option<String>,
}

#[derive(Deserialize)]
struct ConfigDocument {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    variant: Option<String>,
    created: Option<String>,
    config: Option<ConfigExecution>,
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
struct RootFs {
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigExecution {
    env: Option<Vec<String>>,
    #[serde(deserialize_with = "words")]
    entrypoint: Vec<String>,
    #[serde(deserialize_with = "words")]
    cmd: Vec<String>,
    working_dir: Option<String>,
    user: Option<String>,
}

/// Early docker wrote a single string.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        One(String),
        Many(Vec<String>),
        None(()),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(word) => vec![word],
        Words::Many(words) => words,
        Words::None(()) => Vec::new(),
    })
}

impl ImageConfig {
    /// Reads the document.
    ///
    /// # Errors
    /// It is no configuration of an image.
    pub fn from_json(json: &[u8]) -> Result<Self, ImageError> {
        let refused = |reason: String| ImageError::Document { what: "image configuration", reason };
        if json.len() > LONGEST {
            return Err(refused("it is longer than 8 MiB".to_owned()));
        }
        let document: ConfigDocument =
            serde_json::from_slice(json).map_err(|error| refused(error.to_string()))?;
        let execution = document.config.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let ConfigDocument { os, architecture, variant, created, rootfs, .. } = document;
        Ok(Self {
            env: execution.env.unwrap_or_default(),
            entrypoint: execution.entrypoint,
            cmd: execution.cmd,
            working_dir: filled(execution.working_dir),
            user: filled(execution.user),
            platform: Platform { os, architecture, variant: filled(variant) },
            created: filled(created),
            diff_ids: rootfs.diff_ids.unwrap_or_default(),
        })
    }
}
