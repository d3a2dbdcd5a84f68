//! Sandboxes on a server, in the shape of local ones: a client of `kennel serve` for tokio.
//!
//! A program that runs commands in sessions of the library `kennel` moves to a server by the line that makes
//! the session:
//!
//! ```no_run
//! # async fn example() -> Result<(), kennel_client::Error> {
//! # let key = String::new();
//! use kennel_client::Server;
//!
//! // On a laptop: let session = Session::prepare(&Policy::profile(Profile::RepoWrite, ".")).await?;
//! let session = Server::new("https://sandboxes.example:8443")?.token(key).sandbox().create().await?;
//!
//! session.write("input.txt", b"3\n1\n2\n").await?;
//! let out = session.command("sort").arg("input.txt").output().await?;
//! println!("{} {}", out.outcome.status, String::from_utf8_lossy(&out.stdout));
//! # Ok(())
//! # }
//! ```
//!
//! What the network changes:
//!
//! - **A stream that is cut is no exit status.** A command whose end nobody knows is an error:
//!   [`Error::SessionLost`] if its session is gone, [`Error::Cut`] or [`Error::Deadline`] otherwise.
//! - **Cancellation kills.** Dropping a [`Child`], or a future that starts or waits for a command, kills the
//!   command on the server. So does a failed wait.
//! - **Every call has an end**: [`Server::deadline`], [`Command::timeout`], and 30 seconds of silence where
//!   the server says every ten that it lives.
//! - **No request is sent twice** that the server may have got. Only those that nobody got are tried again,
//!   for [`Server::patience`]; and creations, which have a key by which the server knows them, kills and
//!   ends.
//! - Names, arguments and paths are UTF-8, as JSON is.
//!
//! It does not depend on the library `kennel`, and runs on every Unix.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/server.md")]
struct ServerPage;

mod child;
mod command;
mod connect;
mod error;
mod events;
mod files;
#[cfg(feature = "nats")]
mod fleet;
#[cfg(feature = "nats")]
mod object;
mod outcome;
mod report;
mod run;
mod sandbox;
mod server;
mod session;

use std::future::Future;

use tokio::sync::oneshot;

pub use crate::child::{Child, ChildOutput, ChildStdin, Signal};
pub use crate::command::{Command, Stdio};
pub use crate::error::{Error, Loss};
pub use crate::files::{FileEntry, FileInfo, FileKind};
#[cfg(feature = "nats")]
pub use crate::fleet::{Attempt, Fleet, Job, JobError, JobResult, JobResults};
pub use crate::outcome::{Ended, Outcome, Output};
pub use crate::report::{
    Change, ChangeKind, Committed, Conflicts, Denial, Enforcement, Failure, NetworkFailure, Refused, Report,
    Usage,
};
pub use crate::run::{Run, RunOutput};
pub use crate::sandbox::Sandbox;
pub use crate::server::Server;
pub use crate::session::Session;

/// Does in a task what the server must not be left with. If the future is dropped meanwhile, the task goes
/// on, and drops what it has got: that ends it.
async fn unless_dropped<T: Send + 'static>(
    task: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let (give, taken) = oneshot::channel();
    tokio::spawn(async move { give.send(task.await) });
    taken.await.map_err(Error::cut)?
}
