//! The limits of one command of a session. They are at most those of its policy.

use kennel_helper::plan::Step;

use crate::host::cgroups::{CgroupSetting, Controller};
use crate::plan::Section;
use crate::plan::cgroup::CgroupPlan;
use crate::plan::limits::{CPU_TIME, FILE_SIZE, MEMORY_BY_RLIMIT, NEEDS_CGROUP, OPEN_FILES, rlimit};
use crate::policy::cgroup::Cgroup;
use crate::policy::limits::Limits;
use crate::policy::units::{Size, Span};
use crate::report::enforcement::{Entry, Protection, State};
use crate::report::error::Error;

/// The limits of one command, in the forms that enforce them.
pub(crate) struct Tightened {
    /// Encoded steps that the payload carries out right before execve(2).
    pub(crate) steps: Vec<u8>,
    /// All limits of the command.
    pub(crate) limits: Limits,
    /// Files of its cgroup.
    pub(crate) settings: Vec<CgroupSetting>,
    /// How its own limits are enforced, for the report.
    pub(crate) entries: Vec<Entry>,
}

/// The limits of a command that asks for `wanted`, under a policy with the limits `session`. `descriptors`
/// holds if neither limits open files.
///
/// # Errors
/// A limit above the policy's, one that a single command cannot have, or one that needs a cgroup which the
/// host lacks.
pub(crate) fn tightened(
    session: &Limits,
    groups: &CgroupPlan,
    descriptors: [u64; 2],
    wanted: Option<&Limits>,
) -> Result<Tightened, Error> {
    let none = Limits::default();
    let wanted = wanted.unwrap_or(&none);
    // Whether there is an output limit to end by is known only once both are combined.
    Limits { output_ends: false, ..wanted.clone() }.check()?;
    for (asked, controller, protection) in [
        (wanted.pids.is_some(), Controller::Pids, Protection::Pids),
        (wanted.cpus.is_some(), Controller::Cpu, Protection::Cpus),
    ] {
        if let Some(lack) = groups.lack(controller).filter(|_| asked && !groups.enforces(controller)) {
            let reason = format!("cannot be kept for one command: {NEEDS_CGROUP}; {}", lack.reason);
            return Err(Error::Unavailable { protection, reason, remedy: Some(lack.remedy) });
        }
    }
    let session_only = [
        ("pids", wanted.pids.is_some() && !groups.enforces(Controller::Pids)),
        ("cpus", wanted.cpus.is_some() && !groups.enforces(Controller::Cpu)),
        ("cpuset", wanted.cpuset.is_some()),
        ("io", wanted.io.is_some()),
        ("swap", wanted.swap.is_some()),
        ("cgroup", wanted.cgroup != Cgroup::default() && wanted.cgroup != session.cgroup),
        ("tmp_size", wanted.tmp_size.is_some()),
        ("tmp_inodes", wanted.tmp_inodes.is_some()),
    ];
    if let Some((name, _)) = session_only.into_iter().find(|(_, wanted)| *wanted) {
        return Err(refused(name, "is one of the policy, not of a single command"));
    }
    let mut limits = session.clone();
    lower("memory", wanted.memory, &mut limits.memory)?;
    lower("pids", wanted.pids, &mut limits.pids)?;
    lower("cpus", wanted.cpus, &mut limits.cpus)?;
    lower("cpu_time", wanted.cpu_time, &mut limits.cpu_time)?;
    lower("open_files", wanted.open_files, &mut limits.open_files)?;
    lower("file_size", wanted.file_size, &mut limits.file_size)?;
    lower("output", wanted.output, &mut limits.output)?;
    lower("timeout", wanted.timeout, &mut limits.timeout)?;
    limits.output_ends |= wanted.output_ends;
    limits.check()?;
    let mut steps = Section::default();
    if limits.open_files.is_none() {
        let [soft, hard] = descriptors;
        steps.push(Protection::OpenFiles, &Step::Limit { resource: libc::RLIMIT_NOFILE, soft, hard });
    }
    let mut limit = |protection, resource, value: Option<u64>| {
        if let Some(value) = value {
            steps.push(protection, &rlimit(resource, value));
        }
    };
    let rlimit_data = wanted.memory.filter(|_| !groups.enforces(Controller::Memory));
    limit(Protection::Memory, libc::RLIMIT_DATA, rlimit_data.map(Size::bytes));
    limit(Protection::FileSize, libc::RLIMIT_FSIZE, wanted.file_size.map(Size::bytes));
    limit(Protection::OpenFiles, libc::RLIMIT_NOFILE, limits.open_files);
    limit(Protection::CpuTime, libc::RLIMIT_CPU, wanted.cpu_time.map(Span::whole_seconds));
    let entries = entries_of_command(wanted, groups);
    Ok(Tightened { steps: steps.bytes, limits, settings: groups.for_command(session, wanted), entries })
}

/// How the limits that a single command asks for are enforced.
fn entries_of_command(wanted: &Limits, groups: &CgroupPlan) -> Vec<Entry> {
    let by_cgroup = |controller, protection| {
        groups.enforces(controller).then_some((protection, State::Enforced, "by the cgroup of the command"))
    };
    let memory = || {
        let by_rlimit = (Protection::Memory, State::Degraded, MEMORY_BY_RLIMIT);
        by_cgroup(Controller::Memory, Protection::Memory).or(Some(by_rlimit))
    };
    [
        wanted.memory.and_then(|_| memory()),
        wanted.pids.and_then(|_| by_cgroup(Controller::Pids, Protection::Pids)),
        wanted.cpus.and_then(|_| by_cgroup(Controller::Cpu, Protection::Cpus)),
        wanted.cpu_time.map(|_| (Protection::CpuTime, State::Degraded, CPU_TIME)),
        wanted.open_files.map(|_| (Protection::OpenFiles, State::Enforced, OPEN_FILES)),
        wanted.file_size.map(|_| (Protection::FileSize, State::Enforced, FILE_SIZE)),
    ]
    .into_iter()
    .flatten()
    .map(|(name, state, detail)| Entry {
        name,
        state,
        detail: detail.to_owned(),
        cause: None,
        remedy: None,
        asked: true,
    })
    .collect()
}

/// Sets the limit to `wanted`, if that is not above `kept`.
fn lower<T: PartialOrd + Copy>(name: &str, wanted: Option<T>, kept: &mut Option<T>) -> Result<(), Error> {
    if wanted.is_some() && kept.is_some() && wanted > *kept {
        return Err(refused(name, "is above that of the policy"));
    }
    *kept = wanted.or(*kept);
    Ok(())
}

fn refused(name: &str, reason: &str) -> Error {
    Error::Command { what: "limit", value: name.to_owned(), reason: reason.to_owned() }
}
