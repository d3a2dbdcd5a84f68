//! The limits that can end a command.

use serde::{Deserialize, Serialize};

/// The limit that ended a command. Each variant tells how Kennel knows. A command that succeeded hit no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::memory`](crate::policy::limits::Limits::memory): the command's cgroup reported it. Without a cgroup, only
    /// the program sees that memory ran out.
    Memory,
    /// [`Limits::pids`](crate::policy::limits::Limits::pids): the command's cgroup reported it.
    Pids,
    /// [`Limits::timeout`](crate::policy::limits::Limits::timeout): Kennel killed it.
    WallTime,
    /// [`Limits::cpu_time`](crate::policy::limits::Limits::cpu_time), if the policy sets it: SIGXCPU ended the command, or
    /// SIGKILL one second later if the command ignores SIGXCPU. The status with which a shell reports such a child (152
    /// or 137) counts too.
    CpuTime,
    /// [`Limits::output`](crate::policy::limits::Limits::output): Kennel killed the command, as
    /// [`output_ends`](crate::policy::limits::Limits::output_ends) demands. Without that, excess output is only cut.
    Output,
    /// [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size) or
    /// [`tmp_inodes`](crate::policy::limits::Limits::tmp_inodes): a private place or a tmpfs of the policy was full when the
    /// command failed.
    Tmpfs,
    /// [`Limits::file_size`](crate::policy::limits::Limits::file_size), if the policy sets it: SIGXFSZ ended the command, or
    /// a child of a shell (153). If the program ignores that signal, only the program sees that the file is too large.
    FileSize,
    /// [`Limits::open_files`](crate::policy::limits::Limits::open_files). Kennel does not report this limit, because only the
    /// program sees it; [`Policy::explain`](crate::policy::Policy::explain) finds it in the program's output.
    OpenFiles,
}

impl Limit {
    /// Its name for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "processes",
            Self::WallTime => "wall time",
            Self::CpuTime => "processor time",
            Self::Output => "output",
            Self::Tmpfs => "private file systems",
            Self::FileSize => "size of a file",
            Self::OpenFiles => "open files",
        }
    }
}
