//! Connectors: WebAssembly programs in the embedded runtime, good and hostile ones.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod answers;
mod audit;
#[expect(dead_code, reason = "the bench has one guest more")]
mod built;
mod cache;
mod cli;
mod component;
mod credentials;
mod documents;
mod guest;
mod guests;
mod hostile;
mod limits;
mod load;
mod redirects;
mod requests;
mod server;
mod spawns;
mod steps;
mod support;
mod traces;
mod wire;
