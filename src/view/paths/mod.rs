//! Paths of the host: what they name, where they lead, and who could lead them elsewhere. It only reads.

pub(crate) mod host_links;
pub(crate) mod resolved;
pub(crate) mod search;
pub(crate) mod source;
pub(crate) mod symlink_check;
pub(crate) mod walk;
