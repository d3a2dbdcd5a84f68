//! What `kennel run` accepts.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueHint};

use super::{image::PullFlag, owner::AsOwner, policy::PolicyFlags, values};

#[derive(Debug, Default, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    /// With --overlay: show the diff of the changes on stderr, too.
    #[arg(long)]
    pub(crate) diff: bool,
    /// With --overlay: apply the changes to the workspace if the command succeeded.
    #[arg(long)]
    pub(crate) commit: bool,
    /// With --overlay: keep nothing. The command sees no changes of earlier ones.
    #[arg(long, conflicts_with_all = ["diff", "commit"])]
    pub(crate) discard: bool,
    #[command(flatten)]
    pub(crate) owner: AsOwner,
    /// Ask on the terminal about each host that no rule decides.
    ///
    /// Allow it once, for this run, always, or not. No answer within 30 s is no. The command runs on its own
    /// terminal, as with --tty.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) ask: bool,
    /// Let the command read and reach nearly everything, and write to FILE a policy that allows what it used.
    ///
    /// For review: FILE says what it cannot see. Known secrets, /run, /tmp and homes of others stay hidden,
    /// and private addresses closed. Changes to the workspace are kept apart, as with --overlay. FILE is a
    /// new one, outside of the workspace.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) learn: Option<PathBuf>,
    /// Take all keys for the command from the start.
    ///
    /// Not only once it reads. All three standard streams are then its terminal. Needs a terminal; output is
    /// not counted.
    #[arg(long, conflicts_with_all = ["max_output", "output_ends"])]
    pub(crate) tty: bool,
    /// Exit with 128+N if signal N ends the command.
    ///
    /// By default Kennel dies of the same signal.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Write a report to FILE as JSON.
    ///
    /// It has the exit status, the usage of resources, the protections and the denials.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) json: Option<PathBuf>,
    /// Print errors, but no remarks.
    ///
    /// Remarks are weaker protections, denials, notes, and the limit that ended the command. Lost output or
    /// records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) pull: PullFlag,
    /// Execute PROGRAM in place of the entry point of the image, without its default arguments.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) entrypoint: Option<OsString>,
    /// The command and its arguments.
    ///
    /// It begins at the first word that is no flag. A `--` before it says the same. With an image they are
    /// the arguments of its entry point, in place of the default ones.
    #[arg(trailing_var_arg = true, required_unless_present_any = ["image", "policy"], value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
