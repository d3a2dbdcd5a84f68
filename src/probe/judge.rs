//! From what was tried to what is found. Pure but for the remedies, which look at the host's settings.

use super::{
    Area, Finding, Found, Probe, Verdict,
    attempt::{ATTEMPTS, Attempt, Must},
    host::{Cgroup, Execution},
    trials::{Answer, Refusal, Trials},
};
use crate::{
    Enforcement, Host, Protection, State,
    enforcement::Entry,
    host::{
        OLDEST,
        remedy::{container, remedy},
    },
};

/// What to do about something that should have been stopped by a wall that is up.
const HOLE: &str = "run nothing untrusted on this host, and report it as SECURITY.md says";

/// What to do about something that should have worked.
const HINDRANCE: &str = "look for a security module that refuses it (journalctl -k | grep -i denied)";

/// Each Landlock ABI that brought a right or scope, and which.
const LANDLOCK: [(u32, &str); 5] = [
    (2, "moving"),
    (3, "truncating"),
    (4, "TCP ports"),
    (5, "device ioctls"),
    (6, "signals and abstract sockets"),
];

/// Makes the findings and the verdict.
pub(super) fn judge(host: &Host, trials: &Trials) -> Probe {
    let mut findings = facts(host, trials);
    match &trials.start {
        Ok(enforcement) => {
            findings.extend(enforcement.protections().iter().map(|entry| protection(entry, trials)));
            let answers = ATTEMPTS.iter().zip(&trials.answers);
            findings.extend(answers.map(|(attempt, answer)| answered(attempt, answer, enforcement)));
        }
        Err(refusal) => findings.extend(not_reached(refusal)),
    }
    Probe { verdict: verdict(trials, &findings), host: host.clone(), findings }
}

fn verdict(trials: &Trials, findings: &[Finding]) -> Verdict {
    let mut needed = findings.iter().filter(|finding| finding.needed);
    match trials.start {
        Err(_) => Verdict::Unavailable,
        Ok(_) if needed.all(|finding| finding.state == Found::Works) => Verdict::FullyEnforced,
        Ok(_) => Verdict::Partial,
    }
}

fn works(area: Area, name: &'static str, detail: impl Into<String>) -> Finding {
    Finding { area, name, state: Found::Works, needed: false, detail: detail.into(), remedy: None }
}

/// A finding that says what can be done.
fn negative(finding: Finding, state: Found, remedy: impl Into<String>) -> Finding {
    Finding { state, remedy: Some(remedy.into()), ..finding }
}

fn untested(finding: Finding) -> Finding {
    Finding { state: Found::Untested, ..finding }
}

fn needed(finding: Finding) -> Finding {
    Finding { needed: true, ..finding }
}

fn facts(host: &Host, trials: &Trials) -> Vec<Finding> {
    vec![
        kernel(host),
        landlock(host),
        seccomp(host),
        memfd(trials.memfd),
        procfs(trials),
        overlay(trials.overlay.as_ref()),
        cgroup(&trials.cgroup),
    ]
}

fn kernel(host: &Host) -> Finding {
    let finding = needed(works(Area::Host, "kernel", format!("Linux {}", host.kernel)));
    if host.kernel >= OLDEST {
        return finding;
    }
    negative(finding, Found::Missing, format!("use Linux {OLDEST} or later (mount_setattr)"))
}

fn landlock(host: &Host) -> Finding {
    let abi = host.landlock_abi;
    let finding = works(Area::Host, "landlock_abi", format!("ABI {abi}"));
    if abi == 0 {
        let remedy = remedy(Protection::Landlock, libc::ENOSYS).unwrap_or_default();
        return negative(
            Finding { detail: "this kernel has no Landlock".into(), ..finding },
            Found::Missing,
            remedy,
        );
    }
    let later = LANDLOCK.iter().filter(|(since, _)| *since > abi).map(|(_, what)| *what).collect::<Vec<_>>();
    if later.is_empty() {
        return finding;
    }
    let detail = format!("ABI {abi}, which does not restrict: {}", later.join(", "));
    negative(Finding { detail, ..finding }, Found::Degraded, "use Linux 6.12 or later for ABI 6")
}

fn seccomp(host: &Host) -> Finding {
    if host.seccomp {
        return works(Area::Host, "seccomp_filter", "filters can be installed");
    }
    let remedy = remedy(Protection::Seccomp, libc::ENOSYS).unwrap_or_default();
    negative(
        works(Area::Host, "seccomp_filter", "this kernel has no seccomp filters"),
        Found::Missing,
        remedy,
    )
}

fn memfd(execution: Execution) -> Finding {
    let finding = |detail: String| works(Area::Host, "memfd_exec", detail);
    match execution {
        Execution::Works => finding("programs start from memory".into()),
        Execution::Unknown => {
            untested(finding("not reached: no process in a user namespace to try it".into()))
        }
        Execution::Refused(errno) => negative(
            finding(format!("{}: an unlinked file is used instead", name(errno))),
            Found::Degraded,
            "allow executing memfds: sysctl -w vm.memfd_noexec=0",
        ),
    }
}

/// Covered parts of /proc do no harm where a fresh procfs can be mounted all the same, as real root can.
fn procfs(trials: &Trials) -> Finding {
    let covered = match trials.covered.as_slice() {
        [] => String::new(),
        [only] => format!(" ({only} is covered by a mount)"),
        [first, rest @ ..] => format!(" ({first} and {} more are covered by mounts)", rest.len()),
    };
    let finding = |detail: &str| works(Area::Host, "procfs", format!("{detail}{covered}"));
    match &trials.start {
        Ok(_) => finding("every sandbox has a fresh one"),
        Err(refusal) if refusal.reason.starts_with("mount proc") => {
            let remedy = if trials.covered.is_empty() { HINDRANCE.to_owned() } else { container() };
            negative(finding(&refusal.reason), Found::Missing, remedy)
        }
        Err(_) if !trials.covered.is_empty() => {
            negative(finding("a fresh one may be refused"), Found::Degraded, container())
        }
        Err(_) => untested(finding("not reached")),
    }
}

fn overlay(answer: Option<&Answer>) -> Finding {
    let finding = |detail: String| works(Area::Host, "overlay", detail);
    match answer {
        Some(Answer::Succeeded) => finding("overlayfs mounts in a user namespace (tried read-only)".into()),
        Some(Answer::Refused(errno)) => negative(
            finding(format!("overlayfs does not mount in a user namespace: {}", name(*errno))),
            Found::Missing,
            match *errno {
                libc::ENODEV => "load the module: modprobe overlay",
                _ => "use Linux 5.11 or later, with no security module that refuses it",
            },
        ),
        _ => untested(finding("not reached: no user namespace to try it in".into())),
    }
}

fn cgroup(cgroup: &Cgroup) -> Finding {
    let finding = |detail: String| works(Area::Host, "cgroup2", detail);
    let boot = "boot with systemd.unified_cgroup_hierarchy=1, so that cgroup v2 has all controllers";
    let Some(directory) = &cgroup.directory else {
        let detail = "no cgroup v2 hierarchy is mounted".to_owned();
        return negative(finding(detail), Found::Missing, boot);
    };
    let place = format!("{}, controllers: {}", directory.display(), cgroup.controllers.join(" "));
    let lacking = ["memory", "pids"].map(|name| !cgroup.controllers.iter().any(|other| other == name));
    if lacking.contains(&true) {
        let detail = format!("{} has no memory and pids controllers", directory.display());
        return negative(finding(detail), Found::Missing, boot);
    }
    if cgroup.delegated {
        return finding(format!("delegated at {place}"));
    }
    negative(
        finding(format!("not delegated at {place}")),
        Found::Degraded,
        "start it with a cgroup of its own: systemd-run --user --scope -p Delegate=yes kennel …",
    )
}

/// A protection as the sandbox reported it.
fn protection(entry: &Entry, trials: &Trials) -> Finding {
    let finding = works(Area::Protection, entry.name.as_str(), &entry.detail);
    if !entry.asked {
        return untested(finding);
    }
    let refusal = trials.refusals.iter().find(|refusal| refusal.protection == Some(entry.name));
    let remedy = refusal.and_then(|refusal| refusal.remedy.clone());
    let remedy = remedy.or_else(|| remedy_for(entry.name)).unwrap_or_else(|| HINDRANCE.to_owned());
    match entry.state {
        State::Enforced => needed(finding),
        State::Degraded => needed(negative(finding, Found::Degraded, remedy)),
        State::Off => needed(negative(finding, Found::Missing, remedy)),
    }
}

fn remedy_for(protection: Protection) -> Option<String> {
    remedy(protection, libc::ENOSYS)
}

/// What came of an attempt.
fn answered(attempt: &Attempt, answer: &Answer, enforcement: &Enforcement) -> Finding {
    let finding =
        |came: String| needed(works(Area::Attempt, attempt.name, format!("{}: {came}", attempt.what)));
    match (answer, attempt.must) {
        (Answer::Succeeded, Must::Succeed) => finding("done".into()),
        (Answer::Refused(errno), Must::Fail(errnos)) if errnos.contains(errno) => {
            finding(format!("refused, {}", name(*errno)))
        }
        (Answer::Succeeded, Must::Fail(_)) => {
            negative(finding("not stopped".into()), Found::Missing, not_stopped(attempt, enforcement))
        }
        // It was stopped, but not by what was meant to stop it.
        (Answer::Refused(errno), Must::Fail(_)) => {
            let detail = format!("ended otherwise than expected, {}", name(*errno));
            negative(finding(detail), Found::Degraded, HINDRANCE)
        }
        (Answer::Refused(errno), Must::Succeed) => {
            negative(finding(format!("refused, {}", name(*errno))), Found::Missing, HINDRANCE)
        }
        (Answer::Failed(reason), _) => negative(finding(reason.clone()), Found::Missing, HINDRANCE),
        (Answer::NotMade(reason), _) => Finding { needed: false, ..untested(finding((*reason).to_owned())) },
    }
}

/// The wall is down and that is known, or it is a hole.
fn not_stopped(attempt: &Attempt, enforcement: &Enforcement) -> String {
    let up = enforcement.get(attempt.wall).is_some_and(|entry| entry.state == State::Enforced);
    if up { HOLE.to_owned() } else { remedy_for(attempt.wall).unwrap_or_else(|| HOLE.to_owned()) }
}

/// Every protection and attempt, when no sandbox starts: one refusal, the rest not reached.
fn not_reached(refusal: &Refusal) -> Vec<Finding> {
    let remedy = refusal.remedy.clone().unwrap_or_else(|| HINDRANCE.to_owned());
    let start = needed(works(Area::Protection, "start", &refusal.reason));
    let mut findings = Vec::new();
    if refusal.protection.is_none() {
        findings.push(negative(start, Found::Missing, remedy.clone()));
    }
    for protection in Protection::ALL.into_iter().filter(|protection| !protection.is_limit()) {
        let finding = |detail: &str| needed(works(Area::Protection, protection.as_str(), detail));
        findings.push(if refusal.protection == Some(protection) {
            negative(finding(&refusal.reason), Found::Missing, remedy.clone())
        } else {
            untested(finding("not reached"))
        });
    }
    findings.extend(ATTEMPTS.iter().map(|attempt| {
        untested(needed(works(Area::Attempt, attempt.name, format!("{}: not reached", attempt.what))))
    }));
    findings
}

/// An errno by its name and in words.
fn name(errno: i32) -> String {
    let errno = nix::errno::Errno::from_raw(errno);
    format!("{errno:?} ({})", errno.desc())
}
