//! Limits that an error may be the doing of: which, its value, the flag that raises it. Pure.

use std::time::Duration;

use nix::errno::Errno;

use super::advice;
use crate::{Basis, Denial, Limit, Limits, Protection, Usage};

/// The limit that answers `errno`, where the command has it. Others give the same: the host's own, or one that the
/// command has set itself.
pub(super) fn of_error(limits: &Limits, errno: Errno) -> Option<Denial> {
    let (protection, value, flag) = match errno {
        Errno::EFBIG => (Protection::FileSize, limits.file_size?.to_string(), None),
        Errno::EMFILE => (Protection::OpenFiles, limits.open_files?.to_string(), None),
        Errno::ENOMEM => (Protection::Memory, limits.memory?.to_string(), Some("--memory SIZE")),
        Errno::EAGAIN => (Protection::Pids, limits.pids?.to_string(), Some("--pids N")),
        _ => return None,
    };
    Some(denial(protection, &value, flag, Basis::Possible))
}

/// The limit that ended a command. Wall time is no protection of its own, and told as such.
pub(crate) fn of_end(limits: &Limits, limit: Limit, usage: &Usage) -> Option<Denial> {
    Some(match limit {
        Limit::WallTime => return None,
        Limit::CpuTime => {
            let allowed = limits.cpu_time?;
            // Who wants to end like this sends himself the signal. The kernel counts ticks against the limit, and what
            // it reports as used is measured otherwise.
            let used = Duration::from_micros(usage.user_us.saturating_add(usage.system_us)) * 10 / 9;
            let basis = if used >= allowed.duration() { Basis::Observed } else { Basis::Possible };
            denial(Protection::CpuTime, &allowed.to_string(), Some("--cpu-time TIME"), basis)
        }
        Limit::FileSize => {
            denial(Protection::FileSize, &limits.file_size?.to_string(), None, Basis::Possible)
        }
    })
}

fn denial(protection: Protection, value: &str, flag: Option<&str>, basis: Basis) -> Denial {
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
        basis,
        remedy: flag.map(str::to_owned),
    }
}
