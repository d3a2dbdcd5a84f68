//! Kennel behind the traits of other crates: each adapter implements a trait that somebody else defines and publishes,
//! with nothing but what Kennel offers anyway. Here, and nowhere else, types of others are in public signatures.

#[cfg(feature = "entelix")]
pub mod entelix;
#[cfg(feature = "fluers")]
pub mod fluers;
