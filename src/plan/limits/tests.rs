//! How processes are counted on hosts other than the test's. Above all, `kernel.pid_max` of the host is never
//! written.

use std::collections::BTreeMap;
use std::path::Path;

use kennel_helper::plan::{Step, entries};
use proptest::prelude::*;

use crate::caller::Caller;
use crate::host::fixtures::host;
use crate::host::{Host, Version, fixtures};
use crate::plan::compile::{Compiled, compile};
use crate::policy::Policy;
use crate::policy::limits::Limits;
use crate::policy::profile::{Isolation, Profile};
use crate::policy::require::Requirement;
use crate::report::enforcement::{Protection, State};
use crate::report::error::Error;
use crate::view::inputs::SandboxKind;

fn compiled(
    uid: u32,
    kernel: Version,
    kind: SandboxKind,
    policy: &Policy,
    home: &Path,
) -> Result<Compiled, Error> {
    let caller = Caller {
        uid,
        gid: uid,
        home: home.to_owned(),
        homes: vec![home.to_owned()],
        environment: BTreeMap::from([("PATH".into(), "/usr/bin".into())]),
        ..fixtures::caller(home)
    };
    let host = Host { kernel, ..host() };
    compile(policy, &host, &caller, kind)
}

/// A policy that asks for a limit of processes.
fn asking(home: &Path, pids: Option<u64>) -> Policy {
    Policy::profile(Profile::NoNetwork, home).limits(Limits { pids, ..Limits::default() })
}

fn policy(home: &Path, pids: Option<u64>) -> Policy {
    // Some hosts here cannot hold it.
    asking(home, pids).require(Protection::Pids, Requirement::IfAvailable)
}

#[test]
fn pid_max_is_at_least_what_the_kernel_takes() {
    let host = |possible_cpus| Host { possible_cpus, ..host() };
    for (processors, numbers, more) in
        [(0, 321, 300), (4, 321, 300), (40, 321, 300), (64, 512, 491), (8192, 65536, 65515)]
    {
        let limit = crate::plan::limits::by_pid_max(&host(processors), 21, "");
        assert!(
            matches!(limit.by, crate::plan::limits::PidMeans::PidMax(most) if most == numbers),
            "{processors}"
        );
        assert_eq!(limit.state, State::Degraded);
        let how = limit.detail;
        assert!(how.ends_with(&format!("is used instead, which allows up to {more} more")), "{how}");
    }
}

/// What any section writes to pid_max.
fn pid_max(compiled: &Compiled) -> Vec<String> {
    let sections = [
        &compiled.steps.namespaces,
        &compiled.steps.setup,
        &compiled.steps.worker,
        &compiled.steps.walls,
        &compiled.steps.payload,
    ];
    let steps = sections.into_iter().flat_map(|section| entries(&section.bytes)).flatten();
    let written = steps.filter_map(|entry| match entry.step {
        Step::Write { path, bytes } if path.to_bytes().ends_with(b"pid_max") => {
            assert!(entry.optional, "a host whose /proc/sys is read-only runs it all the same");
            Some(String::from_utf8_lossy(bytes).trim_end().to_owned())
        }
        _ => None,
    });
    written.collect()
}

fn rlimit(compiled: &Compiled) -> Option<u64> {
    entries(&compiled.steps.payload.bytes).flatten().find_map(|entry| match entry.step {
        Step::Limit { resource: libc::RLIMIT_NPROC, soft, .. } => Some(soft),
        _ => None,
    })
}

fn state(compiled: &Compiled) -> Option<State> {
    compiled.enforcement.get(Protection::Pids).map(|entry| entry.state)
}

/// Without a limit of the policy, a storm of processes in a session is finite all the same.
#[test]
fn a_session_whose_commands_share_processes_has_a_default() {
    let home = tempfile::tempdir().expect("a directory");
    let (one, many) = (SandboxKind::OneShot, SandboxKind::Session { ready: 2 });
    let shared = policy(home.path(), None).isolation(Isolation::Session);
    let apart = policy(home.path(), None).isolation(Isolation::Command);
    for (uid, kernel, kind, policy, expected) in [
        (1000, Version(6, 18), many, &shared, (Some(8201), vec![], Some(State::Enforced))),
        (1000, Version(6, 18), many, &apart, (None, vec![], None)),
        (1000, Version(6, 18), one, &shared, (None, vec![], None)),
        (1000, Version(5, 13), many, &shared, (None, vec![], None)),
        (0, Version(6, 18), many, &shared, (None, vec!["8501"], Some(State::Enforced))),
        (0, Version(6, 18), many, &apart, (None, vec![], None)),
        (0, Version(6, 13), many, &shared, (None, vec![], None)),
    ] {
        let compiled = compiled(uid, kernel, kind, policy, home.path()).expect("compiles");
        let (soft, written, state_there) = expected;
        assert_eq!((rlimit(&compiled), state(&compiled)), (soft, state_there), "{uid} {kernel} {kind:?}");
        assert_eq!(pid_max(&compiled), written, "{uid} {kernel} {kind:?}");
        assert!(compiled.enforcement.remarkable().all(|entry| entry.name != Protection::Pids));
    }
}

#[test]
fn processes_are_counted_by_user_and_kernel_version() {
    let home = tempfile::tempdir().expect("a directory");
    let (one, many) = (SandboxKind::OneShot, SandboxKind::Session { ready: 2 });
    for (uid, kernel, kind, expected) in [
        (1000, Version(6, 18), one, (Some(21), vec![], State::Enforced)),
        (1000, Version(6, 18), many, (Some(28), vec![], State::Degraded)),
        (1000, Version(5, 13), one, (Some(21), vec![], State::Degraded)),
        (0, Version(6, 18), one, (None, vec!["321"], State::Degraded)),
        (0, Version(6, 14), many, (None, vec!["328"], State::Degraded)),
        (0, Version(6, 13), one, (None, vec![], State::Off)),
        (0, Version(6, 1), many, (None, vec![], State::Off)),
    ] {
        let compiled =
            compiled(uid, kernel, kind, &policy(home.path(), Some(20)), home.path()).expect("compiles");
        let (soft, written, state_there) = expected;
        assert_eq!(
            (rlimit(&compiled), state(&compiled)),
            (soft, Some(state_there)),
            "{uid} {kernel} {kind:?}"
        );
        assert_eq!(pid_max(&compiled), written, "{uid} {kernel} {kind:?}");
    }
}

#[test]
fn a_limit_that_nothing_holds_is_refused_unless_it_may_be_missing() {
    let home = tempfile::tempdir().expect("a directory");
    let at = |kernel, policy: &Policy| compiled(0, kernel, SandboxKind::OneShot, policy, home.path());
    match at(Version(6, 13), &asking(home.path(), Some(20))) {
        Err(Error::Unavailable { protection: Protection::Pids, reason, remedy }) => {
            assert!(
                reason.starts_with("cannot be kept here: the kernel never applies RLIMIT_NPROC"),
                "{reason}"
            );
            assert!(remedy.is_some_and(|remedy| remedy.to_string().contains("on_unavailable degrade")));
        }
        other => panic!("{other:?}"),
    }
    at(Version(6, 13), &policy(home.path(), Some(20))).expect("if_available");
    // Weaker is not missing. But the host must let it be set.
    let held = at(Version(6, 18), &asking(home.path(), Some(20))).expect("pid_max");
    let is_write =
        |step: &Step<'_>| matches!(step, Step::Write { path, .. } if path.to_bytes().ends_with(b"pid_max"));
    let steps = entries(&held.steps.namespaces.bytes).flatten().filter(|entry| is_write(&entry.step));
    assert_eq!(steps.map(|entry| entry.optional).collect::<Vec<_>>(), [false]);
}

#[test]
fn a_weaker_limit_is_refused_if_it_is_required() {
    let home = tempfile::tempdir().expect("a directory");
    let policy = policy(home.path(), Some(20)).require(Protection::Pids, Requirement::Required);
    for kernel in [Version(6, 18), Version(6, 13)] {
        match compiled(0, kernel, SandboxKind::OneShot, &policy, home.path()) {
            Err(Error::Unavailable { protection: Protection::Pids, reason, .. }) => {
                assert!(reason.contains("real root"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    compiled(1000, Version(6, 18), SandboxKind::OneShot, &policy, home.path()).expect("enforced in full");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn pid_max_is_written_only_if_it_belongs_to_the_namespace(uid in 0..2u32, major in 5..8u32, minor in 0..30u32, pids in proptest::option::of(1u64..=1 << 53)) {
        prop_assume!((major, minor) >= (5, 13));
        let home = tempfile::tempdir().expect("a directory");
        let compiled = compiled(uid, Version(major, minor), SandboxKind::OneShot, &policy(home.path(), pids), home.path());
        let written = pid_max(&compiled.expect("compiles"));
        let is_own = (major, minor) >= (6, 14);
        prop_assert_eq!(written.len(), usize::from(uid == 0 && is_own && pids.is_some()));
        for number in written {
            let number: u64 = number.parse().expect("a number");
            prop_assert!((301..=1 << 22).contains(&number), "what the kernel takes: {}", number);
        }
    }
}
