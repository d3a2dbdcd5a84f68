//! What is wrong with a layer, before anybody knows which layer it is.

use std::io;

use nix::errno::Errno;

use crate::report::error::image::{EntryRefusal, ImageError};

/// A fault of a layer, or in storing it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It is no valid archive.
    Archive(&'static str),
    /// It is compressed in an unknown way.
    Compression(&'static str),
    /// It could not be read.
    Read(io::Error),
    /// The current entry is refused.
    Entry(EntryRefusal),
    /// The current entry could not be written.
    Write(io::Error),
    /// The image has too many bytes.
    Size(u64),
    /// The image has too many entries.
    Files(u64),
}

impl From<EntryRefusal> for Fault {
    fn from(refusal: EntryRefusal) -> Self {
        Self::Entry(refusal)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Write(errno.into())
    }
}

impl Fault {
    /// The error, with the names of the layer and the entry.
    pub(crate) fn of_layer(self, layer: &str, entry: &[u8]) -> ImageError {
        let layer = layer.to_owned();
        let entry = || String::from_utf8_lossy(entry).chars().take(200).collect();
        match self {
            Self::Archive(reason) => ImageError::Archive { layer, reason },
            Self::Compression(name) => ImageError::Compression { layer, name },
            Self::Read(source) => ImageError::Read { layer, source },
            Self::Entry(reason) => ImageError::Entry { layer, entry: entry(), reason },
            Self::Write(source) => ImageError::Write { layer, entry: entry(), source },
            Self::Size(most) => {
                let limit = match most >> 30 {
                    0 => format!("{most} bytes"),
                    _ if most.trailing_zeros() < 30 => format!("{most} bytes"),
                    gibibytes => format!("{gibibytes} GiB"),
                };
                ImageError::Limit { layer, limit, key: "images.max_size" }
            }
            Self::Files(most) => {
                ImageError::Limit { layer, limit: format!("{most} files"), key: "images.max_files" }
            }
        }
    }
}
