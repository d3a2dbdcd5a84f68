//! What the harness does if this host offers less than the policy asks for, or if the policy is impossible.

use std::{fs, os::unix::fs::MetadataExt, sync::Arc};

use fluers_runtime::{
    Enforcement,
    OnUnavailable::{Degrade, Refuse},
    ProcessSandbox,
    SandboxProfile::{CiOnly, FullDev, NoNetwork, ReadOnly, RepoWrite},
};
use kennel::{Limits, Policy, Requirement, report::Protection};
use kennel_adapters::fluers::KennelSandbox;

use super::{context, fails, says, try_harness};
use crate::support::{require, skip, workspace};

/// A policy that asks for a limit that only a delegated cgroup can hold.
fn demanding() -> Policy {
    Policy::default().limits(Limits { cpus: Some(1.0), ..Limits::default() })
}

/// The same, and nothing runs without the limit.
fn strict() -> Policy {
    demanding().require(Protection::Cpus, Requirement::Required)
}

/// Ends the test if the host has what [`demanding`] asks for.
macro_rules! unless_it_is_there {
    ($is_there:expr) => {
        if $is_there {
            skip(module_path!(), "this host has a delegated cgroup");
            return;
        }
    };
}

fn namespace() -> String {
    fs::read_link("/proc/self/ns/pid").unwrap().display().to_string()
}

#[tokio::test]
async fn this_host_enforces_every_profile_in_full() {
    // The library says what the host has: the adapter is under test here.
    require!(kennel::probe::Host::detect().landlock_abi >= 6, "Landlock scopes, without which it is not all");
    for profile in [ReadOnly, RepoWrite, NoNetwork, FullDev, CiOnly] {
        let verdict = KennelSandbox::new().probe(&profile).await.unwrap();
        assert_eq!(verdict, Enforcement::FullyEnforced, "{profile:?}");
    }
}

#[tokio::test]
async fn partial_enforcement_is_refused_or_kept() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::with_policy(demanding())));
    let verdict = kennel.probe(&RepoWrite).await.unwrap();
    unless_it_is_there!(verdict == Enforcement::FullyEnforced);
    assert_eq!(verdict, Enforcement::Partial);
    let said = try_harness(&kennel, dir.path(), RepoWrite, &[], Refuse).await.err().unwrap().to_string();
    assert!(said.contains("`Partial`"), "{said}");
    let env = try_harness(&kennel, dir.path(), RepoWrite, &[], Degrade).await.unwrap();
    assert_ne!(says(&env, "readlink /proc/self/ns/pid").await, namespace(), "it is still confined");
    assert!(fails(&env, "touch /etc/kennel-test").await.contains("Read-only file system"));
}

#[tokio::test]
async fn an_overlay_is_refused_since_its_changes_would_be_lost() {
    let dir = workspace();
    let kennel = KennelSandbox::with_policy(Policy::default().overlay(kennel::Overlay::default()));
    for error in [
        kennel.probe(&RepoWrite).await.map(drop).expect_err("refused"),
        kennel.prepare(&context(dir.path(), RepoWrite)).await.map(drop).expect_err("refused"),
    ] {
        assert!(error.to_string().contains("overlay could not be committed"), "{error}");
    }
}

#[tokio::test]
async fn an_unavailable_sandbox_is_refused_or_dropped() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::with_policy(strict())));
    let verdict = kennel.probe(&RepoWrite).await.unwrap();
    unless_it_is_there!(verdict == Enforcement::FullyEnforced);
    assert_eq!(verdict, Enforcement::Unavailable);
    let said = try_harness(&kennel, dir.path(), RepoWrite, &[], Refuse).await.err().unwrap().to_string();
    assert!(said.contains("`Unavailable`"), "{said}");
    kennel.prepare(&context(dir.path(), RepoWrite)).await.expect_err("it is required");
    // So the harness gets it. SandboxPolicy said so, with a warning.
    let env = try_harness(&kennel, dir.path(), RepoWrite, &[], Degrade).await.unwrap();
    assert_eq!(says(&env, "readlink /proc/self/ns/pid").await, namespace());
}

#[tokio::test]
async fn without_a_partial_verdict_nothing_is_degraded() {
    let dir = workspace();
    let policy = demanding().require(Protection::Cpus, Requirement::Required);
    let kennel = KennelSandbox::with_policy(policy.on_unavailable(kennel::OnUnavailable::Degrade));
    let prepared = kennel.prepare(&context(dir.path(), RepoWrite)).await;
    unless_it_is_there!(prepared.is_ok());
    let said = prepared.unwrap_err().to_string();
    assert!(said.contains("cpus") && said.contains("hint:"), "{said}");
}

#[tokio::test]
async fn ci_only_runs_with_everything_or_not_at_all() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::with_policy(demanding())));
    let probed = kennel.probe(&CiOnly).await;
    unless_it_is_there!(matches!(probed, Ok(Enforcement::FullyEnforced)));
    let said = probed.expect_err("an unavailable one would be dropped").to_string();
    assert!(said.contains("ci-only runs only with everything enforced") && said.contains("cpus"), "{said}");
    for on_unavailable in [Refuse, Degrade] {
        let refused = try_harness(&kennel, dir.path(), CiOnly, &[], on_unavailable).await;
        assert!(refused.is_err(), "{on_unavailable:?}");
    }
    kennel.prepare(&context(dir.path(), CiOnly)).await.expect_err("it is required");
}

#[tokio::test]
async fn impossible_policy_is_never_dropped() {
    let dir = workspace();
    let plain = Arc::new(KennelSandbox::new());
    let missing = dir.path().join("missing");
    let wrong = [
        Policy::default().read_only(missing.to_str().unwrap()),
        Policy::default().hostname("no name"),
        Policy::default().mask("relative"),
    ];
    for on_unavailable in [Refuse, Degrade] {
        let refused = try_harness(&plain, dir.path(), NoNetwork, &["a.example:443"], on_unavailable).await;
        let said = refused.err().unwrap().to_string();
        assert!(said.contains("a.example:443"), "{said}");
        for policy in &wrong {
            let kennel = Arc::new(KennelSandbox::with_policy(policy.clone()));
            for profile in [RepoWrite, CiOnly] {
                let refused = try_harness(&kennel, dir.path(), profile, &[], on_unavailable).await;
                let said = refused.err().unwrap_or_else(|| panic!("{policy:?}")).to_string();
                assert!(said.contains("kennel: "), "{said}");
            }
        }
    }
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2, "nothing was made");
}

#[tokio::test]
async fn lists_that_are_valid_only_together_do_not_break_the_probe() {
    let policy = Policy::default().deny("bad.example:*").audit("log");
    let kennel = KennelSandbox::with_policy(policy);
    for profile in [RepoWrite, NoNetwork, CiOnly] {
        let verdict = kennel.probe(&profile).await.unwrap();
        let without = KennelSandbox::new().probe(&profile).await.unwrap();
        assert_eq!(verdict, without, "{profile:?}");
    }
}
