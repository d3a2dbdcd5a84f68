//! Kennel confines commands on Linux, for programs that run thousands of them.
//!
//! A [`Policy`] says what a command may see, use and reach. [`Session::prepare`] checks it against this host, turns it
//! into a plan and sets up what commands share; every command then runs in namespaces of its own, with a tmpfs root
//! that shows only what was granted, Landlock, seccomp and limits. What was enforced comes back as data.
//!
//! ```no_run
//! use kennel::{Policy, Profile, Session};
//!
//! # async fn example() -> Result<(), kennel::Error> {
//! let policy = Policy::profile(Profile::RepoWrite, "/home/me/repo");
//! let session = Session::prepare(&policy).await?;
//! let out = session.command("cargo").args(["test"]).output().await?;
//! println!("{} {:?}", out.status, out.enforcement.level());
//! # Ok(())
//! # }
//! ```
//!
//! | for | use |
//! | --- | --- |
//! | many commands, about at the cost of a bare exec | [`Session`] |
//! | a single command | [`Sandbox`] |
//! | a fresh session for each of many agents | [`Pool`] |
//! | commands of a session that another process starts | [`Session::listen`], [`Client`], `kennel-exec` |
//! | programs that a manifest lists, with credentials | [`SpawnPolicy`], [`Manifest`] |
//! | a command whose needs are declared in four fields | [`Capabilities`], [`wrap_command`] |
//! | output copied to a descriptor of any kind, counted and cut | [`Outlets`] |
//! | reading and writing what a command of a session could | [`Session::read`], [`Session::write`] and those beside them |
//! | changes of a workspace, listed before they are made | [`Policy::overlay`], [`Session::changes`], [`Session::commit`] |
//! | keeping paths below a directory, without a sandbox | [`confine_path`], [`open_beneath`] |
//! | what was blocked, after a command failed | [`Policy::explain`], [`Denial`] |
//! | the traits of agent harnesses | `adapters`, with the features `fluers` and `entelix` |
//! | numbers of sessions as Prometheus text | `metrics`, with the feature of that name |
//!
//! The crate makes the system calls itself: no other program, no daemon, nothing set-user-id. The embedding
//! program is never forked, and nothing of its process (signal handlers, umask, directory, environment) is
//! changed, except its cgroup if limits are held by one and the program is alone in it: see [`Cgroup::Auto`]; and
//! what tokio does for [`run_command`] where SIGCHLD is ignored: see [`Wrapper::run`]; and, for the moment that it takes to
//! pass one, the soft limit of descriptors where that is in the way. Linux on x86_64, 5.13 or later; `SECURITY.md` says
//! what is promised and what is not.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;
#[cfg(doctest)]
#[doc = include_str!("../docs/sessions.md")]
struct Sessions;

#[cfg(any(feature = "entelix", feature = "fluers"))]
pub mod adapters;
mod afterwards;
mod audit;
mod below;
mod bridge;
mod caller;
mod capabilities;
mod cgroup;
mod child;
mod client;
mod command;
mod compile;
mod confine;
mod describe;
mod ending;
mod enforcement;
mod error;
mod exec;
mod explain;
mod failure;
mod files;
mod flood;
mod harmless;
mod host;
mod image;
mod inherited;
mod inside;
mod listen;
mod locked;
mod macos;
mod outcome;
mod outlet;
mod overlay;
mod packet;
mod policy;
mod pool;
mod prepared;
mod probe;
mod proxy;
mod report;
mod running;
mod sandbox;
mod session;
mod spawn_policy;
mod start;
mod stdio;
mod sys;
mod terminal;
mod variables;
mod watch;

pub use audit::{AuditError, Verified, audit_log_path, verify_audit};
pub use below::FileKind;
pub use capabilities::{
    Capabilities, EnvPolicy, Layer, RunLimits, Wrapper, resolve_layer, run_command, wrap_command,
};
pub use child::Child;
pub use client::{Call, Client, Event};
pub use command::Command;
pub use confine::{OpenHow, PathEscape, confine_path, open_beneath};
pub use enforcement::{Enforcement, Entry, Level, State};
pub use error::Error;
pub use failure::{Boundary, Class, Details, Failure};
pub use files::{FileEntry, FileInfo, FileReader, FileWriter};
pub use host::{Host, Version};
pub use inherited::inherited_descriptor;
pub use listen::{ListenError, Listening};
pub use macos::{SbplError, sbpl};
pub use outcome::{Basis, Denial, Ended, Limit, Outcome, Output, Usage};
pub use outlet::{Copying, Outlets};
pub use overlay::{Change, ChangeKind, Committed, OverlayError, Refusal, Refused};
pub use policy::{
    Audit, Cgroup, Env, EnvBase, ForeignProxy, IoLimits, Limits, Mount, Network, NetworkLimits, NetworkMode,
    OnUnavailable, Overlay, Policy, PolicyError, Profile, Protection, Requirement, Requirements, Size, Span,
    TmpLife, Toolchains,
};
pub use pool::Pool;
pub use probe::{Area, Finding, Found, Probe, Verdict};
pub use proxy::{Decision, NetworkRequest};
pub use report::Report;
pub use sandbox::Sandbox;
#[cfg(feature = "metrics")]
pub use session::metrics;
pub use session::{Session, SessionBuilder, Stats};
pub use spawn_policy::{
    CheckedSpawn, CredentialError, CredentialResolver, Envelope, Manifest, NoCredentials, Resolving, Secret,
    SpawnError, SpawnLimits, SpawnPolicy, Unavailable, run_help, sandbox_available,
};
pub use stdio::{ChildOutput, ChildStdin, Stdio};
pub use terminal::Terminal;
