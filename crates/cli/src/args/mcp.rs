//! What `kennel mcp` accepts.

use clap::Args;

use super::AsOwner;
use crate::policy::flags::PolicyFlags;

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// With --overlay: let the agent apply changes to the workspace.
    ///
    /// This adds the tool `commit`. Without the flag, only you apply changes, with kennel commit.
    #[arg(long)]
    pub(crate) allow_commit: bool,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// Do not report degraded protections on stderr.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
