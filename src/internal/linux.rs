//! What only Linux has of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use crate::command::left_pipes::LeftPipes;
pub use crate::command::outlet::{OutputCopier, RunningCopies};
#[cfg(feature = "image")]
pub use crate::image::manifest::{Description, Descriptor, MOST_DOCUMENT, MOST_LEVELS, Manifest, Platforms};
pub use crate::plan::environment::is_known_variable;
pub use crate::protect::git::repository::work_tree;
pub use crate::sys::keyring::leave_session_keyring;
pub use crate::sys::parent::Parent;

use crate::caller::runtime::Directory;
use crate::policy::Policy;
use crate::probe::Probe;
use crate::report::error::Error;
use crate::serve::Listening;
use crate::serve::call::ClientEnvironment;
use crate::session::Session;

/// The runtime directory of this user, made if it does not exist.
///
/// # Errors
/// It cannot be made, or others can change it.
pub fn make_runtime_directory() -> Result<PathBuf, Error> {
    Ok(Directory::make(&Directory::default_path())?.path().to_owned())
}

/// Checks that no other user can change a directory or what it is in.
///
/// # Errors
/// Another user can.
pub fn check_directory(path: &Path) -> Result<(), Error> {
    Directory::open(path)?;
    Ok(())
}

/// [`Session::listen_in`] for clients that pass no variables.
///
/// # Errors
/// As [`Session::listen_in`].
pub fn listen_without_variables(session: &Session, directory: &Path, name: &str) -> Result<Listening, Error> {
    session.listen_to(directory, name, ClientEnvironment::Nothing)
}

/// The directory in which commands of a session start.
#[must_use]
pub fn start_directory(session: &Session) -> PathBuf {
    session.prepared().compiled.commands.directory.clone()
}

/// The variables that commands of a session have.
#[must_use]
pub fn variables(session: &Session) -> BTreeMap<OsString, OsString> {
    (*session.prepared().compiled.commands.environment.0).clone()
}

/// Whether a session's policy limits the output of a command.
#[must_use]
pub fn limits_output(session: &Session) -> bool {
    session.prepared().compiled.commands.limits.output.is_some()
}

/// Ends a session and all that runs in it. Does not wait until that is gone.
pub fn end(session: &Session) {
    session.end();
}

/// Tests this host with a policy, as [`Probe::run`] does with a profile.
///
/// # Errors
/// The policy is invalid.
pub async fn probe(policy: Policy) -> Result<Probe, Error> {
    Probe::under(policy).await
}

/// Whether commands of a session may find a directory at a path. False only if there is certainly none.
#[must_use]
pub fn may_be_entered(session: &Session, path: &Path) -> bool {
    session.prepared().compiled.view.may_be_entered(path)
}
