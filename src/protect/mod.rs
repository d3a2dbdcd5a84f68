//! What programs outside the sandbox obey (git above all), and the look at it after a command.

pub(crate) mod case_fold;
pub(crate) mod commit_rule;
pub(crate) mod forbid;
pub(crate) mod git;
pub(crate) mod grants;
pub(crate) mod home;
pub(crate) mod mount_snapshot;
pub(crate) mod named;
pub(crate) mod paths;
pub(crate) mod place;
pub(crate) mod recheck;
pub(crate) mod watch;
