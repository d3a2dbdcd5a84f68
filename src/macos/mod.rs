//! Commands and sessions on macOS: `sandbox-exec` with a profile, a private temporary directory, and the
//! proxy on a port of loopback.
//!
//! Here are no namespaces, so a command sees the same file tree as everybody: what is not granted exists and
//! cannot be opened. It is a process group, and that is what a timeout ends. `unsupported.rs` says what the
//! report of a command has as off, and which policies are refused. The tests run on Linux too, with a
//! stand-in for `sandbox-exec`. Nobody has run this on a Mac yet.

pub(crate) mod cell;
pub(crate) mod child;
pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod in_force;
pub(crate) mod places;
pub(crate) mod probe;
pub(crate) mod proxy;
pub(crate) mod record;
pub(crate) mod session;
pub(crate) mod temporary;
#[cfg(test)]
mod tests;
pub(crate) mod unsupported;
pub(crate) mod way;
pub(crate) mod work_tree;
