//! Tests: findings for hosts that the tests make up, and one real probe of this host.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::caller::Caller;
use crate::host::Version;
use crate::host::remedy::remedy;
use crate::host::scheduling::SchedulingPrivileges;
use crate::plan::compile;
use crate::plan::compile::Compiled;
use crate::policy::require::Requirement;
use crate::probe::attempt::{ATTEMPTS, AttemptEnd, Must, Operand};
use crate::probe::host::{CgroupFinding, Execution};
use crate::probe::judge;
use crate::probe::trials::{StartRefusal, Trials};
use crate::report::enforcement::Protection;
use crate::view::inputs::SandboxKind;

const GOOD: Host = Host {
    kernel: Version(6, 12),
    landlock_abi: 6,
    seccomp: true,
    user_namespaces: true,
    possible_cpus: 4,
    etc_overlays: true,
    core_socket: false,
    ahead: SchedulingPrivileges { scheduling: [false; 3], oom: false, may_be: false },
};

/// Compiles a policy for `host`, and collects the refusal for each missing protection when it is required.
fn compile_for(host: &Host, profile: Profile) -> (Result<Compiled, StartRefusal>, Vec<StartRefusal>) {
    let mut policy = Policy::profile(profile, std::env::temp_dir());
    policy.on_unavailable = OnUnavailable::Degrade;
    let compile = |policy: &Policy| compile::compile(policy, host, &Caller::current(), SandboxKind::OneShot);
    let compiled = compile(&policy).map_err(|error| StartRefusal::from(&error));
    let required = |protection| policy.clone().require(protection, Requirement::Required);
    let refused = Protection::ALL.into_iter().filter_map(|protection| compile(&required(protection)).err());
    (compiled, refused.map(|error| StartRefusal::from(&error)).collect())
}

/// Trials in which everything ends as it must.
fn trials(host: &Host) -> Trials {
    let (compiled, refusals) = compile_for(host, Profile::RepoWrite);
    let answer = |must| match must {
        Must::Succeed => AttemptEnd::Succeeded,
        Must::Fail(errnos) => AttemptEnd::Refused(errnos[0]),
    };
    let delegated = CgroupFinding {
        directory: Some(PathBuf::from("/sys/fs/cgroup/user")),
        controllers: ["cpu", "memory", "pids"].map(str::to_owned).into(),
        delegated: true,
        lack: None,
    };
    Trials {
        memfd: Execution::Works,
        overlay: Some(AttemptEnd::Succeeded),
        cgroup: delegated,
        covered: Vec::new(),
        start: compiled.map(|compiled| compiled.enforcement),
        refusals,
        answers: ATTEMPTS.iter().map(|attempt| answer(attempt.must)).collect(),
    }
}

/// `trials` with another answer for one attempt.
fn with_answer(mut trials: Trials, name: &str, answer: AttemptEnd) -> Trials {
    let at = ATTEMPTS.iter().position(|attempt| attempt.name == name).expect("an attempt of that name");
    trials.answers[at] = answer;
    trials
}

/// Trials on a good host whose kernel refuses one step of the start.
fn refusing(protection: Protection, step: &str, errno: i32) -> Trials {
    let source = std::io::Error::from_raw_os_error(errno);
    let error = Error::Step { step: step.to_owned(), protection, source, remedy: remedy(protection, errno) };
    let nothing = Trials { memfd: Execution::Unknown, overlay: None, answers: Vec::new(), ..trials(&GOOD) };
    Trials { start: Err(StartRefusal::from(&error)), refusals: Vec::new(), ..nothing }
}

fn judged(host: &Host, trials: &Trials) -> Probe {
    let probe = judge::judge(host, trials);
    for finding in probe.negatives() {
        assert!(finding.remedy.as_ref().is_some_and(|remedy| remedy.to_string().len() > 10), "{finding:?}");
    }
    for finding in &probe.findings {
        let negative = matches!(finding.state, Found::Degraded | Found::Missing);
        assert_eq!(finding.remedy.is_some(), negative, "{finding:?}");
        let namesakes = probe.findings.iter().filter(|other| other.name == finding.name);
        assert_eq!(namesakes.count(), 1, "{}", finding.name);
    }
    probe
}

#[track_caller]
fn expect(probe: &Probe, name: &str, state: Found, remedy: &str) {
    let finding = probe.get(name).unwrap_or_else(|| panic!("no finding is named {name}"));
    assert_eq!(finding.state, state, "{finding:?}");
    let told = finding.remedy.as_ref().map_or_else(String::new, ToString::to_string);
    assert!(told.contains(remedy), "{finding:?}");
}

#[test]
fn good_host_is_fully_enforced() {
    let probe = judged(&GOOD, &trials(&GOOD));
    assert_eq!(probe.verdict, Verdict::FullyEnforced);
    assert_eq!(probe.negatives().count(), 0);
    let json = serde_json::to_value(&probe).expect("plain data");
    assert_eq!(json["verdict"], "fully_enforced");
    assert_eq!(json["findings"][0]["name"], "kernel");
    assert_eq!(json["findings"][0]["state"], "works");
}

#[test]
fn refused_user_namespaces_leave_nothing() {
    for errno in [libc::EPERM, libc::ENOSPC, libc::EACCES] {
        let trials = refusing(Protection::UserNamespace, "new user and pid namespace", errno);
        let probe = judged(&GOOD, &trials);
        assert_eq!(probe.verdict, Verdict::Unavailable);
        expect(&probe, "user_namespace", Found::Missing, "");
        expect(&probe, "network_namespace", Found::Untested, "");
        expect(&probe, "read_outside", Found::Untested, "");
        expect(&probe, "memfd_exec", Found::Untested, "");
        expect(&probe, "overlay", Found::Untested, "");
    }
    let probe =
        judged(&GOOD, &refusing(Protection::UserNamespace, "new user and pid namespace", libc::ENOSPC));
    expect(&probe, "user_namespace", Found::Missing, "namespaces=15000");
}

#[test]
fn covered_proc_is_recognised() {
    let mut trials = refusing(Protection::Root, "mount proc at /proc", libc::EPERM);
    trials.covered = ["/proc/acpi", "/proc/kcore"].map(str::to_owned).into();
    let probe = judged(&GOOD, &trials);
    assert_eq!(probe.verdict, Verdict::Unavailable);
    expect(&probe, "procfs", Found::Missing, "systempaths=unconfined");
    expect(&probe, "root", Found::Missing, "");
    assert!(probe.get("procfs").expect("found").detail.contains("/proc/acpi and 1 more"));
}

#[test]
fn host_without_landlock_is_partial() {
    let host = Host { landlock_abi: 0, ..GOOD };
    let probe = judged(&host, &with_answer(trials(&host), "landlock_alone", AttemptEnd::Succeeded));
    assert_eq!(probe.verdict, Verdict::Partial);
    expect(&probe, "landlock_abi", Found::Missing, "lsm=");
    expect(&probe, "landlock", Found::Missing, "lsm=");
    expect(&probe, "landlock_alone", Found::Missing, "lsm=");
    expect(&probe, "seccomp", Found::Works, "");
}

#[test]
fn landlock_without_scopes_is_partial_and_says_since_when() {
    let host = Host { kernel: Version(6, 1), landlock_abi: 2, ..GOOD };
    let probe = judged(&host, &trials(&host));
    assert_eq!(probe.verdict, Verdict::Partial);
    expect(&probe, "landlock", Found::Works, "");
    expect(&probe, "landlock_scope", Found::Missing, "6.12");
    expect(&probe, "landlock_abi", Found::Degraded, "6.12");
    assert!(probe.get("landlock_abi").expect("found").detail.contains("truncating"));
}

#[test]
fn old_kernel_is_unavailable() {
    let host = Host { kernel: Version(5, 10), landlock_abi: 0, ..GOOD };
    let probe = judged(&host, &Trials { answers: Vec::new(), ..trials(&host) });
    assert_eq!(probe.verdict, Verdict::Unavailable);
    expect(&probe, "kernel", Found::Missing, "5.12");
    expect(&probe, "root", Found::Missing, "5.12");
    expect(&probe, "seccomp", Found::Untested, "");
}

#[test]
fn host_without_seccomp_is_partial() {
    let host = Host { seccomp: false, ..GOOD };
    let trials = with_answer(trials(&host), "seccomp_alone", AttemptEnd::Succeeded);
    let probe = judged(&host, &with_answer(trials, "new_user_namespace", AttemptEnd::Succeeded));
    assert_eq!(probe.verdict, Verdict::Partial);
    for name in ["seccomp_filter", "seccomp", "seccomp_alone", "new_user_namespace"] {
        expect(&probe, name, Found::Missing, "CONFIG_SECCOMP_FILTER");
    }
}

#[test]
fn refused_memfd_degrades_but_enforces() {
    let trials = Trials { memfd: Execution::Refused(libc::EACCES), ..trials(&GOOD) };
    let probe = judged(&GOOD, &trials);
    assert_eq!(probe.verdict, Verdict::FullyEnforced);
    expect(&probe, "memfd_exec", Found::Degraded, "vm.memfd_noexec=0");
}

#[test]
fn cgroups_and_overlay_are_good_to_know() {
    let delegated = trials(&GOOD).cgroup;
    let bare = CgroupFinding { controllers: Vec::new(), ..delegated.clone() };
    let foreign = CgroupFinding { delegated: false, ..delegated };
    for (cgroup, state, remedy) in [
        (CgroupFinding::default(), Found::Missing, "unified_cgroup_hierarchy"),
        (bare, Found::Missing, "unified_cgroup_hierarchy"),
        (foreign, Found::Degraded, "Delegate=yes"),
    ] {
        let overlay = Some(AttemptEnd::Refused(libc::ENODEV));
        let probe = judged(&GOOD, &Trials { cgroup, overlay, ..trials(&GOOD) });
        assert_eq!(probe.verdict, Verdict::FullyEnforced);
        expect(&probe, "cgroup2", state, remedy);
        expect(&probe, "overlay", Found::Missing, "modprobe overlay");
    }
}

#[test]
fn whatever_is_not_stopped_is_missing() {
    for attempt in ATTEMPTS.iter().filter(|attempt| attempt.must != Must::Succeed) {
        let probe = judged(&GOOD, &with_answer(trials(&GOOD), attempt.name, AttemptEnd::Succeeded));
        assert_eq!(probe.verdict, Verdict::Partial, "{}", attempt.name);
        expect(&probe, attempt.name, Found::Missing, "report it");
    }
}

#[test]
fn wall_that_is_down_is_to_blame_for_what_it_lets_pass() {
    let refusal = StartRefusal {
        protection: Some(Protection::NetworkNamespace),
        reason: "new network namespace".to_owned(),
        remedy: Some("raise the limit of network namespaces".into()),
    };
    let mut trials = trials(&GOOD);
    let enforcement = trials.start.as_mut().expect("a good host");
    enforcement.set(
        Protection::NetworkNamespace,
        crate::report::enforcement::State::Off,
        "new network namespace",
    );
    trials.refusals = vec![refusal];
    let trials = with_answer(trials, "own_loopback", AttemptEnd::Refused(libc::EADDRINUSE));
    let probe = judged(&GOOD, &with_answer(trials, "connect_host", AttemptEnd::Succeeded));
    assert_eq!(probe.verdict, Verdict::Partial);
    for name in ["network_namespace", "own_loopback", "connect_host"] {
        expect(&probe, name, Found::Missing, "raise the limit of network namespaces");
    }
}

#[test]
fn whatever_does_not_work_is_missing() {
    for attempt in &ATTEMPTS {
        let probe =
            judged(&GOOD, &with_answer(trials(&GOOD), attempt.name, AttemptEnd::Failed("no payload".into())));
        assert_eq!(probe.verdict, Verdict::Partial);
        expect(&probe, attempt.name, Found::Missing, "security module");
        // An errno that no protection gives proves nothing.
        let probe = judged(&GOOD, &with_answer(trials(&GOOD), attempt.name, AttemptEnd::Refused(libc::EIO)));
        assert_eq!(probe.verdict, Verdict::Partial);
    }
}

#[test]
fn what_the_profile_grants_is_no_attempt() {
    let full_dev = Policy::profile(Profile::FullDev, "/w");
    let strict = Policy::profile(Profile::CiOnly, "/w");
    for attempt in &ATTEMPTS {
        let granted = attempt.operand == Operand::Port || attempt.name == "read_outside";
        assert_eq!(attempt.skip_reason(&full_dev).is_some(), granted, "{}", attempt.name);
        assert_eq!(attempt.skip_reason(&strict), None);
    }
    let trials = with_answer(trials(&GOOD), "connect_host", AttemptEnd::NotMade("granted"));
    let probe = judged(&GOOD, &trials);
    assert_eq!(probe.verdict, Verdict::FullyEnforced);
    expect(&probe, "connect_host", Found::Untested, "");
}

#[tokio::test]
async fn nothing_stays_behind_however_it_ends() {
    let remains = || {
        let own = format!("kennel-probe-{}-", std::process::id());
        let entries = std::env::temp_dir().read_dir().expect("a temporary directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
    };
    for micros in [0, 200, 1000, 5000, 20_000] {
        let _ = tokio::time::timeout(Duration::from_micros(micros), Probe::run(Profile::ReadOnly)).await;
        assert_eq!(remains(), 0, "dropped after {micros} µs");
    }
    let task = tokio::spawn(Probe::run(Profile::RepoWrite));
    task.await.expect("no panic").expect("files and sockets can be made");
    assert_eq!(remains(), 0, "at the end");
}
