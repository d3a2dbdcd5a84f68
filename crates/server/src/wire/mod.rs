//! What the front and its hosts say to each other, beside the requests of clients that the front passes on.

pub(crate) mod failure;
pub(crate) mod headers;
pub(crate) mod id;
pub(crate) mod memory;
pub(crate) mod page;
pub(crate) mod rest;
pub(crate) mod room;
pub(crate) mod sandbox;

use std::path::{Path, PathBuf};

/// The version of what is said. A front does not use hosts of another one.
pub(crate) const VERSION: u32 = 3;

/// The port of E2B's own daemon, which the server answers itself.
pub(crate) const ENVD_PORT: u16 = 49983;

/// The version of that daemon whose requests are understood. A higher one makes clients ask for more.
pub(crate) const ENVD_VERSION: &str = "0.5.7";

/// Where a sandbox finds its own files, whatever it was made from: as with E2B.
pub(crate) const HOME: &str = "/home/user";

/// The longest life that anybody can ask for, in seconds: ten years.
pub(crate) const MOST_SECONDS: u64 = 10 * 365 * 24 * 60 * 60;

/// Where things are in the state directory.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory(pub(crate) PathBuf);

impl StateDirectory {
    /// Of each sandbox: a directory with its record and its files.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }

    /// Of each sandbox that a dead host has lost: an empty file.
    pub(crate) fn lost(&self) -> PathBuf {
        self.0.join("lost")
    }

    /// Of each token: a directory with its blobs.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.0.join("blobs")
    }

    /// Results of jobs that are kept until the queue can be reached.
    #[cfg(feature = "nats")]
    pub(crate) fn kept_results(&self) -> PathBuf {
        self.0.join("results")
    }

    /// From which the tokens of sandboxes are computed.
    pub(crate) fn seed(&self) -> PathBuf {
        self.0.join("seed")
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    pub(crate) fn host_socket(&self, index: u8) -> PathBuf {
        self.hosts().join(format!("{index}.socket"))
    }

    /// Locked while the host lives.
    pub(crate) fn host_lock(&self, index: u8) -> PathBuf {
        self.hosts().join(format!("{index}.lock"))
    }

    /// What a host prints.
    pub(crate) fn host_log(&self, index: u8) -> PathBuf {
        self.hosts().join(format!("{index}.log"))
    }

    /// Locked while the front lives.
    pub(crate) fn front_lock(&self) -> PathBuf {
        self.0.join("front.lock")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}
