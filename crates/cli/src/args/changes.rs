//! What `kennel diff`, `kennel commit` and `kennel discard` accept.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

use super::{owner::AsOwner, values};

/// Where kept changes are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The workspace, or a directory in it [default: the current directory].
    #[arg(long, value_name = "DIR", value_parser = values::path())]
    pub(crate) workspace: Option<PathBuf>,
    /// The directory of --overlay-upper, if the commands ran with that.
    #[arg(long, value_name = "DIR", value_parser = values::path())]
    pub(crate) overlay_upper: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Show a line for each file instead of its contents.
    #[arg(long)]
    pub(crate) stat: bool,
    /// Show N unchanged lines around each change [default: 3].
    #[arg(short = 'U', long, value_name = "N")]
    pub(crate) unified: Option<u32>,
    /// Do not start a pager. On a terminal it is $KENNEL_PAGER, $PAGER or less.
    #[arg(long)]
    pub(crate) no_pager: bool,
    /// Show what commands changed in the image of session NAME, not in the workspace. Each PATH is one of the
    /// image.
    #[arg(long, requires = "words", conflicts_with_all = ["workspace", "overlay_upper", "as_owner"])]
    pub(crate) image: bool,
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a
    /// session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CommitArguments {
    /// Replace what others changed at PATH since the command saw it.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) part: Part,
}

#[derive(Debug, Args)]
pub(crate) struct Part {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The name of a session, and paths in the workspace. Write ./PATH for a path that is also the name of a
    /// session.
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
}
