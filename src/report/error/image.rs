//! The error of images and of the store that keeps them.

use std::io;
use std::path::{Path, PathBuf};

use crate::report::error::import::ImportError;
use crate::report::error::pull::PullError;
use crate::report::escape::harmless;
use crate::report::failure::{self, Boundary, Class, Details, Failure, failure_of, shown};
use crate::report::remedy::{Remedy, SettingKey, remedy};

/// Why an image cannot be read, stored, removed or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A text is no reference of an image, or no digest.
    #[error("image `{}`: {reason}", harmless(text))]
    Reference {
        /// The text, shortened.
        text: String,
        /// Why not.
        reason: &'static str,
    },
    /// More than one image has a digest that begins so.
    #[error("image `{}`: {} images begin so: {}", harmless(prefix), candidates.len(), candidates.join(", "))]
    Ambiguous {
        /// The beginning of a digest.
        prefix: String,
        /// The digests.
        candidates: Vec<String>,
    },
    /// The store has no such image.
    #[error("image {}: it is not in the store", harmless(name))]
    NotFound {
        /// The image as the caller named it.
        name: String,
    },
    /// The directory of the store cannot be used.
    #[error("image store {}: {reason}", shown(path))]
    Store {
        /// The directory.
        path: PathBuf,
        /// Why not.
        reason: String,
        /// What can be done.
        remedy: &'static str,
    },
    /// The file system of the store cannot hold layers.
    #[error("image store {}: its file system has no {lacks}", shown(path))]
    FileSystem {
        /// The directory of the store.
        path: PathBuf,
        /// What is missing.
        lacks: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of the store could not be read or written.
    #[error("{what} {}", shown(path))]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of the store does not hold what Kennel wrote.
    #[error("image store, {}: {}", shown(path), harmless(reason))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A layer of an image is gone from the store.
    #[error("image {image}: its layer {layer} is not in the store any more")]
    LayerLost {
        /// The digest of the image.
        image: String,
        /// The layer.
        layer: String,
    },
    /// A document of an image is not what it must be.
    #[error("{what}: {}", harmless(reason))]
    Document {
        /// Which document.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Content has another digest than was promised.
    #[error("layer {layer}: its {what} is {found}, not {expected}")]
    Digest {
        /// The layer.
        layer: String,
        /// `digest` of the blob, or `diff id` of its contents.
        what: &'static str,
        /// The promised digest.
        expected: String,
        /// The digest that was found.
        found: String,
    },
    /// A layer is compressed in a way that Kennel does not read.
    #[error("layer {layer}: compressed with {name}")]
    Compression {
        /// The layer.
        layer: String,
        /// The compression.
        name: &'static str,
    },
    /// The bytes of a layer could not be read or uncompressed.
    #[error("read layer {layer}")]
    Read {
        /// The layer.
        layer: String,
        /// The cause.
        source: io::Error,
    },
    /// A layer is no valid archive.
    #[error("layer {layer}: {reason}")]
    Archive {
        /// The layer.
        layer: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// An entry of a layer is refused.
    #[error("layer {layer}, entry `{}`: {reason}", harmless(entry))]
    Entry {
        /// The layer.
        layer: String,
        /// The name of the entry, shortened.
        entry: String,
        /// Why.
        reason: EntryRefusal,
    },
    /// An entry of a layer could not be written.
    #[error("layer {layer}, entry `{}`", harmless(entry))]
    Write {
        /// The layer.
        layer: String,
        /// The name of the entry, shortened.
        entry: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An image is larger than the limits allow.
    #[error("layer {layer}: the image has more than {limit} ({key})")]
    Limit {
        /// The layer in which the limit was reached.
        layer: String,
        /// The limit in words: `64 GiB`, `4000000 files`.
        limit: String,
        /// The setting: `images.max_size` or `images.max_files`.
        key: &'static str,
    },
    /// A file or directory is not taken as an image.
    #[error("{}", if source.is_about(from) { "import".to_owned() } else { format!("import {}", harmless(from)) })]
    Import {
        /// The file or directory, or `stdin`.
        from: String,
        /// Why not.
        source: Box<ImportError>,
    },
    /// An image cannot be had from a registry.
    #[error("pull {}", harmless(image))]
    Pull {
        /// The image, as the caller named it.
        image: String,
        /// Why not.
        source: Box<PullError>,
    },
    /// A session has no image.
    #[error("the root of the session is no image")]
    NoImage,
    /// A session or command uses the image.
    #[error("image {image}: a session uses it")]
    InUse {
        /// The digest of the image.
        image: String,
    },
}

/// Why an entry of a layer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryRefusal {
    /// The name has a component `..`.
    #[error("its name has a component `..`")]
    ParentComponent,
    /// The name begins with `/`.
    #[error("its name is absolute")]
    Absolute,
    /// There is no name, or it has a NUL.
    #[error("its name is empty or has a NUL")]
    NoName,
    /// The name is longer than 4,096 bytes, or a component of it is longer than 255.
    #[error("its name is too long (4096 bytes, 255 a component)")]
    TooLong,
    /// The root of the image would be something else than a directory.
    #[error("it would replace the root of the image")]
    Root,
    /// A whiteout that names nothing, `.` or `..`.
    #[error("it is a whiteout of no name")]
    Whiteout,
    /// A part of the name is neither a directory nor a link to one.
    #[error("a part of its name is no directory")]
    NotDirectory,
    /// A symbolic link on the way leads out of the image.
    #[error("a link on its way leads out of the image")]
    LinkOut,
    /// There are more symbolic links on the way than path_resolution(7) allows.
    #[error("too many links are on its way")]
    TooManyLinks,
    /// The target of a symbolic link is empty or has a NUL.
    #[error("it is a link to nothing")]
    LinkTarget,
    /// The target of a hard link has a component `..`, or is empty.
    #[error("it is a hard link that leads out of the image")]
    HardLinkOut,
    /// The target of a hard link does not exist.
    #[error("it is a hard link to a file that does not exist")]
    HardLinkLost,
    /// The target of a hard link is a directory.
    #[error("it is a hard link to a directory")]
    HardLinkDirectory,
    /// The target of a hard link is in a lower layer, and its mode or that of a directory above it keeps its
    /// owner from reading it.
    #[error("it is a hard link to a file of a lower layer that its owner cannot read")]
    HardLinkUnreadable,
    /// A directory of a lower layer keeps its owner out.
    #[error("a directory of a lower layer on its way keeps its owner out")]
    Unsearchable,
    /// The type of the entry is unknown.
    #[error("its type is unknown")]
    Type,
    /// Its record of holes contradicts itself.
    #[error("its list of holes is not valid")]
    Sparse,
}

failure_of!(ImageError);

impl ImageError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary) = match self {
            Self::Pull { source, .. } if matches!(**source, PullError::Unreachable { .. }) => {
                (Class::NetworkUnreachable, Boundary::External)
            }
            Self::Reference { .. } | Self::Ambiguous { .. } => (Class::CapabilityDenied, Boundary::Action),
            Self::NotFound { .. } => (Class::LoadFailed, Boundary::Runtime),
            Self::Limit { .. } => (Class::ResourceLimitExceeded, Boundary::Runtime),
            Self::Digest { .. } => (Class::HashMismatch, Boundary::External),
            Self::Compression { .. }
            | Self::Read { .. }
            | Self::Archive { .. }
            | Self::Entry { .. }
            | Self::Document { .. }
            | Self::Import { .. }
            | Self::Pull { .. } => (Class::LoadFailed, Boundary::External),
            _ => (Class::RuntimeError, Boundary::Runtime),
        };
        let details = match self {
            Self::Digest { expected, found, .. } => {
                Details::Hash { expected: expected.clone(), found: found.clone() }
            }
            _ => Details::None,
        };
        Failure::new(class, boundary, failure::chain(self), details)
    }

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        Some(Remedy::from(match self {
            Self::Reference { .. } => {
                "write NAME:TAG, HOST/NAME:TAG, NAME@sha256:DIGEST, or a digest of which 4 digits are enough"
            }
            Self::Ambiguous { .. } => "write more digits of the digest",
            Self::NotFound { .. } => "import or pull the image, or list what the store has",
            Self::Store { remedy, .. } => remedy,
            Self::FileSystem { .. } => {
                "let KENNEL_IMAGES name a directory on ext4, XFS, btrfs, or a tmpfs of Linux 6.6: not on NFS, FUSE or an overlay"
            }
            Self::LayerLost { .. } | Self::Damaged { .. } => "remove the image and import or pull it again",
            Self::Digest { .. } => "get it again: it was changed or damaged on its way",
            Self::Compression { .. } => "uncompress it, or compress it with gzip or zstd",
            Self::Read { .. } | Self::Archive { .. } => "check that the file is complete, or get it again",
            Self::Entry { reason: EntryRefusal::HardLinkUnreadable | EntryRefusal::Unsearchable, .. } => {
                "build the image so that its owner can read that file"
            }
            Self::Entry { .. } => "do not use this image: tools that build images write no such entry",
            Self::Limit { key: "images.max_size", .. } => "if you trust the image, raise images.max_size",
            Self::Limit { .. } => "if you trust the image, raise images.max_files",
            Self::NoImage => return Some(remedy!["start it with ", SettingKey::Image]),
            Self::InUse { .. } => "stop the sessions that use it, then try again",
            Self::Io { source, .. } | Self::Write { source, .. } => {
                return crate::report::shortage::of_writing(source).map(Remedy::from);
            }
            Self::Import { source, .. } => return source.remedy(),
            Self::Pull { source, .. } => return source.remedy(),
            Self::Document { .. } => return None,
        }))
    }
}
