//! Scheduling privileges of this process, which commands would inherit.

use nix::sys::resource::{Resource, getrlimit};

use crate::sys::read_proc;

/// Scheduling privileges of a process. A CPU limit does not stop a real-time process, and with an
/// `oom_score_adj` of -1000 the kernel kills no process at the memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedulingPrivileges {
    /// Real-time or deadline policy, nice value below 0, real-time I/O.
    pub(crate) scheduling: [bool; 3],
    /// Whether `oom_score_adj` is below 0.
    pub(crate) oom: bool,
    /// Whether the process may take a real-time policy or a nice value below 0 (RLIMIT_RTPRIO, RLIMIT_NICE),
    /// as members of audio groups may.
    pub(crate) may_be: bool,
}

impl SchedulingPrivileges {
    pub(crate) fn current() -> Self {
        let adjusted = read_proc("/proc/self/oom_score_adj").unwrap_or_default();
        let has = |resource| getrlimit(resource).is_ok_and(|(_, hard)| hard > 0);
        Self {
            scheduling: crate::sys::scheduling_privileges(),
            oom: adjusted.starts_with(b"-"),
            may_be: has(Resource::RLIMIT_RTPRIO) || has(Resource::RLIMIT_NICE),
        }
    }
}
