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
//! println!("{} {:?}", out.status, out.enforcement.level());
//! # Ok(())
//! # }
//! ```
//!
//! | for | use |
//! | --- | --- |
//! | many commands, each 1.1 to 1.3 times a bare spawn | [`Session`] |
//! | a single command | [`Sandbox`] |
//! | snippets in one shell that keeps its directory, variables and functions | [`Session::shell`] |
//! | a fresh session for each of many agents | [`Pool`] |
//! | commands of a session that another process starts | [`Session::listen`], [`Client`], `kennel-exec` |
//! | programs that a manifest lists, with credentials | [`SpawnPolicy`], [`Manifest`] |
//! | a command whose needs are declared in four fields | [`Capabilities`], [`wrap_command`] |
//! | output copied to a descriptor of any kind, counted and cut | [`Outlets`] |
//! | reading and writing what a command of a session could | [`Session::read`], [`Session::write`] and those beside them |
//! | changes of a workspace, listed before they are made | [`Policy::overlay`], [`Session::changes`], [`Session::commit`] |
//! | keeping paths below a directory, without a sandbox | [`confine_path`], [`open_beneath`] |
//! | what was blocked, after a command failed | [`Policy::explain`], [`Denial`] |
//! | WebAssembly connectors of others | `connector`, with the feature `wasm` |
//! | the traits of agent harnesses | the crate `kennel-adapters` |
//! | numbers of sessions as Prometheus text | `metrics`, with the feature of that name |
//!
//! The crate makes the system calls itself: no other program, no daemon, nothing set-user-id. The embedding
//! program is never forked, and nothing of its process (signal handlers, umask, directory, environment) is
//! changed, except its cgroup if limits are held by one and the program is alone in it: see [`Cgroup::Auto`];
//! and what tokio does for [`run_command`] where SIGCHLD is ignored: see [`Wrapper::run`]; and, for the
//! moment that it takes to pass one, the soft limit of descriptors where that is in the way. Linux on x86_64,
//! 5.13 or later; `SECURITY.md` says what is promised and what is not.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;
#[cfg(doctest)]
#[doc = include_str!("../docs/sessions.md")]
struct Sessions;

#[cfg(all(doctest, feature = "wasm"))]
#[doc = include_str!("../docs/connectors.md")]
struct Connectors;

// Tests that other packages share name it as those do.
#[cfg(test)]
extern crate self as kennel;

mod audit;
mod broker;
mod capabilities;
mod command;
#[cfg(feature = "wasm")]
pub mod connector;
mod explain;
mod host;
#[doc(hidden)]
pub mod internal;
mod launch;
mod network;
mod overlay;
mod plan;
mod policy;
mod probe;
mod protect;
mod report;
mod serve;
mod session;
mod sys;
mod view;

pub use crate::probe::facts::{Area, Finding, Found, Verdict};
pub use crate::report::failure::Limit;
pub use crate::sys::secret::Secret;
pub use audit::audit_log_path;
pub use audit::chain::{Verified, verify_audit};
pub use broker::SpawnPolicy;
pub use broker::checked::{CheckedSpawn, CredentialResolver, NoCredentials, Resolving, SpawnLimits};
pub use broker::envelope::Envelope;
pub use broker::help::{Unavailable, run_help, sandbox_available};
pub use broker::manifest::Manifest;
pub use capabilities::run::RunLimits;
pub use capabilities::sbpl::{SbplError, sbpl};
pub use capabilities::wrapper::{Wrapper, resolve_layer, run_command, wrap_command};
pub use capabilities::{Capabilities, EnvPolicy, Layer};
pub use command::Command;
pub use command::child::Child;
pub use command::detached::{Detached, LogReader};
pub use command::left_pipes::LeftPipes;
pub use command::outlet::{Copying, Outlets};
pub use command::output::ChildOutput;
pub use command::ring::LogPiece;
pub use command::stdio::{ChildStdin, Stdio};
pub use command::terminal::Terminal;
pub use host::{Host, Version};
pub use network::ask::{Decision, NetworkRequest};
pub use overlay::contents::{Contents, Side};
pub use overlay::kept::{KeptCache, clear_kept_caches, kept_caches};
pub use overlay::kept_changes::KeptChanges;
pub use overlay::review::Review;
pub use plan::environment::is_known_variable;
pub use plan::in_force::{InForce, Place, PlaceAccess, PlaceOrigin};
pub use plan::pseudoterminal::Pseudoterminal;
pub use policy::Policy;
pub use policy::audit::Audit;
pub use policy::cgroup::{Cgroup, IoLimits};
pub use policy::env::{Env, EnvBase};
pub use policy::limits::Limits;
pub use policy::mount::Mount;
pub use policy::network::{ForeignProxy, Network, NetworkLimits, NetworkMode};
pub use policy::overlay::Overlay;
pub use policy::profile::{Caches, Git, Isolation, OnUnavailable, Profile, TmpLife, Toolchains};
pub use policy::require::{Requirement, Requirements};
pub use policy::units::{Size, Span};
pub use probe::Probe;
pub use protect::git::repository::work_tree;
pub use report::Report;
pub use report::change::{Change, ChangeKind, Committed, Conflicts, Discarded, Refusal, Refused};
pub use report::denial::{Basis, Denial};
pub use report::enforcement::{Enforcement, Entry, Level, Note, Protection, State};
pub use report::error::Error;
pub use report::error::audit::AuditError;
pub use report::error::listen::ListenError;
pub use report::error::overlay::OverlayError;
pub use report::error::policy::PolicyError;
pub use report::error::spawn::{CredentialError, SpawnError};
pub use report::failure::{Boundary, Class, Details, Failure};
pub use report::network_failure::{NetworkCause, NetworkFailure};
pub use report::observed::{Observed, ObservedPath};
pub use report::outcome::{Ended, Outcome, Output, Usage};
pub use report::published::PublishedPort;
pub use report::remedy::{Remedy, Setting, SettingKey, Wording};
pub use report::shell::{ShellOrigin, ShellReport};
pub use serve::Listening;
pub use serve::client::call::Call;
pub use serve::client::detached::{DetachedCommand, DetachedState};
pub use serve::client::files::NewFile;
pub use serve::client::{Client, Described, Event};
pub use session::confine::{OpenHow, PathEscape, confine_path, open_beneath};
pub use session::files::stream::{FileEntry, FileInfo, FileReader, FileWriter};
#[cfg(feature = "metrics")]
pub use session::metrics::metrics;
pub use session::pool::Pool;
pub use session::ports::PortStream;
pub use session::processes::{ProcessState, SessionProcess, SessionProcesses};
pub use session::sandbox::Sandbox;
pub use session::shell::{Shell, ShellOutput, Snippet};
pub use session::stats::Stats;
pub use session::{Session, SessionBuilder};
pub use sys::inode::{FileKind, is_one_file};
pub use sys::keyring::leave_session_keyring;
pub use sys::packet::inherited_descriptor;
pub use sys::parent::Parent;
pub use view::place_kind::PlaceKind;
