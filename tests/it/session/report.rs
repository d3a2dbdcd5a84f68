//! The report and the numbers of a session are true.

use std::time::Duration;

use kennel::{
    Git, Limits, Policy, Profile, Sandbox, Session,
    report::{Level, Protection, State},
};

use super::{eventually, in_time, ready, shell};
use crate::{
    plan::limits::has_pid_max,
    support::{World, is_root, only_as_user, runs, workspace},
};

#[tokio::test]
async fn a_session_enforces_what_a_one_shot_enforces() {
    let dir = workspace();
    let policies =
        [Profile::NoNetwork, Profile::ReadOnly, Profile::RepoWrite, Profile::CiOnly, Profile::FullDev]
            .into_iter()
            .filter(|profile| runs(&profile.to_string()))
            .map(|profile| Policy::profile(profile, dir.path()))
            .chain([Policy::profile(Profile::RepoWrite, dir.path()).git(Git::Trust)]);
    for policy in policies {
        let what = format!("{} {}", policy.profile, policy.git);
        let session = Session::prepare(&policy).await.unwrap();
        let sandbox = Sandbox::new(&policy).unwrap();
        let states = |enforcement: &kennel::report::Enforcement| {
            let mut states: Vec<_> = enforcement
                .protections()
                .iter()
                .map(|entry| (entry.name, entry.state, entry.asked, entry.detail.clone()))
                .collect();
            states.sort_by_key(|(name, ..)| name.to_string());
            states
        };
        let alone = states(sandbox.enforcement());
        assert_eq!(states(&session.enforcement()), alone, "{what}");
        let out = in_time(session.command("true").output()).await.unwrap();
        assert_eq!(&out.outcome.enforcement, &session.enforcement(), "{what}: foretold and confirmed");
        let out = in_time(sandbox.command("true").output()).await.unwrap();
        assert_eq!(states(&out.outcome.enforcement), alone);
    }
}

#[tokio::test]
async fn enforced_means_that_the_kernel_says_so_in_every_command() {
    let world = World::new();
    let session = world.session().await;
    for protection in
        [Protection::Seccomp, Protection::Capabilities, Protection::NoNewPrivs, Protection::IpcNamespace]
    {
        assert_eq!(session.enforcement().get(protection).unwrap().state, State::Enforced);
    }
    let status =
        "grep -E '^(NoNewPrivs|Seccomp|Cap(Inh|Prm|Eff|Bnd|Amb)):' /proc/self/status | tr -d '\\t\\n'";
    let none = "0000000000000000";
    let expected =
        format!("CapInh:{none}CapPrm:{none}CapEff:{none}CapBnd:{none}CapAmb:{none}NoNewPrivs:1Seccomp:2");
    let mut namespaces = std::collections::HashSet::new();
    for _ in 0..4 {
        assert_eq!(shell(&session, status).await, expected);
        let links = shell(&session, "cd /proc/self/ns; readlink ipc mnt pid user net uts cgroup").await;
        let host =
            |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
        let links: Vec<&str> = links.lines().collect();
        for (link, kind) in links.iter().zip(["ipc", "mnt", "pid", "user", "net", "uts", "cgroup"]) {
            assert_ne!(*link, host(kind));
        }
        namespaces.insert(links[3..].join(" "));
    }
    assert_eq!(namespaces.len(), 1, "the session's namespaces are the same for all");
}

#[tokio::test]
async fn every_command_has_an_ipc_mount_and_pid_namespace_of_its_own() {
    let world = World::new();
    let session = world.session().await;
    // All at once: the kernel reuses the numbers of namespaces that are gone.
    let mut held = Vec::new();
    for number in 0..5 {
        let script = format!(
            "readlink /proc/self/ns/ipc /proc/self/ns/mnt /proc/self/ns/pid > {number}; echo ready; sleep 60"
        );
        held.push(ready(session.command("sh").args(["-c", &script]), 1).await);
    }
    let all = shell(&session, "cat 0 1 2 3 4").await;
    let different: std::collections::HashSet<&str> = all.lines().collect();
    assert_eq!((all.lines().count(), different.len()), (15, 15), "{all}");
}

#[tokio::test]
async fn a_limit_of_processes_is_said_to_be_weaker_in_a_session() {
    let world = World::new();
    let policy =
        world.policy().limits(Limits { pids: Some(40), cgroup: kennel::Cgroup::Off, ..Limits::default() });
    // Before Linux 6.14, nothing holds it for root.
    let policy = policy.require(Protection::Pids, kennel::Requirement::IfAvailable);
    let session = Session::prepare(&policy).await.unwrap();
    let entry = session.enforcement().get(Protection::Pids).unwrap().clone();
    if is_root() {
        let (state, rest) = if has_pid_max() {
            let rest = "; kernel.pid_max of the pid namespace is used instead, which allows up to ";
            (State::Degraded, rest)
        } else {
            (State::Off, ", and before Linux 6.14 pid namespaces have no limit of their own")
        };
        let detail = format!("the kernel never applies RLIMIT_NPROC to real root{rest}");
        // The number of processors decides how many more.
        assert!(entry.state == state && entry.detail.starts_with(&detail), "{entry:?}");
        let over = " more over all commands of the session and 8 of its own";
        assert!(!has_pid_max() || entry.detail.ends_with(over), "{entry:?}");
    } else {
        let detail = "RLIMIT_NPROC, counted over all commands of the session and 8 of its own";
        assert_eq!((entry.state, &*entry.detail), (State::Degraded, detail));
    }
    assert_eq!(session.enforcement().level(), Level::Partial);
}

#[tokio::test]
async fn a_limit_of_processes_holds_over_all_commands() {
    only_as_user!();
    let world = World::new();
    let policy =
        world.policy().limits(Limits { pids: Some(20), cgroup: kennel::Cgroup::Off, ..Limits::default() });
    let session = Session::prepare(&policy).await.unwrap();
    let many = "i=0; while [ $i -lt 70 ]; do sleep 9 & i=$((i+1)); done; wait; echo all";
    let out = in_time(session.command("sh").args(["-c", many]).output()).await.unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.outcome.status.success()
            && (said.contains("Cannot fork") || said.contains("Resource temporarily")),
        "{out:?}"
    );
    shell(&session, "echo x | cat | cat").await;
}

#[tokio::test]
async fn numbers_of_a_session_are_true() {
    let world = World::new();
    let session = world.session().await;
    eventually("two ready", || session.stats().ready == 2).await;
    let stats = session.stats();
    assert_eq!((stats.running, stats.served), (0, 0));
    assert!(stats.refill > Duration::ZERO && stats.refill < Duration::from_secs(1), "{stats:?}");
    let mut children = Vec::new();
    for running in 1..=5 {
        children.push(ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await);
        assert_eq!((session.stats().running, session.stats().served), (running, 0));
    }
    eventually("two ready again", || session.stats().ready == 2).await;
    assert_eq!(in_time(children[0].kill()).await.unwrap().exit_code(), 137);
    assert_eq!((session.stats().running, session.stats().served), (4, 1));
    drop(children);
    assert_eq!((session.stats().running, session.stats().served), (0, 5));
    let clone = session.clone();
    shell(&clone, "true").await;
    assert_eq!(session.stats().served, 6, "a clone is the same session");
}

#[tokio::test]
async fn the_time_of_a_refill_is_known_without_ready_workers_too() {
    let world = World::new();
    let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
    for _ in 0..5 {
        shell(&session, "true").await;
    }
    let stats = session.stats();
    assert!(stats.refill > Duration::ZERO, "{stats:?}");
}
