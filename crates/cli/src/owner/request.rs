//! What `--as-owner` has to know of a command line.

use std::path::Path;

use kennel::EnvBase;

use crate::args::policy::PolicyFlags;

/// What the command line asks for, as far as the owner's process depends on root's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Request<'a> {
    pub(crate) workspace: Option<&'a Path>,
    /// Variables that pass, by name.
    pub(crate) passed: &'a [String],
    /// Whether every variable passes.
    pub(crate) inherits: bool,
    /// Whether the command takes all keys from the start.
    pub(crate) takes_keys: bool,
    /// Whether to end with the process that started this one.
    pub(crate) ends_with_parent: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn of(flags: &'a PolicyFlags) -> Self {
        Self {
            workspace: flags.workspace.as_deref(),
            passed: &flags.pass_env,
            inherits: flags.env == Some(EnvBase::Inherit),
            ..Self::default()
        }
    }
}
