//! `kennel serve`: the sandboxes of one machine for clients that speak E2B's protocol; and
//! `kennel route`: those of many machines.
//!
//! A *front* accepts connections, checks keys and passes requests on. It holds nothing that anybody would
//! miss. *Hosts* are processes in which the sandboxes live. Each serves the same HTTP as the front, on a Unix
//! socket that only the front's user can reach, and goes on when the front dies.
//!
//! A room imports only rooms that come before it: `wire` (what front and hosts say to each other), `http`
//! (what front and router share), `blobs`, `sandboxes`, `e2b` and `v1` (their routes), `host`, `config`,
//! `front`, `queue` (jobs from NATS). The router, `route`, knows `wire`, `http` and `config` only. Nothing
//! here makes a sandbox: that is the crate `kennel`.

#![cfg(target_os = "linux")]

mod arguments;
mod blobs;
mod config;
mod e2b;
mod front;
mod host;
mod http;
#[cfg(feature = "nats")]
mod queue;
mod route;
mod sandboxes;
mod v1;
mod wire;

use std::io::Write;
use std::process::ExitCode;

use arguments::Arguments;
#[cfg(not(feature = "nats"))]
use front::NoSource as Queue;
#[cfg(feature = "nats")]
use queue::Queue;

/// The exit status of a failure of Kennel itself, as for `kennel run`.
const FAILED: u8 = 125;

/// The whole of `kennel-server`, which takes the words of `kennel serve`, `kennel route` and `kennel fleet`.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Arguments::read() {
        Arguments::Serve(serve) => front::serve::<Queue>(&serve).map(|()| ExitCode::SUCCESS),
        Arguments::Host(host) => host::run(&host).map(|()| ExitCode::SUCCESS),
        Arguments::Route(route) => route::route(&route).map(|()| ExitCode::SUCCESS),
        Arguments::FleetStatus(status) => route::status(&status),
    };
    done.unwrap_or_else(|problem| {
        say(&format!("kennel: {problem}"));
        FAILED.into()
    })
}

/// A line for whoever started the server.
fn say(line: &str) {
    // Without stderr there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What keeps a server from starting, in words: the thing, the cause, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Problem(String);

impl Problem {
    /// For `map_err`: an error of the system, and what it was about.
    fn about<E: std::error::Error + 'static>(thing: impl std::fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self(format!("{thing}: {cause}"))
    }
}
