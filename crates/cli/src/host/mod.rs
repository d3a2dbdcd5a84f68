//! `kennel probe`, `kennel cache` and `kennel audit`: what this machine can enforce, and what Kennel keeps on
//! it. They run no command of the user.

pub(crate) mod audit;
#[cfg(target_os = "linux")]
pub(crate) mod cache;
pub(crate) mod probe;
