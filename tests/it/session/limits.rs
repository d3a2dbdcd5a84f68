//! A command can get less than the policy gives, never more. The next command has the policy's limits again.

use std::time::Duration;

use kennel::{
    Cgroup, Error, Limits, Session, Size, Span,
    report::{Details, Limit},
};

use super::{in_time, said, shell};
use crate::support::World;

fn size(bytes: u64) -> Option<Size> {
    Some(Size::from_bytes(bytes))
}

fn span(millis: u64) -> Option<Span> {
    Some(Duration::from_millis(millis).into())
}

fn of_policy() -> Limits {
    Limits {
        memory: size(1 << 30),
        cpu_time: span(10_000),
        timeout: span(9_000),
        output: size(1 << 20),
        open_files: Some(200),
        file_size: size(1 << 20),
        // `launch::cgroups` has the limits of cgroups.
        cgroup: Cgroup::Off,
        ..Limits::default()
    }
}

/// The error for a limit that a command cannot have: its name and the reason.
async fn refused(session: &Session, limits: Limits) -> (String, String) {
    match in_time(session.command("true").limits(limits).output()).await {
        Err(Error::Command { what: "limit", value, reason }) => (value, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn tighter_limits_hold_for_one_command() {
    let world = World::new();
    let session = Session::prepare(&world.policy().limits(of_policy())).await.unwrap();
    let script = "ulimit -n; ulimit -f; ulimit -d; ulimit -t";
    let tighter = Limits {
        memory: size(256 << 20),
        cpu_time: span(5_000),
        open_files: Some(50),
        file_size: size(4096),
        ..Limits::default()
    };
    for _ in 0..3 {
        let mut command = session.command("sh");
        command.args(["-c", script]).limits(tighter.clone());
        assert_eq!(said(&mut command).await, "50\n8\n262144\n5\n");
        assert_eq!(shell(&session, script).await, "200\n2048\n1048576\n10\n", "the policy's again");
    }
}

#[tokio::test]
async fn tighter_limits_hold_where_the_policy_has_none() {
    let world = World::new();
    let session = world.session().await;
    let tighter = Limits { open_files: Some(50), file_size: size(4096), ..Limits::default() };
    let mut command = session.command("sh");
    command.args(["-c", "ulimit -n; ulimit -Hn; ulimit -f"]).limits(tighter);
    assert_eq!(said(&mut command).await, "50\n50\n8\n");
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let most = hard - hard / 4;
    assert_eq!(shell(&session, "ulimit -n; ulimit -Hn").await, format!("{}\n{most}\n", soft.min(most)));
}

#[tokio::test]
async fn limits_above_the_policy_s_are_refused() {
    let world = World::new();
    let session = Session::prepare(&world.policy().limits(of_policy())).await.unwrap();
    let none = Limits::default;
    let above = [
        ("memory", Limits { memory: size((1 << 30) + 1), ..none() }),
        ("cpu_time", Limits { cpu_time: span(11_000), ..none() }),
        ("timeout", Limits { timeout: span(9_001), ..none() }),
        ("output", Limits { output: size((1 << 20) + 1), ..none() }),
        ("open_files", Limits { open_files: Some(201), ..none() }),
        ("file_size", Limits { file_size: size((1 << 20) + 1), ..none() }),
    ];
    for (name, limits) in above {
        let reason = "is above that of the policy".to_owned();
        assert_eq!(refused(&session, limits).await, (name.to_owned(), reason));
    }
    assert_eq!(
        said(session.command("echo").arg("on").limits(of_policy())).await,
        "on\n",
        "equal is not above"
    );
}

#[tokio::test]
async fn limits_of_all_commands_together_are_the_policy_s() {
    let world = World::new();
    let session = world.session().await;
    let none = Limits::default;
    let together = [
        ("pids", Limits { pids: Some(5), ..none() }),
        ("cpus", Limits { cpus: Some(1.0), ..none() }),
        ("tmp_size", Limits { tmp_size: size(1 << 20), ..none() }),
    ];
    for (name, limits) in together {
        let reason = "is one of the policy, not of a single command".to_owned();
        assert_eq!(refused(&session, limits).await, (name.to_owned(), reason));
    }
    shell(&session, "true").await;
}

/// As in a policy: zero means no limit there, and is a mistake here.
#[tokio::test]
async fn limits_of_zero_are_refused() {
    let world = World::new();
    let session = world.session().await;
    let none = Limits::default;
    let zeros = [
        Limits { memory: size(0), ..none() },
        Limits { cpu_time: span(0), ..none() },
        Limits { timeout: span(0), ..none() },
        Limits { output: size(0), ..none() },
        Limits { open_files: Some(0), ..none() },
        Limits { file_size: size(0), ..none() },
    ];
    for limits in zeros {
        let result = in_time(session.command("true").limits(limits.clone()).output()).await;
        assert!(
            matches!(result, Err(Error::Command { what: "limit", .. } | Error::Policy(_))),
            "{limits:?}: {result:?}"
        );
    }
}

#[tokio::test]
async fn a_file_that_grows_too_large_ends_its_command_alone() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("head");
    command.args(["-c", "100000", "/dev/zero"]).limits(Limits { file_size: size(4096), ..Limits::default() });
    let out = std::fs::File::create(world.at("out")).unwrap();
    let outcome = in_time(command.stdout(out).status()).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.limit), (128 + 25, Some(Limit::FileSize)));
    assert_eq!(std::fs::metadata(world.at("out")).unwrap().len(), 4096);
    shell(&session, "head -c 100000 /dev/zero > out").await;
}

/// Not the policy's limit, which may not exist.
#[tokio::test]
async fn the_outcome_names_the_limit_of_the_command() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "head -c 100000 /dev/zero > out; kill -XFSZ $$"]);
    command.limits(Limits { file_size: size(4096), ..Limits::default() });
    let out = in_time(command.output()).await.unwrap();
    let Details::Limit { limit, configured, .. } = out.outcome.failure().unwrap().details else {
        panic!("{out:?}")
    };
    assert_eq!((limit, configured), (Limit::FileSize, size(4096).map(|size| size.to_string())));
}

#[tokio::test]
async fn processor_time_of_one_command_ends_it() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "while :; do :; done"]).limits(Limits { cpu_time: span(1_000), ..Limits::default() });
    let out = in_time(command.output()).await.unwrap();
    assert_eq!((out.outcome.exit_code(), out.outcome.limit), (128 + 24, Some(Limit::CpuTime)));
    shell(&session, "true").await;
}

#[tokio::test]
async fn output_cap_of_one_command_is_its_own() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("printf");
    command.arg("0123456789").limits(Limits { output: size(4), ..Limits::default() });
    let out = in_time(command.output()).await.unwrap();
    assert_eq!(out.stdout, b"0123\n[kennel: output truncated, 6 bytes dropped]\n");
    assert_eq!(said(session.command("printf").arg("0123456789")).await, "0123456789");
}
