//! What this machine offers, as facts that are cheap to read; `probe` tries them for real.

pub(crate) mod caller;
pub(crate) mod cgroups;
pub(crate) mod mounts;
pub(crate) mod remedy;

use std::{fmt, fs};

use caps::CapSet;
use serde::Serialize;

use crate::policy::Policy;
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::report::shortage;

/// Facts of the kernel that the compiler decides by. Plain data, so that kernels we do not have can be written
/// down in a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Version of the running kernel.
    pub kernel: Version,
    /// Landlock ABI, 0 where there is none.
    pub landlock_abi: u32,
    /// Whether seccomp filters can be installed.
    pub seccomp: bool,
    /// Whether a user namespace can be made, which is tried.
    pub user_namespaces: bool,
    /// How many processors there can be (`/sys/devices/system/cpu/possible`): the kernel keeps numbers of processes for
    /// each. 0 where that was not looked at, as it only matters for a limit of root's.
    pub possible_cpus: u32,
    /// Whether cores go to whoever listens on a socket (`@` in kernel.core_pattern, Linux 6.16): no limit keeps them from
    /// there.
    pub core_socket: bool,
}

/// A kernel version, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The oldest kernel whose mount calls suffice: mount_setattr(2) came with Linux 5.12.
pub(crate) const OLDEST: Version = Version(5, 12);

/// The first kernel that can send cores to a socket.
const CORE_SOCKETS: Version = Version(6, 16);

impl Host {
    /// The facts of the running machine.
    ///
    /// ```
    /// let host = kennel::Host::detect();
    /// println!("Linux {}, Landlock ABI {}", host.kernel, host.landlock_abi);
    /// ```
    #[must_use]
    pub fn detect() -> Self {
        Self { user_namespaces: has_user_namespaces(), possible_cpus: possible_cpus(), ..Self::read() }
    }

    /// The facts that compiling `policy` takes. Trying a user namespace costs some 50 µs, and only matters where the
    /// sandbox could go without: it is taken for granted elsewhere, and the start says otherwise.
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
            core_socket: kernel >= CORE_SOCKETS && has_core_socket(),
        }
    }
}

fn possible_cpus() -> u32 {
    parse_possible(&fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default())
}

/// `0-63` are 64; of a list the last counts. What cannot be read is 0.
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
    // personality(2) can have uname say 2.6, as setarch --uname-2.6 does; this file says what is so.
    let truth = fs::read_to_string("/proc/sys/kernel/osrelease");
    truth.map_or(version, |release| parse_version(&release))
}

/// `6.18.44-cloud` is 6.18; what cannot be read is 0.0, which is older than everything.
fn parse_version(release: &str) -> Version {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or_default());
    Version(numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

fn has_user_namespaces() -> bool {
    let refused = |error: std::io::Error| !error.raw_os_error().is_some_and(shortage::is_shortage);
    !crate::sys::birth::try_namespaces(libc::CLONE_NEWUSER).is_err_and(refused)
}

/// Whether the caller is root with all that the inside needs, so that its sandboxes could go without a user namespace.
pub(crate) fn root_suffices() -> bool {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let needed = crate::sys::birth::INSIDE_CAPABILITIES;
    let holds = |number: &u32| held.iter().any(|capability| u32::from(capability.index()) == *number);
    nix::unistd::geteuid().is_root() && needed.iter().all(holds)
}

/// core(5): whether whoever listens on a socket gets cores.
fn has_core_socket() -> bool {
    fs::read_to_string("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

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
