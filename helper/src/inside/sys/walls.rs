//! System calls that give rights up: Landlock, capabilities, limits, seccomp.

use super::*;

/// landlock_create_ruleset(2). Linux 5.13; an older ABI accepts the later fields if they are zero.
pub(crate) fn landlock_ruleset(attr: &RulesetAttr) -> Result<Fd, Errno> {
    call!(nr::LANDLOCK_CREATE_RULESET, ptr::from_ref(attr), size_of::<RulesetAttr>(), 0).map(fd)
}

/// landlock_add_rule(2).
pub(crate) fn landlock_rule(ruleset: &Fd, parent: &Fd, access: u64) -> Result<(), Errno> {
    let attr = PathBeneathAttr { access, parent: parent.0 };
    call!(nr::LANDLOCK_ADD_RULE, ruleset.0, LANDLOCK_RULE_PATH_BENEATH, &raw const attr, 0).map(drop)
}

/// landlock_add_rule(2) for a TCP port. Linux 6.7.
pub(crate) fn landlock_port(ruleset: &Fd, access: u64, port: u64) -> Result<(), Errno> {
    let attr = NetPortAttr { access, port };
    call!(nr::LANDLOCK_ADD_RULE, ruleset.0, LANDLOCK_RULE_NET_PORT, &raw const attr, 0).map(drop)
}

/// landlock_restrict_self(2).
pub(crate) fn landlock_restrict(ruleset: &Fd) -> Result<(), Errno> {
    call!(nr::LANDLOCK_RESTRICT_SELF, ruleset.0, 0).map(drop)
}

/// prctl(2) with one argument; the rest is zero.
pub(crate) fn prctl(option: u32, argument: u64) -> Result<(), Errno> {
    call!(nr::PRCTL, option, argument, 0, 0, 0).map(drop)
}

/// prctl(PR_CAPBSET_DROP) for every capability that this kernel has.
pub(crate) fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..CAPABILITIES {
        match call!(nr::PRCTL, PR_CAPBSET_DROP, capability, 0, 0, 0) {
            Ok(_) => {}
            // The first number beyond the kernel's last capability.
            Err(Errno(EINVAL)) if capability > 0 => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// capset(2): drops every effective, permitted and inheritable capability, but for the low 32 ones in `but`,
/// which stay permitted and inheritable. The ambient set follows.
pub(crate) fn drop_capabilities(but: u32) -> Result<(), Errno> {
    set_capabilities(&[0, but, but, 0, 0, 0])
}

/// capget(2), capset(2): removes one of the low 32 capabilities from the effective, permitted and inheritable
/// sets. The ambient set follows.
pub(crate) fn drop_capability(capability: u32) -> Result<(), Errno> {
    let mut sets = capabilities()?;
    let bit = 1u32.checked_shl(capability).ok_or(Errno(EINVAL))?;
    for set in sets.iter_mut().take(3) {
        *set &= !bit;
    }
    set_capabilities(&sets)
}

/// capget(2), capset(2): makes one of the low 32 permitted capabilities effective, or not effective.
pub(crate) fn set_effective(capability: u32, has: bool) -> Result<(), Errno> {
    let mut sets = capabilities()?;
    let bit = 1u32.checked_shl(capability).ok_or(Errno(EINVAL))?;
    let [effective, ..] = &mut sets;
    *effective = if has { *effective | bit } else { *effective & !bit };
    set_capabilities(&sets)
}

/// The effective, permitted and inheritable set of the low 32 capabilities, then of the high ones.
pub(crate) type CapabilitySets = [u32; 6];

/// capget(2).
pub(crate) fn capabilities() -> Result<CapabilitySets, Errno> {
    let (header, mut sets) = ([LINUX_CAPABILITY_VERSION_3, 0], [0; 6]);
    call!(nr::CAPGET, &raw const header, &raw mut sets)?;
    Ok(sets)
}

/// capset(2).
fn set_capabilities(sets: &CapabilitySets) -> Result<(), Errno> {
    let header = [LINUX_CAPABILITY_VERSION_3, 0];
    call!(nr::CAPSET, &raw const header, &raw const *sets).map(drop)
}

/// The most groups that [`Groups`] holds.
const MOST_GROUPS: usize = 16;

/// The supplementary groups of this process.
pub(crate) struct Groups {
    ids: [u32; MOST_GROUPS],
    count: usize,
}

impl Groups {
    /// getgroups(2), if setgroups(2) can set the same again. It cannot if they are many, or if one of them
    /// has no id in this user namespace: the kernel shows 65534 for that, and no map of the outside has that
    /// id.
    pub(crate) fn to_restore() -> Option<Self> {
        let mut ids = [0; MOST_GROUPS];
        let count = call!(nr::GETGROUPS, MOST_GROUPS, ids.as_mut_ptr()).ok()?;
        let groups = Self { ids, count };
        groups.set().is_ok().then_some(groups)
    }

    fn set(&self) -> Result<(), Errno> {
        call!(nr::SETGROUPS, self.count, self.ids.as_ptr()).map(drop)
    }
}

/// setgroups(2), setfsgid(2), setfsuid(2): this process opens files as `id`, which has no groups.
pub(crate) fn read_as(id: u32) -> Result<(), Errno> {
    call!(nr::SETGROUPS, 0, 0)?;
    set_ids(id)
}

/// Undoes [`read_as`] in a process of root. The kernel changes the effective capabilities along with the
/// user, see capabilities(7), so they are set too.
pub(crate) fn read_as_root(groups: &Groups, capabilities: &CapabilitySets) -> Result<(), Errno> {
    set_ids(0)?;
    groups.set()?;
    set_capabilities(capabilities)
}

fn set_ids(id: u32) -> Result<(), Errno> {
    for number in [nr::SETFSGID, nr::SETFSUID] {
        call!(number, id)?;
        // Both return the former id and no error. An id that is invalid changes nothing.
        if call!(number, u32::MAX)? != id as usize {
            return Err(Errno(EINVAL));
        }
    }
    Ok(())
}

/// keyctl(KEYCTL_JOIN_SESSION_KEYRING, NULL).
pub(crate) fn new_session_keyring() -> Result<(), Errno> {
    call!(nr::KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, 0).map(drop)
}

/// prlimit(2) on this process.
pub(crate) fn limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let limit = [soft, hard];
    call!(nr::PRLIMIT64, 0, resource, &raw const limit, 0).map(drop)
}

/// prlimit(2): the soft and the hard limit of a process.
pub(crate) fn limit_of(pid: usize, resource: u32) -> Result<[u64; 2], Errno> {
    let mut limit = [0; 2];
    call!(nr::PRLIMIT64, pid, resource, 0, limit.as_mut_ptr())?;
    Ok(limit)
}

/// sched_setscheduler(SCHED_OTHER), setpriority(0) and ioprio_set(IOPRIO_CLASS_NONE) for this process, as
/// requested.
pub(crate) fn make_ordinary(policy: bool, nice: bool, io: bool) -> Result<(), Errno> {
    if policy {
        let priority = 0i32;
        call!(nr::SCHED_SETSCHEDULER, 0, SCHED_OTHER, &raw const priority)?;
    }
    if nice {
        call!(nr::SETPRIORITY, PRIO_PROCESS, 0, 0)?;
    }
    if io {
        call!(nr::IOPRIO_SET, IOPRIO_WHO_PROCESS, 0, 0)?;
    }
    Ok(())
}

/// seccomp(SECCOMP_SET_MODE_FILTER): `program` is an array of `struct sock_filter`. Returns the listener's
/// descriptor if `flags` ask for one.
pub(crate) fn seccomp(program: &[u8], flags: u64) -> Result<usize, Errno> {
    let length = u16::try_from(program.len() / 8).map_err(|_| Errno(EINVAL))?;
    let program = SockFprog { length, filter: program.as_ptr() };
    call!(nr::SECCOMP, SECCOMP_SET_MODE_FILTER, flags, &raw const program)
}
