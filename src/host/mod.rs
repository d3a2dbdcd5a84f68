//! Facts about this machine that are cheap to read. `probe` tries them out.

pub(crate) mod cgroups;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod mounts;
pub(crate) mod remedy;
pub(crate) mod scheduling;

use std::os::unix::fs::MetadataExt;
use std::{fmt, fs};

use caps::{CapSet, Capability};
use serde::Serialize;

use crate::host::scheduling::SchedulingPrivileges;
use crate::policy::Policy;
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::report::shortage;
use crate::sys::birth::{INSIDE_CAPABILITIES, try_namespaces, try_overlay};
use crate::sys::read_proc;

/// Facts about the kernel on which the plan depends. They are plain data, so a test can describe a kernel
/// that it does not run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Version of the running kernel.
    pub kernel: Version,
    /// Landlock ABI; 0 without Landlock.
    pub landlock_abi: u32,
    /// Whether the kernel accepts seccomp filters.
    pub seccomp: bool,
    /// Whether the caller can create a user namespace; detected by creating one.
    pub user_namespaces: bool,
    /// How many processors the machine can have (`/sys/devices/system/cpu/possible`): the kernel counts the
    /// processes of a user per processor. 0 if unknown or not read; only a process limit for root needs it.
    pub possible_cpus: u32,
    /// Whether an overlay can be mounted over `/etc`, with which a sandbox shows the host's files and its
    /// own.
    pub etc_overlays: bool,
    /// Whether the kernel sends core dumps to a socket (`@` in kernel.core_pattern, Linux 6.16). No limit
    /// prevents that.
    pub core_socket: bool,
    /// Privileges of this process that commands would inherit and must not have.
    #[serde(skip)]
    pub(crate) ahead: SchedulingPrivileges,
}

/// A kernel version, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The oldest supported kernel: mount_setattr(2) came with Linux 5.12.
pub(crate) const OLDEST: Version = Version(5, 12);

/// First kernel with user extended attributes on tmpfs. Without them an overlay cannot replace one directory
/// by another.
pub(crate) const OLDEST_IN_MEMORY: Version = Version(6, 6);

/// The user and group as which PID 1 of root's sandboxes opens files of /etc. It owns nothing, so the kernel
/// shows what every user may read. Distributions and service managers leave this id free.
pub(crate) const READER: u32 = 65533;

/// The first kernel that can send core dumps to a socket.
const CORE_SOCKETS: Version = Version(6, 16);

impl Host {
    /// Detects the facts of the running machine.
    ///
    /// ```
    /// let host = kennel::probe::Host::detect();
    /// println!("Linux {}, Landlock ABI {}", host.kernel, host.landlock_abi);
    /// ```
    #[must_use]
    pub fn detect() -> Self {
        Self { user_namespaces: has_user_namespaces(), possible_cpus: possible_cpus(), ..Self::read() }
    }

    /// Detects what the compilation of `policy` needs. Creating a user namespace costs about 50 µs, and only
    /// matters if the sandbox could do without one. Otherwise this assumes that it works, and the start
    /// reports if it does not.
    pub(crate) fn detect_for(policy: &Policy) -> Self {
        let matters = policy.effective_requirement(Protection::UserNamespace) == Requirement::IfAvailable
            && root_suffices();
        let counts = policy.limits.pids.is_some() && nix::unistd::geteuid().is_root();
        Self {
            user_namespaces: !matters || has_user_namespaces(),
            possible_cpus: if counts { possible_cpus() } else { 0 },
            ..Self::read()
        }
    }

    fn read() -> Self {
        let kernel = kernel_version();
        Self {
            kernel,
            landlock_abi: crate::sys::landlock_abi(),
            seccomp: crate::sys::seccomp_available(),
            user_namespaces: true,
            possible_cpus: 0,
            etc_overlays: has_etc_overlays(),
            core_socket: kernel >= CORE_SOCKETS && has_core_socket(),
            ahead: SchedulingPrivileges::current(),
        }
    }
}

fn possible_cpus() -> u32 {
    parse_possible(&fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default())
}

/// The last number of the list plus one: `0-63` is 64. An unreadable list is 0.
fn parse_possible(list: &str) -> u32 {
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    last.map_or(0, |last| last.saturating_add(1))
}

fn kernel_version() -> Version {
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    let version = parse_version(&release.unwrap_or_default());
    if version >= OLDEST {
        return version;
    }
    // With personality(2), as `setarch --uname-2.6` sets it, uname(2) reports 2.6. This file has the true
    // version.
    let truth = fs::read_to_string("/proc/sys/kernel/osrelease");
    truth.map_or(version, |release| parse_version(&release))
}

/// `6.18.44-cloud` is 6.18. An unreadable release is 0.0, which is older than every kernel.
fn parse_version(release: &str) -> Version {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or_default());
    Version(numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

fn has_user_namespaces() -> bool {
    let refused = |error: std::io::Error| !error.raw_os_error().is_some_and(shortage::is_shortage);
    !try_namespaces(libc::CLONE_NEWUSER).is_err_and(refused)
}

/// Whether the caller is root with all capabilities that the inside needs. Then its sandboxes can do without
/// a user namespace.
pub(crate) fn root_suffices() -> bool {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let needed = INSIDE_CAPABILITIES;
    let holds = |number: &u32| held.iter().any(|capability| u32::from(capability.index()) == *number);
    nix::unistd::geteuid().is_root() && needed.iter().all(holds)
}

/// Whether PID 1 of a sandbox can mount an overlay over /etc. Root's also needs a second id: see [`READER`].
fn has_etc_overlays() -> bool {
    let is_known = || {
        let known = read_proc("/proc/filesystems").unwrap_or_default();
        known.split(u8::is_ascii_whitespace).any(|word| word == b"overlay")
    };
    // Overlays can be stacked twice. In a container, / is the first.
    let device = |path: &str| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let is_plain = device("/") == device("/etc");
    let can = is_plain && is_known() || try_overlay(c"lowerdir=/etc:/usr").is_ok();
    can && (!nix::unistd::geteuid().is_root() || may_change_ids())
}

/// Whether the caller may give a child the id [`READER`]. In a container it may have neither the right nor
/// such an id.
fn may_change_ids() -> bool {
    let held = caps::read(None, CapSet::Effective).unwrap_or_default();
    let may = [Capability::CAP_SETUID, Capability::CAP_SETGID].iter().all(|needed| held.contains(needed));
    may && ["/proc/self/uid_map", "/proc/self/gid_map"]
        .iter()
        .all(|path| read_proc(path).is_ok_and(|map| maps(&String::from_utf8_lossy(&map), READER)))
}

/// Whether an id map of user_namespaces(7) has `id` inside.
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u32> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if id.checked_sub(first).is_some_and(|above| above < count))
    })
}

/// core(5): whether core dumps go to a socket.
fn has_core_socket() -> bool {
    read_proc("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with(b"@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_mapped_if_a_line_of_the_map_has_it() {
        let has = |map| maps(map, 65533);
        assert!(has("         0          0 4294967295\n") && has("0 1000 1\n1 100000 65536\n"));
        assert!(has("65533 9 1\n") && !has("65532 9 1\n") && !has("65534 9 1\n") && !has("0 0 65533\n"));
        assert!(!has("") && !has("x") && !has("0 0\n"));
    }

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(parse_version("6.18.44-fc-v595"), Version(6, 18));
        assert_eq!(parse_version("5.10.0-32-cloud-amd64"), Version(5, 10));
        assert_eq!(parse_version("7.3"), Version(7, 3));
        assert_eq!(parse_version("nonsense"), Version(0, 0));
        assert_eq!(["0-63\n", "0\n", "0-3,8-11\n", "", "x"].map(parse_possible), [64, 1, 12, 0, 0]);
        assert!(Version(5, 10) < OLDEST && OLDEST < Version(6, 1));
    }
}
