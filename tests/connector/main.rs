//! Connectors: WebAssembly programs in the embedded runtime, good and hostile ones.
#![expect(clippy::unwrap_used, reason = "tests")]

mod audit;
mod cache;
mod cli;
mod component;
mod guest;
mod hostile;
mod limits;
mod load;
mod requests;
mod server;
mod spawns;
mod support;
mod wire;
