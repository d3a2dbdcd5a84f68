//! Limits of what the commands may use. Plain data; the enforcement report says which limits the host can
//! enforce.

use serde::{Deserialize, Serialize};

use crate::policy::cgroup::{Cgroup, IoLimits, check_cpuset};
use crate::policy::units::{Size, Span, check_size, check_span};
use crate::report::enforcement::Protection;
use crate::report::error::policy::PolicyError;

/// How much a command may use. `None`: no limit except those of the host.
///
/// ```
/// use kennel::{Limits, Size};
///
/// let limits = Limits { memory: Some(Size::from_bytes(64 << 20)), pids: Some(100), ..Limits::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory in bytes. Without a cgroup, it limits the private writable memory of each process
    /// (RLIMIT_DATA), but not shared memory or files in private directories; the enforcement report says so.
    pub memory: Option<Size>,
    /// Swap in bytes, in addition to `memory`. It needs `memory` and a cgroup. Default: no swap.
    pub swap: Option<Size>,
    /// Processes and threads at the same time, of all commands of a session together. How well Kennel can
    /// enforce it depends on the kernel and the caller; the enforcement report says how. Default: none, and
    /// [`SESSION_PIDS`](Self::SESSION_PIDS) in a session whose commands share their processes.
    pub pids: Option<u64>,
    /// Processor time per second, in processors: 0.5 is half of one, 4 is four. It needs a cgroup.
    pub cpus: Option<f64>,
    /// The processors to run on, such as `0-1`. It needs a cgroup.
    pub cpuset: Option<String>,
    /// Reads and writes on the block device of the workspace, and on that of an overlay's directory. It needs
    /// a cgroup.
    pub io: Option<IoLimits>,
    /// Where Kennel may create cgroups. Default: [`Cgroup::Auto`].
    pub cgroup: Cgroup,
    /// Processor time of each process, in whole seconds.
    pub cpu_time: Option<Span>,
    /// Wall-clock time of a command.
    pub timeout: Option<Span>,
    /// Bytes that Kennel keeps of each output stream; it reads and discards the rest. It does not apply to a
    /// terminal.
    pub output: Option<Size>,
    /// Whether Kennel kills a command that writes more than [`output`](Self::output), instead of discarding
    /// the rest. Default: false.
    pub output_ends: bool,
    /// Size of the private directories together (`/tmp`, `/dev/shm`, HOME), in bytes. Default: 2 GiB. With
    /// [`TmpLife::Session`](crate::policy::profile::TmpLife::Session), `/dev/shm` has a size of its own, also
    /// this large.
    pub tmp_size: Option<Size>,
    /// Files, directories and links in the private directories together, and in each tmpfs of the policy.
    /// Default: one for each 4 KiB of the size.
    pub tmp_inodes: Option<u64>,
    /// Open descriptors of a process. Default: the soft limit is that of the caller, and the hard limit is
    /// three quarters of the caller's.
    pub open_files: Option<u64>,
    /// Size of each file that a command writes, in bytes.
    pub file_size: Option<Size>,
}

/// More processors than any kernel supports.
const CPUS_MAX: f64 = 4096.0;
impl Limits {
    /// The most processes of a session whose commands share them, where the policy sets no
    /// [`pids`](Self::pids). More than builds start, and a storm of processes is finite.
    pub const SESSION_PIDS: u64 = 8192;

    /// Whether the policy sets a limit that this protection enforces.
    pub(crate) fn asks_for(&self, protection: Protection) -> bool {
        match protection {
            Protection::Memory => self.memory.is_some(),
            Protection::Pids => self.pids.is_some(),
            Protection::Cpus => self.cpus.is_some(),
            Protection::Cpuset => self.cpuset.is_some(),
            Protection::Io => self.io.is_some(),
            Protection::CpuTime => self.cpu_time.is_some(),
            Protection::OpenFiles => self.open_files.is_some(),
            Protection::FileSize => self.file_size.is_some(),
            _ => false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        for (key, size) in [
            ("limits.memory", self.memory),
            ("limits.swap", self.swap),
            ("limits.output", self.output),
            ("limits.tmp_size", self.tmp_size),
            ("limits.file_size", self.file_size),
        ] {
            check_size(key, size)?;
        }
        for (key, count) in [
            ("limits.pids", self.pids),
            ("limits.tmp_inodes", self.tmp_inodes),
            ("limits.open_files", self.open_files),
        ] {
            if let Some(count) = count.filter(|count| !(1..=COUNT_MAX).contains(count)) {
                return Err(PolicyError::value(key, count, "must be at least 1 and at most 2^53"));
            }
        }
        if let Some(memory) = self.memory.filter(|memory| memory.bytes() < MEMORY_MIN) {
            let reason = "must be at least 1M: no program starts with less";
            return Err(PolicyError::value("limits.memory", memory, reason));
        }
        for (key, span) in [("limits.cpu_time", self.cpu_time), ("limits.timeout", self.timeout)] {
            check_span(key, span)?;
        }
        if let Some(swap) = self.swap.filter(|_| self.memory.is_none()) {
            return Err(PolicyError::value("limits.swap", swap, "needs limits.memory"));
        }
        if self.output_ends && self.output.is_none() {
            return Err(PolicyError::value("limits.output_ends", true, "needs limits.output"));
        }
        self.cgroup.check()?;
        self.io.map_or(Ok(()), |io| io.check())?;
        self.cpuset.as_deref().map_or(Ok(()), check_cpuset)?;
        match self.cpus {
            Some(cpus) if !(cpus > 0.0 && cpus <= CPUS_MAX) => {
                Err(PolicyError::value("limits.cpus", cpus, "must be a number above 0 and at most 4096"))
            }
            _ => Ok(()),
        }
    }
}

/// The largest count. The kernel counts the bytes of inodes in 64 bits and refuses a mount whose count would
/// overflow. Values near 2^64 mean RLIM_INFINITY, which is no limit.
const COUNT_MAX: u64 = 1 << 53;

/// The memory that Kennel's own process in a cgroup and the start of a small program need, in bytes.
const MEMORY_MIN: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::units::{SIZE_MAX, SPAN_MAX};

    pub(crate) fn refused(limits: &Limits, start: &str) {
        let error = limits.check().expect_err(start).to_string();
        assert!(error.starts_with(start), "{error}");
    }

    #[test]
    fn none_and_usual_limits_pass() {
        Limits::default().check().expect("no limits");
        let usual = Limits {
            memory: Some(Size::from_bytes(MEMORY_MIN)),
            pids: Some(1),
            cpus: Some(0.01),
            timeout: Some(SPAN_MAX.into()),
            ..Limits::default()
        };
        usual.check().expect("usual limits");
        Limits { tmp_inodes: Some(COUNT_MAX), ..Limits::default() }.check().expect("the upper bound");
        refused(&Limits { tmp_inodes: Some(COUNT_MAX + 1), ..Limits::default() }, "limits.tmp_inodes `");
        refused(&Limits { pids: Some(libc::RLIM_INFINITY), ..Limits::default() }, "limits.pids `");
        for memory in [1, MEMORY_MIN - 1, SIZE_MAX + 1, libc::RLIM_INFINITY] {
            let memory = Some(Size::from_bytes(memory));
            refused(&Limits { memory, ..Limits::default() }, "limits.memory `");
        }
        Limits { cpus: Some(4096.0), ..Limits::default() }.check().expect("the upper bound");
    }

    #[test]
    fn cpus_are_finite_and_above_zero() {
        for cpus in [0.0, -0.0, -1.0, 4096.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            refused(&Limits { cpus: Some(cpus), ..Limits::default() }, "limits.cpus `");
        }
    }

    #[test]
    fn swap_needs_a_memory_limit() {
        let size = Some(Size::from_bytes(8 << 20));
        refused(&Limits { swap: size, ..Limits::default() }, "limits.swap `8M`: needs limits.memory");
        Limits { swap: size, memory: size, ..Limits::default() }.check().expect("both");
    }

    #[test]
    fn output_ends_needs_an_output_limit() {
        refused(&Limits { output_ends: true, ..Limits::default() }, "limits.output_ends `true`: needs");
        let both = Limits { output_ends: true, output: Some(Size::from_bytes(1)), ..Limits::default() };
        both.check().expect("both");
    }

    #[test]
    fn zeros_from_code_are_refused() {
        let none = Limits::default;
        let (zero, now) = (Some(Size::from_bytes(0)), Some(Span::from(Duration::ZERO)));
        refused(&Limits { memory: zero, ..none() }, "limits.memory `0`");
        refused(&Limits { output: zero, ..none() }, "limits.output `0`");
        refused(&Limits { tmp_size: zero, ..none() }, "limits.tmp_size `0`");
        refused(&Limits { file_size: zero, ..none() }, "limits.file_size `0`");
        refused(&Limits { pids: Some(0), ..none() }, "limits.pids `0`");
        refused(&Limits { tmp_inodes: Some(0), ..none() }, "limits.tmp_inodes `0`");
        refused(&Limits { open_files: Some(0), ..none() }, "limits.open_files `0`");
        refused(&Limits { timeout: now, ..none() }, "limits.timeout `0s`");
        refused(&Limits { cpu_time: Some(Duration::MAX.into()), ..none() }, "limits.cpu_time `");
    }
}
