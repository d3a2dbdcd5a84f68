//! Findings about the host itself: kernel, Landlock, seccomp, memfd, procfs,
//! overlayfs, cgroups. Pure, except for the remedies.

use crate::host::remedy::{UNIFIED, container, delegate, remedy};
use crate::host::{Host, OLDEST};
use crate::probe::attempt::AttemptEnd;
use crate::probe::host::{CgroupFinding, Execution};
use crate::probe::trials::Trials;
use crate::report::enforcement::Protection;
use crate::report::finding::{Area, Finding, Found};
use crate::report::remedy::Remedy;

/// Landlock ABI versions, and what each one made possible to restrict.
const LANDLOCK: [(u32, &str); 5] = [
    (2, "moving"),
    (3, "truncating"),
    (4, "TCP ports"),
    (5, "device ioctls"),
    (6, "signals and abstract sockets"),
];

/// The findings about the host. What everything else depends on comes first.
pub(crate) fn facts(host: &Host, trials: &Trials) -> Vec<Finding> {
    vec![
        kernel(host).needed(),
        landlock(host),
        seccomp(host),
        memfd(trials.memfd),
        procfs(trials),
        overlay(trials.overlay.as_ref()),
        cgroup(&trials.cgroup),
    ]
}

fn fact(name: &'static str, detail: impl Into<String>) -> Finding {
    Finding::works(Area::Host, name, detail)
}

fn kernel(host: &Host) -> Finding {
    let finding = fact("kernel", format!("Linux {}", host.kernel));
    if host.kernel >= OLDEST {
        return finding;
    }
    finding.negative(Found::Missing, format!("use Linux {OLDEST} or later (mount_setattr)"))
}

fn landlock(host: &Host) -> Finding {
    let finding = |detail| fact("landlock_abi", detail);
    let abi = host.landlock_abi;
    let later = LANDLOCK.iter().filter(|(since, _)| *since > abi).map(|(_, what)| *what).collect::<Vec<_>>();
    if abi == 0 {
        let remedy = remedy(Protection::Landlock, libc::ENOSYS).unwrap_or_default();
        finding("this kernel has no Landlock".to_owned()).negative(Found::Missing, remedy)
    } else if later.is_empty() {
        finding(format!("ABI {abi}"))
    } else {
        finding(format!("ABI {abi} does not restrict: {}", later.join(", ")))
            .negative(Found::Degraded, "use Linux 6.12 or later for ABI 6")
    }
}

fn seccomp(host: &Host) -> Finding {
    if host.seccomp {
        return fact("seccomp_filter", "this kernel can install filters");
    }
    let remedy = remedy(Protection::Seccomp, libc::ENOSYS).unwrap_or_default();
    fact("seccomp_filter", "this kernel cannot install seccomp filters").negative(Found::Missing, remedy)
}

fn memfd(execution: Execution) -> Finding {
    let finding = |detail: &str| fact("memfd_exec", detail);
    match execution {
        Execution::Works => finding("a memfd can be executed"),
        Execution::Unknown => finding("not tested: there is no user namespace to try it in").untested(),
        Execution::Refused(errno) => {
            finding(&format!("{}: Kennel uses an unlinked file instead", name(errno)))
                .negative(Found::Degraded, "allow executing memfds: sysctl -w vm.memfd_noexec=0")
        }
    }
}

/// Judges procfs. Mounts that cover parts of /proc matter only if the kernel then refuses a fresh procfs; it
/// allows one to real root.
fn procfs(trials: &Trials) -> Finding {
    let covered = match trials.covered.as_slice() {
        [] => String::new(),
        [only] => format!(" ({only} is covered by a mount)"),
        [first, rest @ ..] => format!(" ({first} and {} more are covered by mounts)", rest.len()),
    };
    let finding = |detail: &str| fact("procfs", format!("{detail}{covered}"));
    match &trials.start {
        Ok(_) => finding("each sandbox mounts a fresh procfs"),
        Err(refusal) if refusal.reason.starts_with("mount proc") => {
            let remedy = if trials.covered.is_empty() {
                CHECK_SECURITY_MODULES.into()
            } else {
                Remedy::from(container())
            };
            finding(&refusal.reason).negative(Found::Missing, remedy)
        }
        Err(_) if !trials.covered.is_empty() => {
            finding("the kernel may refuse a fresh procfs").negative(Found::Degraded, container())
        }
        Err(_) => finding("not tested").untested(),
    }
}

fn overlay(answer: Option<&AttemptEnd>) -> Finding {
    let finding = |detail: &str| fact("overlay", detail);
    match answer {
        Some(AttemptEnd::Succeeded) => finding("overlayfs mounts in a user namespace (tried read-only)"),
        Some(AttemptEnd::Refused(errno)) => {
            let remedy = match *errno {
                libc::ENODEV => "load the module: modprobe overlay",
                _ => "use Linux 5.11 or later, and check that no security module refuses the mount",
            };
            finding(&format!("overlayfs does not mount in a user namespace: {}", name(*errno)))
                .negative(Found::Missing, remedy)
        }
        _ => finding("not tested: there is no user namespace to try it in").untested(),
    }
}

fn cgroup(cgroup: &CgroupFinding) -> Finding {
    let finding = |detail: String| fact("cgroup2", detail);
    let Some(directory) = cgroup.directory.as_ref().map(|directory| directory.display()) else {
        return finding("no cgroup v2 hierarchy is mounted".to_owned()).negative(Found::Missing, UNIFIED);
    };
    let has = |name: &str| cgroup.controllers.iter().any(|other| other == name);
    if !has("memory") || !has("pids") {
        let detail = format!("{directory} has no memory and pids controllers");
        return finding(detail).negative(Found::Missing, UNIFIED);
    }
    let controllers = cgroup.controllers.join(" ");
    if cgroup.delegated {
        return finding(format!(
            "delegated at {directory}, controllers {controllers}; the probe made and removed a group"
        ));
    }
    let (reason, remedy) = match &cgroup.lack {
        Some((reason, remedy)) => (reason.as_str(), remedy.clone()),
        None => ("not delegated", delegate()),
    };
    finding(format!("{reason} ({directory}, controllers {controllers})")).negative(Found::Degraded, remedy)
}

/// The remedy when something failed that should have worked.
pub(crate) const CHECK_SECURITY_MODULES: &str =
    "look for a security module that refuses it (journalctl -k | grep -i denied)";

/// The name and the description of an errno.
pub(crate) fn name(errno: i32) -> String {
    let errno = nix::errno::Errno::from_raw(errno);
    format!("{errno:?} ({})", errno.desc())
}
