//! Operations of manifests, with their credentials: programs (`kennel op`) and WebAssembly connectors. No
//! flag of a policy reaches them.

#[cfg(feature = "wasm")]
pub(crate) mod connector;
mod credentials;
pub(crate) mod op;
