//! Kennel confines commands on Linux, for programs that run thousands of them.
//!
//! A [`Policy`] says what a command may see, use and reach. [`Session::prepare`] checks it against this host,
//! turns it into a plan and sets up what commands share; every command then runs in namespaces of its own,
//! with a tmpfs root that shows only what was granted, Landlock, seccomp and limits. What was enforced comes
//! back as data.
//!
//! ```no_run
//! use kennel::{Policy, Profile, Session};
//!
//! # async fn example() -> Result<(), kennel::Error> {
//! let policy = Policy::profile(Profile::RepoWrite, "/home/me/repo");
//! let session = Session::prepare(&policy).await?;
//! let out = session.command("cargo").args(["test"]).output().await?;
//! println!("{} {:?}", out.outcome.status, out.outcome.enforcement.level());
//! # Ok(())
//! # }
//! ```
//!
//! | for | use |
//! | --- | --- |
//! | many commands, each 1.1 to 1.3 times a bare spawn | [`Session`] |
//! | a single command | [`Sandbox`] |
//! | snippets in one shell that keeps its directory, variables and functions | [`Session::shell`] |
//! | programs of Python whose imports are made ahead | [`Policy::warm`](field@Policy::warm) |
//! | a fresh session for each of many agents | [`Pool`] |
//! | commands of a session that another process starts | [`Session::listen`], [`client::Client`], `kennel-exec` |
//! | programs that a manifest lists, with credentials | [`broker::SpawnPolicy`], [`broker::Manifest`] |
//! | a command whose needs are declared in four fields | [`capabilities::Capabilities`], [`capabilities::wrap_command`] |
//! | reading and writing what a command of a session could | [`Session::read`], [`Session::write`] |
//! | changes of a workspace, listed before they are made | [`Policy::overlay`], [`Session::changes`], [`Session::commit`] |
//! | keeping paths below a directory, without a sandbox | [`files::confine_path`], [`files::open_beneath`] |
//! | what was blocked, after a command failed | [`Policy::explain`], [`report::Denial`] |
//! | the proxy, for a program that somebody else runs | [`network::SpawnProxy`], [`network::HostPolicy`] |
//! | WebAssembly connectors of others | `connector`, with the feature `wasm` |
//! | executors for tests of your program | `testing`, with the feature of that name |
//! | the traits of agent harnesses | the crate `kennel-adapters` |
//! | sandboxes on a server, in the shape of sessions | the crate `kennel-client` |
//! | numbers of sessions as Prometheus text | `metrics`, with the feature of that name |
//!
//! The crate makes the system calls itself: no other program, no daemon, nothing set-user-id. The embedding
//! program is never forked, and nothing of its process (signal handlers, umask, directory, environment) is
//! changed, except its cgroup if limits are held by one and the program is alone in it: see [`Cgroup::Auto`];
//! and, for the moment that it takes to pass one, the soft limit of descriptors where that is in the way.
//! Linux on x86_64, 5.13 or later; `SECURITY.md` says what is promised and what is not. On macOS the crate
//! has a part of this, by `sandbox-exec`: `docs/macos.md`.

// Only Linux's layers use some of what the others have.
#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, unreachable_pub, unused_imports, reason = "for Linux's layers")
)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;
#[cfg(doctest)]
#[doc = include_str!("../docs/sessions.md")]
struct Sessions;

#[cfg(doctest)]
#[doc = include_str!("../docs/broker.md")]
struct Broker;

#[cfg(all(doctest, feature = "wasm"))]
#[doc = include_str!("../docs/connectors.md")]
struct Connectors;

// Tests that other packages share name it as those do.
#[cfg(test)]
extern crate self as kennel;

// Layers that every system has.
pub mod audit;
mod caller;
pub mod capabilities;
#[doc(hidden)]
pub mod internal;
// Its tests run on Linux, too, with a stand-in for what confines.
#[cfg(any(target_os = "macos", test))]
#[cfg_attr(
    not(target_os = "macos"),
    expect(dead_code, unreachable_pub, reason = "tests use a part, and nobody exports it")
)]
mod macos;
pub mod network;
mod policy;
mod process;
pub mod report;
#[cfg_attr(not(any(target_os = "macos", test)), expect(dead_code, reason = "macOS uses more of it"))]
mod seatbelt;
mod sys;

// The layers of Linux.
#[cfg(target_os = "linux")]
pub mod broker;
#[cfg(target_os = "linux")]
mod command;
#[cfg(all(target_os = "linux", feature = "wasm"))]
pub mod connector;
#[cfg(target_os = "linux")]
mod explain;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
pub mod image;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
pub mod overlay;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
mod protect;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod session;
#[cfg(target_os = "linux")]
mod view;

/// Clients of a session's socket, and the socket.
#[cfg(target_os = "linux")]
pub mod client {
    pub use crate::serve::Listening;
    pub use crate::serve::client::call::Call;
    pub use crate::serve::client::detached::{DetachedCommand, DetachedState};
    pub use crate::serve::client::{Client, Described, Event};
}

/// Files of a session, read and written as a command could; and paths that stay below a directory, without a
/// sandbox.
#[cfg(target_os = "linux")]
pub mod files {
    pub use crate::serve::client::files::NewFile;
    pub use crate::session::confine::{OpenHow, PathEscape, confine_path, open_beneath};
    pub use crate::session::files::stream::{FileDetails, FileEntry, FileInfo, FileReader, FileWriter};
    pub use crate::sys::inode::FileKind;
    pub use crate::sys::mode::Mode;
}

/// Executors for tests: nothing is started (feature `testing`).
///
/// [`Recorder`](testing::Recorder) keeps the spawns that passed the gate, and [`Script`](testing::Script) is
/// a program that answers by its arguments. Both are a [`SpawnExecutor`](broker::SpawnExecutor): pass them to
/// [`SpawnPolicy::execute`](broker::SpawnPolicy::execute), or to `RuntimeBuilder::spawn_executor` of
/// connectors.
#[cfg(all(target_os = "linux", feature = "testing"))]
pub mod testing {
    pub use crate::broker::testing::{RecordedSpawn, Recorder, Script};
}

pub use network::ask::{Decision, NetworkRequest};
pub use policy::Policy;
pub use policy::audit::Audit;
pub use policy::cgroup::{Cgroup, IoLimits};
pub use policy::env::{Env, EnvBase};
pub use policy::image_upper::ImageUpper;
pub use policy::limits::Limits;
pub use policy::mount::Mount;
pub use policy::network::{ForeignProxy, Network, NetworkLimits, NetworkMode};
pub use policy::overlay::Overlay;
pub use policy::profile::{Caches, Git, Isolation, OnUnavailable, Profile, TmpLife, Toolchains};
pub use policy::require::{Requirement, Requirements};
pub use policy::units::{Size, Span};
pub use process::output::ChildOutput;
pub use process::stdio::{ChildStdin, Stdio};
pub use report::error::Error;
pub use report::outcome::{Ended, Outcome, Output, Start};
pub use sys::secret::Secret;
pub use sys::signal::{Signal, UnknownSignal};

#[cfg(target_os = "linux")]
pub use linux::*;

/// What only Linux has, or has in its own form.
#[cfg(target_os = "linux")]
mod linux {
    pub use crate::command::Command;
    pub use crate::command::child::{Child, Stops};
    pub use crate::command::detached::ring::LogPiece;
    pub use crate::command::detached::{Detached, LogReader};
    pub use crate::command::terminal::Terminal;
    pub use crate::plan::pseudoterminal::Pseudoterminal;
    #[cfg(feature = "metrics")]
    pub use crate::session::log::metrics::metrics;
    pub use crate::session::log::stats::Stats;
    pub use crate::session::pool::Pool;
    pub use crate::session::ports::PortStream;
    pub use crate::session::processes::{ProcessState, SessionProcess, SessionProcesses};
    pub use crate::session::sandbox::Sandbox;
    pub use crate::session::shell::{Shell, ShellOutput, Snippet};
    pub use crate::session::warm::{WarmInterpreter, WarmState};
    pub use crate::session::{Session, SessionBuilder};
}

/// What this machine can enforce, found by trying.
#[cfg(target_os = "macos")]
pub mod probe {
    pub use crate::macos::probe::Probe;
    pub use crate::report::finding::{Area, Finding, Found, Verdict};
}

#[cfg(target_os = "macos")]
pub use macos::{child::Child, command::Command, session::Sandbox, session::Session};
