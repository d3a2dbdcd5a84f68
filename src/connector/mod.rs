//! Connectors: WebAssembly programs that serve operations for an agent. They have no access but what their
//! manifest declares, and what the call leaves of that.
//!
//! ```text
//! Manifest ─┐                                   ┌─ requests ─► gate ─► host
//! program ──┴─ compile ─► Connector ─ invoke ───┼─ spawns ───► broker ─► sandbox
//!                            ▲  Call            └─ log lines
//!                      (a fresh instance each)
//! ```
//!
//! A [`Runtime`] compiles any number of connectors; a [`Connector`] serves any number of calls at the same
//! time. Each call runs in a fresh instance with its own memory, which ends with the call.
//! `docs/connectors.md` describes what a connector can import, and how to write one.
//!
//! ```no_run
//! use kennel::broker::Manifest;
//! use kennel::connector::{Call, Runtime};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::builder().build()?;
//! let manifest = Manifest::load("mail.toml".as_ref())?;
//! let connector = runtime.compile(&manifest, &std::fs::read("mail.wasm")?)?;
//! let call = Call::new("list_recent").argument("count", 10);
//! let result = connector.invoke(call).await?;
//! println!("{:?}", result.output);
//! # Ok(())
//! # }
//! ```
//!
//! The runtime installs handlers for SIGSEGV, SIGILL, SIGFPE and SIGBUS, because a trap of a program is such
//! a signal. They pass on whatever is not one.
#![expect(clippy::result_large_err, reason = "a failure ends a call, and is copied a few times at most")]

mod audit;
mod cache;
mod call;
mod error;
mod grants;
mod guest;
mod heartbeat;
mod host;
mod http;
mod journal;
mod limits;
mod output;
mod program;
mod runtime;
mod slots;
mod transport;

pub use crate::broker::executor::{SpawnExecutor, Spawned, Spawning};
pub use cache::default_cache;
pub use call::{Call, CallResult};
pub use error::ConnectorError;
pub use grants::{GrantedCredential, GrantedProgram, Grants};
pub use guest::imports::{Import, Imports};
pub use http::{HttpClient, Sending};
pub use journal::{LogLevel, LogLine, LogSink};
pub use limits::CallLimits;
pub use program::Connector;
pub use runtime::{Runtime, RuntimeBuilder};
