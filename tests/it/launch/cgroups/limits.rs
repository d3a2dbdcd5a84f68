//! Each limit, of one-shots and of sessions, and the outcome of a command that it ended.

use std::{fs, time::Duration};

use kennel::{
    Ended, Error, Isolation, Limits, Session,
    report::{Details, Limit, State},
};
use serde_json::json;

use super::{
    attempt, ground, ground_with_controllers, mebibytes, protection, require_groups, says_no_disk,
    with_limits,
};
use crate::support::{
    has, kennel, patient, patient_flag, report, require, stderr, stdout, succeeds, workspace,
};

#[test]
fn memory_of_all_processes_together_ends_the_command_and_says_so() {
    require_groups!();
    // More than the limit in one process; then in eight processes, each below the limit.
    for words in ["hog 200", "call"] {
        let (status, said, report) = match words {
            "call" => {
                let dir = workspace();
                let grant = format!("{}:/payload", crate::support::payload_path().display());
                let script = "for i in 1 2 3 4 5 6 7 8; do /payload hog 20 60 & done; wait; echo all";
                let flags = ["--ro", &grant, "--memory", "64M"];
                let (output, said) = report(dir.path(), &flags, &["sh", "-c", script]);
                (crate::support::shown(output.status), stdout(&output), said)
            }
            hog => attempt(&["--memory", "64M"], hog),
        };
        assert_eq!(status, Some(128 + 9), "{said} {report}");
        assert!(!said.contains("has 200") && !said.contains("all"), "{said}");
        assert_eq!((&report["ended"], &report["limit"]), (&json!("signaled"), &json!("memory")), "{report}");
        let failure = &report["failure"];
        assert_eq!(failure["class"], "resource_limit_exceeded");
        assert_eq!(
            (&failure["details"]["limit"], &failure["details"]["configured"]),
            (&json!("memory"), &json!("64M"))
        );
        assert!(report["usage"]["oom_kills"].as_u64().unwrap() > 0, "{report}");
        if let Some(peak) = report["usage"]["peak_memory_bytes"].as_u64() {
            assert!((32 << 20..=72 << 20).contains(&peak), "{peak}");
            assert!(failure["details"]["used"].is_string(), "{failure}");
        }
        assert_eq!(
            protection(&report, "memory"),
            ("enforced", "memory.max 64M, swap none, with all that the command starts")
        );
    }
    let (status, said, report) = attempt(&["--memory", "256M"], "hog 100");
    assert_eq!((status, &*said, &report["limit"]), (Some(0), "has 100", &json!(null)));
}

#[test]
fn memory_of_an_interpreter_is_held() {
    require_groups!();
    require!(has("python3"), "python3");
    let dir = workspace();
    let command = ["python3", "-c", "x=bytearray(10**9)"];
    let (output, report) = report(dir.path(), &["--memory", "64M"], &command);
    assert_eq!(
        (crate::support::shown(output.status), &report["limit"]),
        (Some(137), &json!("memory")),
        "{output:?}"
    );
    assert!(stderr(&output).contains("kennel: "), "{output:?}");
}

#[test]
fn processes_are_counted_for_root_too() {
    require_groups!();
    let wait = patient(Duration::from_secs(1)).as_secs();
    let script = format!("i=0; while [ $i -lt 30 ]; do sleep {wait} & i=$((i+1)); done; wait; echo all");
    let dir = workspace();
    let (output, said) = report(dir.path(), &["--pids", "20"], &["sh", "-c", &script]);
    assert!(!output.status.success() && !stdout(&output).contains("all"), "{output:?}");
    assert!(
        stderr(&output).contains("Cannot fork") || stderr(&output).contains("Resource temporarily"),
        "{output:?}"
    );
    assert_eq!(protection(&said, "pids"), ("enforced", "pids.max 20, with all that the command starts"));
    assert_eq!(
        (&said["limit"], &said["failure"]["details"]["configured"]),
        (&json!("pids"), &json!("20")),
        "{said}"
    );
    assert_eq!(succeeds(dir.path(), &["--pids", "60"], &script), "all");
    // Exactly that many: the shell and 19 more.
    let exact = format!("i=0; while [ $i -lt 19 ]; do sleep {wait} & i=$((i+1)); done; wait; echo all");
    assert_eq!(succeeds(dir.path(), &["--pids", "20"], &exact), "all");
}

#[test]
fn processors_are_limited_and_throttled_time_is_reported() {
    require_groups!();
    let (status, _, report) =
        attempt(&["--cpus", "0.25", "--timeout", &patient_flag(Duration::from_secs(2))], "busy 4");
    assert_eq!(status, Some(124), "{report}");
    assert_eq!(protection(&report, "cpus"), ("enforced", "cpu.max 0.25, with all that the command starts"));
    let usage = &report["usage"];
    let number = |key: &str| usage[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"));
    assert!(number("throttled_us") > 0, "{report}");
    let (used, wall) =
        (number("user_us") + number("system_us"), report["duration_ms"].as_u64().unwrap() * 1000);
    assert!(used * 2 < wall, "{used} µs of {wall}: a quarter, and some slack");
}

#[test]
fn processors_are_chosen() {
    require_groups!();
    let dir = workspace();
    let list = "grep Cpus_allowed_list /proc/self/status | cut -f2";
    let (output, said) = report(dir.path(), &["--cpuset", "0"], &["sh", "-c", list]);
    require!(protection(&said, "cpuset").0 == "enforced", "a cpuset controller");
    assert_eq!(stdout(&output), "0");
    // A processor that cannot exist.
    let output = kennel(dir.path(), &["--cpuset", "65000"], &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("cgroup"), "{output:?}");
    // A processor that the parent group does not have: the kernel accepts the list, and gives all of the
    // parent's.
    let ground = ground_with_controllers!();
    fs::write(ground.0.parent().unwrap().join("cgroup.subtree_control"), "+cpuset").unwrap();
    fs::write(ground.0.join("cpuset.cpus"), "0").unwrap();
    let flags = [&ground.flags()[..], &["--cpuset", "1"]].concat();
    let output = kennel(dir.path(), &flags, &["true"]).output().unwrap();
    assert!(stderr(&output).contains("none of the CPUs 1, only 0"), "{output:?}");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn input_and_output_are_not_limited_without_a_disk_and_the_report_says_so() {
    require_groups!();
    let dir = workspace();
    let flags = ["--io", "write=1M", "--on-unavailable", "degrade"];
    let (output, said) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    let (state, _) = protection(&said, "io");
    assert!(state == "enforced" || says_no_disk(&said), "{said}");
    for flags in [&["--io", "write=1M"][..], &["--profile", "ci-only", "--io", "write=1M"]] {
        let refused = kennel(dir.path(), flags, &["true"]).output().unwrap();
        assert!(state == "enforced" || refused.status.code() == Some(125), "{refused:?}");
    }
}

#[test]
fn usage_is_of_everything_that_the_command_had() {
    require_groups!();
    let (status, _, report) = attempt(&["--memory", "256M", "--pids", "50", "--cpus", "2"], "hog 50");
    assert_eq!(status, Some(0));
    let usage = &report["usage"];
    assert!(usage["user_us"].as_u64().unwrap() + usage["system_us"].as_u64().unwrap() > 0, "{usage}");
    assert_eq!(usage["oom_kills"], 0, "{usage}");
    let kernel = kennel::probe::Host::detect().kernel;
    if kernel >= kennel::probe::Version(5, 19) {
        assert!(usage["peak_memory_bytes"].as_u64().unwrap() >= 50 << 20, "{usage}");
    }
    if kernel >= kennel::probe::Version(6, 1) {
        assert!(usage["peak_pids"].as_u64().is_some_and(|peak| (1..=10).contains(&peak)), "{usage}");
    }
}

#[tokio::test]
async fn a_session_limits_its_commands_together_and_blames_only_the_killed_one() {
    let ground = ground_with_controllers!();
    let dir = workspace();
    let limits = Limits { memory: mebibytes(128), pids: Some(30), ..ground.limits() };
    let session = Session::prepare(&with_limits(dir.path(), limits)).await.unwrap();
    assert_eq!(session.enforcement().get(kennel::report::Protection::Memory).unwrap().state, State::Enforced);
    let mut bystander = session.command("/payload").args(["hog", "10", "60"]).spawn().await.unwrap();
    tokio::time::sleep(patient(Duration::from_millis(200))).await;
    let outcome = session.command("/payload").args(["hog", "300"]).status().await.unwrap();
    assert_eq!((outcome.limit, outcome.ended), (Some(Limit::Memory), Ended::Signaled), "{outcome:?}");
    let failure = outcome.failure().unwrap();
    assert!(
        matches!(&failure.details, Details::Limit { limit: Limit::Memory, configured: Some(size), .. } if size == "128M")
    );
    // It lives, and is not blamed for the other command.
    bystander.signal(kennel::Signal::TERM).unwrap();
    let outcome = bystander.wait().await.unwrap();
    assert_eq!((outcome.limit, outcome.usage.oom_kills), (None, Some(0)), "{outcome:?}");
    // The session goes on.
    for _ in 0..3 {
        let outcome = session.command("true").status().await.unwrap();
        assert!(outcome.status.success() && outcome.limit.is_none(), "{outcome:?}");
    }
    let outcome = session
        .command("sh")
        .args(["-c", "i=0; while [ $i -lt 60 ]; do sleep 9 & i=$((i+1)); done"])
        .stderr(kennel::Stdio::null())
        .status()
        .await
        .unwrap();
    assert_eq!(outcome.limit, Some(Limit::Pids), "{outcome:?}");
    session.shutdown().await;
    assert!(ground.groups().is_empty(), "shutdown waits for it: {:?}", ground.groups());
}

#[tokio::test]
async fn commands_that_share_their_processes_are_limited_together_and_leave_nothing() {
    let ground = ground_with_controllers!();
    let dir = workspace();
    let limits = Limits { memory: mebibytes(128), pids: Some(40), ..ground.limits() };
    let policy = with_limits(dir.path(), limits).isolation(Isolation::Session);
    let session = Session::prepare(&policy).await.unwrap();
    assert_eq!(session.enforcement().get(kennel::report::Protection::Memory).unwrap().state, State::Enforced);
    for _ in 0..2 {
        let outcome = session.command("/payload").args(["hog", "300"]).status().await.unwrap();
        assert_eq!(outcome.ended, Ended::Signaled, "{outcome:?}");
        assert!(session.command("true").status().await.unwrap().status.success());
    }
    let leaves = "i=0; while [ $i -lt 20 ]; do sleep 60 >/dev/null 2>&1 & i=$((i+1)); done";
    let left = session.command("sh").args(["-c", leaves]).background(true).status().await.unwrap();
    assert!(left.status.success(), "{left:?}");
    // A timeout ends all that a command has started, and nothing else.
    let script = "(setsid sleep 60 &) ; sleep 60";
    let mut slow = session.command("sh");
    let ended = slow.args(["-c", script]).timeout(Duration::from_millis(200)).status().await.unwrap();
    assert_eq!(ended.ended, Ended::TimedOut, "{ended:?}");
    // Without a fork.
    let names = "for process in /proc/[0-9]*; do read name <$process/comm; echo $name; done";
    let out = session.command("sh").args(["-c", names]).output().await.unwrap();
    let names = String::from_utf8_lossy(&out.stdout);
    assert_eq!(names.lines().filter(|name| *name == "sleep").count(), 20, "{names}");
    // What a command has left counts for the next one.
    let more = "i=0; while [ $i -lt 60 ]; do sleep 9 & i=$((i+1)); done";
    let more = session.command("sh").args(["-c", more]).output().await.unwrap();
    assert!(!more.outcome.status.success(), "{more:?}");
    session.shutdown().await;
    assert!(ground.groups().is_empty(), "shutdown waits for it: {:?}", ground.groups());
}

#[tokio::test]
async fn an_earlier_hit_of_a_limit_does_not_explain_a_later_kill() {
    let ground = ground_with_controllers!();
    let dir = workspace();
    let limits = Limits { memory: mebibytes(96), ..ground.limits() };
    let session = Session::prepare(&with_limits(dir.path(), limits)).await.unwrap();
    let hog = |much: &'static str| {
        let mut command = session.command("/payload");
        command.args(["hog", much]);
        async move { command.status().await }
    };
    // The next workers wait already.
    assert_eq!(hog("200").await.unwrap().limit, Some(Limit::Memory));
    // The parent group gets less now.
    std::fs::write(ground.0.join("memory.max"), (48 << 20).to_string()).unwrap();
    for _ in 0..3 {
        let outcome = hog("80").await.unwrap();
        assert!(outcome.usage.oom_kills.unwrap() > 0 && outcome.limit.is_none(), "{outcome:?}");
    }
    std::fs::write(ground.0.join("memory.max"), "max").unwrap();
    assert_eq!(hog("200").await.unwrap().limit, Some(Limit::Memory));
    session.shutdown().await;
}

#[tokio::test]
async fn processes_that_the_session_refuses_are_reported_too() {
    let ground = ground_with_controllers!();
    let dir = workspace();
    let session = Session::prepare(&with_limits(dir.path(), Limits { pids: Some(30), ..ground.limits() }))
        .await
        .unwrap();
    // Fewer than the limit each, more together.
    let script = "i=0; while [ $i -lt 25 ]; do sleep 60 & i=$((i+1)); done; echo all; read end";
    let mut first = session.command("sh");
    first.args(["-c", script]).stdin(kennel::Stdio::piped()).stdout(kennel::Stdio::piped());
    let mut first = first.spawn().await.unwrap();
    let mut all = [0; 3];
    tokio::io::AsyncReadExt::read_exact(first.stdout.as_mut().unwrap(), &mut all).await.unwrap();
    let out = session.command("sh").args(["-c", script]).output().await.unwrap();
    assert_eq!((out.outcome.status.success(), out.outcome.limit), (false, Some(Limit::Pids)), "{out:?}");
    first.start_kill().unwrap();
    first.wait().await.unwrap();
    // A command that fails for another reason is not told of earlier refusals.
    let out = session.command("sh").args(["-c", "exit 3"]).output().await.unwrap();
    assert_eq!((out.outcome.status.code(), out.outcome.limit), (Some(3), None), "{out:?}");
    session.shutdown().await;
}

#[tokio::test]
async fn one_command_of_a_session_can_have_less() {
    let ground = ground_with_controllers!();
    let dir = workspace();
    let session =
        Session::prepare(&with_limits(dir.path(), Limits { memory: mebibytes(256), ..ground.limits() }))
            .await
            .unwrap();
    let hog = |limits: Option<Limits>| {
        let mut command = session.command("/payload");
        command.args(["hog", "60"]);
        limits.map(|limits| command.limits(limits));
        async move { command.output().await }
    };
    for _ in 0..2 {
        let less = hog(Some(Limits { memory: mebibytes(32), ..Limits::default() })).await.unwrap();
        assert_eq!(less.outcome.limit, Some(Limit::Memory), "{less:?}");
        let failure = less.outcome.failure().unwrap();
        assert!(
            matches!(&failure.details, Details::Limit { configured: Some(size), .. } if size == "32M"),
            "{failure:?}"
        );
        assert!(hog(None).await.unwrap().outcome.status.success(), "the next one has the policy's");
    }
    // Both need a group.
    let few = Limits { pids: Some(3), cpus: Some(0.5), ..Limits::default() };
    let script = "for i in 1 2 3 4 5 6; do sleep 1 & done; wait";
    let mut command = session.command("sh");
    let out = command.args(["-c", script]).limits(few).output().await.unwrap();
    assert_eq!(out.outcome.limit, Some(Limit::Pids), "{out:?}");
    match hog(Some(Limits { memory: mebibytes(257), ..Limits::default() })).await {
        Err(Error::Command { what: "limit", value, .. }) => assert_eq!(value, "memory"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_report_of_a_group_without_limits_is_true_too() {
    let ground = ground!();
    let dir = workspace();
    let session = Session::prepare(&with_limits(dir.path(), ground.limits())).await.unwrap();
    let out = session.command("cat").arg("/proc/self/cgroup").output().await.unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.lines().any(|line| line == "0::/"), "its own cgroup is the root: {said}");
    assert!(out.outcome.usage.user_us + out.outcome.usage.system_us > 0, "{out:?}");
    assert_eq!(out.outcome.limit, None);
    assert!(!ground.groups().is_empty());
    session.shutdown().await;
    assert!(ground.groups().is_empty(), "{:?}", ground.groups());
}
