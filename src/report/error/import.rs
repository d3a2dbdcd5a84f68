//! The error of importing images from files: what a file is, if it is no image, and what to do instead.

use std::io;
use std::path::PathBuf;

use crate::report::failure::shown;
use crate::report::remedy::Remedy;

/// Why a file or directory is not taken as an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error("read {}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It had to be copied to the store first, which cannot be written.
    #[error("copy it to the image store")]
    Copy {
        /// The kernel's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("it is {what}, which is no image")]
    Other {
        /// What it is: `a ZIP archive`, `an empty directory`.
        what: String,
        /// What can be done.
        remedy: Option<&'static str>,
    },
    /// Its compression is not supported.
    #[error("it is compressed with {compression}, and only gzip and zstd are read")]
    Compression {
        /// Its name.
        compression: &'static str,
    },
    /// A description in it cannot be understood.
    #[error("{document}: {reason}")]
    Document {
        /// Its name in the archive.
        document: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It names something that is not in it.
    #[error("{document} names {member}, which is not there")]
    Lacks {
        /// The description that names it.
        document: String,
        /// What is missing.
        member: String,
    },
    /// Something in it is not what its digest says.
    #[error("{member}: the digest is {found} and not {expected}")]
    Digest {
        /// Its name in the archive.
        member: String,
        /// What the description says.
        expected: String,
        /// What was computed.
        found: String,
    },
    /// It is an image for other machines.
    #[error("there is no image for {wanted}, only for {}", found.join(", "))]
    Platform {
        /// The platform of this machine: `linux/amd64`.
        wanted: String,
        /// The platforms that are there.
        found: Vec<String>,
    },
    /// It is stored like an image, but is something else, such as a Helm chart.
    #[error("it is an artifact of type {kind}, which is no image")]
    Artifact {
        /// Its media type.
        kind: String,
    },
    /// It is an image in the first form of docker, which has no configuration.
    #[error("{document}: it is a manifest of Docker schema 1")]
    SchemaOne {
        /// Its name in the archive.
        document: String,
    },
    /// There are several images, and one name for them.
    #[error("there are {count} images, which cannot all have the name {name}")]
    Several {
        /// How many images there are.
        count: usize,
        /// The name.
        name: String,
    },
    /// It is larger than the limit.
    #[error("it is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
}

impl ImportError {
    /// Whether the text names this file anyway.
    pub(crate) fn is_about(&self, from: &str) -> bool {
        matches!(self, Self::Read { path, .. } if path.to_str() == Some(from))
    }

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "let the owner make a tar archive of it, and import that".into()
                }
                io::ErrorKind::UnexpectedEof => "it is not complete: save or copy it again".into(),
                io::ErrorKind::NotFound => "name a file or a directory that is there, or - for stdin".into(),
                _ => return None,
            },
            Self::Copy { source } => crate::report::shortage::of_writing(source)?.into(),
            Self::Other { remedy, .. } => (*remedy)?.into(),
            Self::Compression { compression, .. } => {
                format!("decompress it first ({compression} -d), or compress it with gzip or zstd").into()
            }
            Self::Document { .. } | Self::Lacks { .. } | Self::Digest { .. } => {
                "it is not complete or was changed: save or copy it again".into()
            }
            Self::Platform { wanted, .. } => {
                format!("pull and save the image for {wanted}: docker pull --platform {wanted}, skopeo copy --override-arch")
                    .into()
            }
            Self::Artifact { .. } => "give an image of a root file system".into(),
            Self::SchemaOne { .. } => {
                "convert it: skopeo copy --format oci, or pull it with docker and save it".into()
            }
            Self::Several { .. } => "leave the name out, so that each has its own, or save one of them alone".into(),
            Self::TooLarge { .. } => "if you trust it, raise images.max_size".into(),
        })
    }
}
