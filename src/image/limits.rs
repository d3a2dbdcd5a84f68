//! How much an image may take, and what an import leaves out.

use std::fmt;

/// The most that one image may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// `images.max_size`: bytes of all its layers' archives, uncompressed. 64 GiB.
    pub max_size: u64,
    /// `images.max_files`: entries of all its layers. 4 million.
    pub max_files: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { max_size: 64 << 30, max_files: 4_000_000 }
    }
}

/// What an import leaves out of a layer, because it would have no effect or could do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dropped {
    /// Set-user-id and set-group-id bits.
    SetIdBits,
    /// `security.capability`: capabilities of programs.
    FileCapabilities,
    /// Device nodes. What lower layers have at their names is hidden.
    Devices,
    /// `user.overlay.*`: marks of overlayfs itself.
    OverlayAttributes,
    /// `trusted.*` and all other attributes that are not the user's, and those of links and FIFOs.
    Attributes,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetIdBits => "set-user-id and set-group-id bits",
            Self::FileCapabilities => "capabilities of programs",
            Self::Devices => "device nodes",
            Self::OverlayAttributes => "attributes of overlayfs",
            Self::Attributes => "extended attributes",
        })
    }
}

/// How often a layer had something that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct LayerNote {
    /// What was left out.
    pub dropped: Dropped,
    /// How many entries had it.
    pub count: u64,
}

impl LayerNote {
    /// The notes of several layers, each kind once.
    #[must_use]
    pub fn sum<'n>(notes: impl IntoIterator<Item = &'n Self>) -> Vec<Self> {
        let mut sum: Vec<Self> = Vec::new();
        for note in notes {
            match sum.iter_mut().find(|known| known.dropped == note.dropped) {
                Some(known) => known.count += note.count,
                None => sum.push(*note),
            }
        }
        sum
    }
}
