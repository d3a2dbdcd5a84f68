//! What `kennel init` and `kennel trust` accept.

use std::path::PathBuf;

use clap::Args;

use super::values;

/// Arguments of `kennel init`.
#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// The workspace [default: the current directory, or the top of the git work tree around it].
    #[arg(value_name = "DIR", value_parser = values::path())]
    pub(crate) directory: Option<PathBuf>,
}

/// Arguments of `kennel trust`.
#[derive(Debug, Args)]
pub(crate) struct TrustArguments {
    /// The workspace [default: the current directory, or the top of the git work tree around it].
    #[arg(value_name = "DIR", value_parser = values::path())]
    pub(crate) directory: Option<PathBuf>,
    /// Print kennel.toml, what is new in it and whether it is trusted, and change nothing.
    #[arg(long)]
    pub(crate) show: bool,
    /// Trust it no longer.
    #[arg(long, conflicts_with = "show")]
    pub(crate) remove: bool,
}
