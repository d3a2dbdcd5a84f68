//! Limits of one command, and an unconfined command that runs to its end with them.

use std::ffi::OsStr;
use std::future::pending;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::policy::limits::Limits;
use crate::policy::units::Size;
use crate::process::group::Group;
use crate::process::output::collected;
use crate::process::stdio::{StdioKind, connect_all};
use crate::report::error::Error;
use crate::report::outcome::Output;

/// Limits of a command of [`run_command`](crate::capabilities::linux::wrapper::run_command), besides its
/// capabilities. They hold in every layer.
///
/// ```
/// use kennel::capabilities::RunLimits;
/// use std::time::Duration;
///
/// let limits = RunLimits { timeout: Some(Duration::from_secs(30)), ..RunLimits::default() };
/// assert_eq!(limits.output, Some(1 << 20));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Wall time, after which Kennel kills it; its exit status is then 124. Default: 10 minutes. `None`: no
    /// limit.
    pub timeout: Option<Duration>,
    /// Bytes to keep of each output stream. Kennel reads and drops the rest, and counts it in a line at the
    /// end. Default: 1 MiB. `None`: no limit.
    pub output: Option<u64>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { timeout: Some(Duration::from_secs(600)), output: Some(1 << 20) }
    }
}

impl RunLimits {
    /// Converts them to the limits of a command in a session.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            timeout: self.timeout.map(Into::into),
            output: self.output.map(Size::from_bytes),
            ..Limits::default()
        }
    }
}

/// Runs a command to its end, without input. Kills what it leaves in its process group. Dropping the future
/// kills the group.
pub(crate) async fn run(mut command: Command, program: &OsStr, limits: &RunLimits) -> Result<Output, Error> {
    let limits = limits.limits();
    let ends = connect_all([StdioKind::Null, StdioKind::Piped, StdioKind::Piped], &mut command)?;
    let mut group = Group::start(command.process_group(0), program)?;
    // The command's ends of the pipes: they would keep its output open.
    drop(command);
    let (_, [stdout, stderr]) = ends.streams(&limits)?;
    collected(stdout, stderr, group.outcome(&limits, pending())).await
}
