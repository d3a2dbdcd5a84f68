//! Adapters: each implements a trait that another crate publishes, with sandboxes of [`kennel`]. Only
//! adapters have types of other crates in public signatures.

#[cfg(all(doctest, feature = "fluers"))]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;

#[cfg(feature = "entelix")]
pub mod entelix;
#[cfg(feature = "fluers")]
pub mod fluers;
