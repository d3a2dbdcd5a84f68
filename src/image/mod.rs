//! Images and the store that keeps them: references, configurations, and layers as directories in the form of
//! overlayfs. It knows no network and mounts nothing.
//!
//! Reading is always compiled. Writing, the feature `image`, applies archives of layers to the store.

pub(crate) mod config;
pub(crate) mod digest;
pub(crate) mod reference;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod work;

#[cfg(feature = "image")]
pub(crate) mod apply;
#[cfg(feature = "image")]
pub(crate) mod archive;
#[cfg(feature = "image")]
pub(crate) mod blob;
#[cfg(feature = "image")]
pub(crate) mod collect;
#[cfg(feature = "image")]
pub(crate) mod export;
#[cfg(feature = "image")]
pub(crate) mod extension;
#[cfg(feature = "image")]
pub(crate) mod fault;
#[cfg(feature = "image")]
pub(crate) mod import;
#[cfg(feature = "image")]
pub(crate) mod layer;
#[cfg(feature = "image")]
pub(crate) mod limits;
#[cfg(feature = "image")]
pub(crate) mod manifest;
#[cfg(feature = "image")]
pub(crate) mod new_layer;
#[cfg(feature = "image")]
pub(crate) mod tree;
#[cfg(feature = "image")]
pub(crate) mod writer;

#[cfg(feature = "image")]
pub use crate::image::collect::{LayerSummary, Pruned, StoreUsage};
pub use crate::image::config::{ImageConfig, Platform};
pub use crate::image::digest::Digest;
#[cfg(feature = "image")]
pub use crate::image::export::{Exported, export};
#[cfg(feature = "image")]
pub use crate::image::import::{Given, Imported, import};
#[cfg(feature = "image")]
pub use crate::image::layer::StoredLayer;
#[cfg(feature = "image")]
pub use crate::image::limits::{Dropped, ImageLimits, LayerNote};
pub use crate::image::reference::Reference;
pub use crate::image::snapshot::Snapshot;
pub use crate::image::store::{Image, ImageSummary, Store};
#[cfg(feature = "image")]
pub use crate::image::writer::{LayerBlob, StoreWriter};
pub use crate::report::error::image::{EntryRefusal, ImageError};
pub use crate::report::error::import::ImportError;
pub use crate::report::error::pull::{PullError, SentCredentials};

#[cfg(all(test, feature = "image"))]
mod tests;
