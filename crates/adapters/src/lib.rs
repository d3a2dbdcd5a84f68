//! Adapters: each implements a trait that another crate publishes, with Kennel's own public features. Only adapters
//! have types of other crates in public signatures.

#[cfg(feature = "entelix")]
pub mod entelix;
#[cfg(feature = "fluers")]
pub mod fluers;
