//! What a policy comes to on this host, for people: what commands see, where it comes from, and what they may
//! do with it.

use std::path::PathBuf;

use serde::Serialize;

use crate::report::place_kind::PlaceKind;

/// What holds for commands of a sandbox, as far as it is known before one starts.
///
/// ```no_run
/// use kennel::{Policy, Sandbox};
///
/// let sandbox = Sandbox::new(&Policy::default())?;
/// for place in sandbox.in_force().places {
///     println!("{}: {:?}", place.path.display(), place.access);
/// }
/// # Ok::<(), kennel::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct InForce {
    /// The directory in which commands start.
    pub directory: PathBuf,
    /// The root file system: `image` and its digest, or `directory` and its path. `None` for the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// What is visible or hidden, by path, parents first.
    pub places: Vec<Place>,
    /// The names of the variables of a command's environment. Values may be secrets.
    pub variables: Vec<String>,
}

/// A file or directory that commands see, or that is hidden from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// Its path in the sandbox.
    pub path: PathBuf,
    /// The file or directory of the host that is shown there.
    pub host: Option<PathBuf>,
    /// What commands may do there.
    pub access: PlaceAccess,
    /// What it is.
    pub what: PlaceKind,
    /// What asked for it.
    pub origin: PlaceOrigin,
}

/// What commands may do at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlaceAccess {
    /// Read files of the host.
    Read,
    /// Read and change files of the host.
    Write,
    /// Read files of the host, and change a copy that the host does not see.
    Copy,
    /// Use a device of the host.
    Device,
    /// Read and change the sandbox's own files. They are empty at the start, and gone at the end.
    Private,
    /// Read what Kennel or the kernel puts there.
    Own,
    /// Nothing: what the host has there is hidden.
    Hidden,
}

/// What asked for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlaceOrigin {
    /// The profile.
    Profile,
    /// The policy: its workspace or one of its mounts.
    Policy,
    /// Kennel, whatever the policy says: secrets are hidden, and what programs outside obey is read-only.
    Wall,
}
