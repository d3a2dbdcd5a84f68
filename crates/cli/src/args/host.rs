//! What `kennel probe`, `kennel cache` and `kennel audit` accept.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kennel::Profile;

use super::{
    help,
    values::{self, word},
};

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// The profile to test.
    #[arg(long, value_name = "PROFILE", default_value_t = Profile::RepoWrite)]
    #[arg(value_parser = word::<Profile>(Profile::ALL.map(Profile::as_str)))]
    pub(crate) profile: Profile,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheAction {
    /// List the caches with kept changes.
    ///
    /// Shows the size on the disk, the time since the last change, and the path.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove the kept changes of caches.
    ///
    /// That is of all, or of those at PATH. Caches in use stay.
    Clear {
        /// A cache, as commands see it.
        #[arg(value_name = "PATH", value_parser = values::path())]
        paths: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditAction {
    /// Check that no line of a log was changed, removed or inserted.
    #[command(after_help = help::VERIFY)]
    Verify {
        /// A hash that an earlier run printed; the log must still contain that line. Takes one FILE.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// The logs.
        #[arg(required = true, value_name = "FILE", value_parser = values::path())]
        files: Vec<PathBuf>,
    },
}
