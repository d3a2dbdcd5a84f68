//! Limits that an error may be the doing of: which, its value, the flag that raises it. Pure.

use nix::errno::Errno;

use super::advice;
use crate::{Basis, Denial, Limit, Limits, Protection};

/// The limit that answers `errno`, where the command has it. Others give the same: the host's own, or one that the
/// command has set itself.
pub(super) fn of_error(limits: &Limits, errno: Errno) -> Option<Denial> {
    let limit = match errno {
        Errno::EFBIG => Limit::FileSize,
        Errno::EMFILE => Limit::OpenFiles,
        Errno::ENOMEM => Limit::Memory,
        Errno::EAGAIN => Limit::Pids,
        _ => return None,
    };
    of_end(limits, limit)
}

/// The limit that a command seems to have ended for: it ended by the limit's signal, which it may also have sent itself.
/// Wall time, output and private places are no protections of their own, and told as such.
pub(crate) fn of_end(limits: &Limits, limit: Limit) -> Option<Denial> {
    let (protection, value, flag) = match limit {
        Limit::Memory => (Protection::Memory, limits.memory?.to_string(), Some("--memory SIZE")),
        Limit::Pids => (Protection::Pids, limits.pids?.to_string(), Some("--pids N")),
        Limit::CpuTime => (Protection::CpuTime, limits.cpu_time?.to_string(), Some("--cpu-time TIME")),
        Limit::FileSize => (Protection::FileSize, limits.file_size?.to_string(), None),
        Limit::OpenFiles => (Protection::OpenFiles, limits.open_files?.to_string(), None),
        Limit::WallTime | Limit::Output | Limit::Tmpfs => return None,
    };
    Some(denial(protection, &value, flag))
}

fn denial(protection: Protection, value: &str, flag: Option<&str>) -> Denial {
    let reason = match protection {
        Protection::FileSize | Protection::OpenFiles => {
            format!("the limit is {value}, {protection} in [limits] of a policy file")
        }
        _ => format!("the limit is {value}"),
    };
    Denial {
        protection,
        subject: protection.as_str().replace('_', " "),
        reason: advice(reason, flag, "would raise it"),
        basis: Basis::Possible,
        remedy: flag.map(str::to_owned),
    }
}
