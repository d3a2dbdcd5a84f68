//! The outcome names the limit that ended a command if it is certain, and only then. Every way to run a
//! command says the same.

use std::time::Duration;

use kennel::{
    Command, Ended, Error, Limits, Outcome, Policy, Profile, Sandbox, Session, Size, Stdio,
    report::{Class, Details, Limit},
};
use serde_json::{Value, json};

use crate::{
    serve::Hosted,
    support::{World, patient, patient_flag, report, stderr, stdout, workspace},
};

/// The report's words about the limit, and the failure.
fn named(report: &Value) -> (&Value, &Value, &Value) {
    (&report["limit"], &report["failure"]["class"], &report["failure"]["details"])
}

fn limits() -> Limits {
    Limits {
        output: Some(Size::from_bytes(1024)),
        output_ends: true,
        tmp_size: Some(Size::from_bytes(4 << 20)),
        file_size: Some(Size::from_bytes(1 << 20)),
        cpu_time: Some(Duration::from_secs(1).into()),
        timeout: Some(patient(Duration::from_secs(20)).into()),
        ..Limits::default()
    }
}

/// Scripts that a limit ends, and the expected words: the limit, its value, and the usage if it is certain.
const ENDS: &[(&str, Limit, &str, Option<&str>)] = &[
    ("yes", Limit::Output, "1K", None),
    ("yes >&2", Limit::Output, "1K", None),
    (
        "i=0; while head -c 1000000 /dev/zero > /tmp/$i; do i=$((i+1)); done; exit 3",
        Limit::Tmpfs,
        "4M",
        Some("4M"),
    ),
    ("head -c 2000000 /dev/zero > big", Limit::FileSize, "1M", None),
    ("exec head -c 2000000 /dev/zero > big", Limit::FileSize, "1M", None),
    ("while :; do :; done", Limit::CpuTime, "1s", None),
    ("(while :; do :; done); exit $?", Limit::CpuTime, "1s", None),
    ("trap '' XCPU; while :; do :; done", Limit::CpuTime, "1s", None),
];

fn compare(script: &str, outcome: &Outcome, (limit, value, used): (Limit, &str, Option<&str>)) {
    assert_eq!(outcome.limit, Some(limit), "{script}: {outcome:?}");
    let failure = outcome.failure().unwrap_or_else(|| panic!("{script}: {outcome:?}"));
    assert_eq!(failure.class, Class::ResourceLimitExceeded, "{script}");
    let Details::Limit { limit: named, configured, used: said } = &failure.details else {
        panic!("{script}: {failure:?}")
    };
    assert_eq!((*named, configured.as_deref()), (limit, Some(value)), "{script}");
    assert!(used.is_none() || said.as_deref() == used, "{script}: {failure:?}");
    assert!(failure.message.starts_with("the command hit a limit: "), "{script}: {failure:?}");
    assert!(!outcome.status.success() && outcome.exit_code() != 0, "{script}: {outcome:?}");
}

/// A world whose commands have these limits.
fn limited() -> World {
    World::new().with(|policy| policy.limits(limits()))
}

#[tokio::test]
async fn one_shots_and_sessions_name_the_same_limit() {
    let world = limited();
    let sandbox = Sandbox::new(&world.policy()).unwrap();
    let session = world.session().await;
    for &(script, limit, value, used) in ENDS {
        let ends = async |mut command: Command| {
            let out = command.args(["-c", script]).output().await.unwrap();
            compare(script, &out.outcome, (limit, value, used));
        };
        tokio::join!(ends(sandbox.command("sh")), ends(session.command("sh")));
    }
    let out = session.command("sh").args(["-c", "echo on"]).output().await.unwrap();
    assert_eq!((out.outcome.limit, &*out.stdout), (None, &b"on\n"[..]));
}

/// The policy has no such limit, or the command came to its end anyway.
#[tokio::test]
async fn no_limit_is_named_on_a_guess() {
    let world = limited();
    let free = Session::prepare(&Policy::profile(Profile::NoNetwork, world.path())).await.unwrap();
    let scripts =
        ["kill -XCPU $$", "kill -XFSZ $$", "kill -9 $$", "exit 152", "exit 153", "exit 137", "exit 1"];
    for script in scripts {
        let out = free.command("sh").args(["-c", script]).output().await.unwrap();
        assert_eq!((out.outcome.limit, out.outcome.failure()), (None, None), "{script}");
    }
    let held = world.session().await;
    // Killed by another process, long before the timeout; a full directory that does not make it fail; output
    // at its cap.
    let scripts =
        ["kill -9 $$", "exit 137", "head -c 900000 /dev/zero > /tmp/f; exit 1", "head -c 1024 /dev/zero"];
    for script in scripts {
        let out = held.command("sh").args(["-c", script]).output().await.unwrap();
        assert_eq!((out.outcome.limit, out.outcome.truncated), (None, false), "{script}: {out:?}");
    }
    let fill = "i=0; while head -c 1000000 /dev/zero > /tmp/$i; do i=$((i+1)); done; exit 0";
    let out = held.command("sh").args(["-c", fill]).output().await.unwrap();
    assert_eq!((out.outcome.limit, out.outcome.exit_code()), (None, 0), "it says that it succeeded: {out:?}");
}

/// Kennel does not count output that goes past it, so that limit could not end the command.
#[tokio::test]
async fn output_that_is_not_counted_is_refused_where_it_shall_end_the_command() {
    let world = limited();
    let held = world.session().await;
    let refused = |result: Result<Outcome, Error>, by: &str| {
        let error = result.unwrap_err().chain();
        assert!(error.contains(by) && error.contains("connect pipes, or leave output_ends out"), "{error}");
    };
    let mut command = held.command("true");
    refused(command.terminal(24, 80).status().await, "goes to a terminal");
    refused(held.command("true").status().await, "goes to a descriptor of the caller,");
    let mut command = held.command("true");
    refused(command.stdout(Stdio::piped()).status().await, "goes to a descriptor of the caller,");
    let mut command = held.command("true");
    assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().await.unwrap().status.success());
}

/// Dropped output ends a command only if the policy says so.
#[tokio::test]
async fn output_ends_a_command_only_where_the_policy_says_so() {
    let dir = workspace();
    let cut = Limits {
        output_ends: false,
        timeout: Some(patient(Duration::from_millis(400)).into()),
        cpu_time: None,
        ..limits()
    };
    let session =
        Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path()).limits(cut)).await.unwrap();
    let out = session.command("yes").output().await.unwrap();
    assert_eq!(
        (out.outcome.ended, out.outcome.limit, out.outcome.truncated),
        (Ended::TimedOut, Some(Limit::WallTime), true)
    );
    assert_eq!(out.outcome.failure().unwrap().class, Class::Timeout);
    // A single command may ask for it anyway.
    let ends = Limits { output_ends: true, ..Limits::default() };
    let out = session.command("yes").limits(ends).output().await.unwrap();
    assert_eq!(
        (out.outcome.ended, out.outcome.limit, out.outcome.truncated),
        (Ended::Signaled, Some(Limit::Output), true)
    );
    assert!(
        out.stdout.starts_with(b"y\ny\n") && out.outcome.stdout_bytes > Some(1024),
        "{:?}",
        out.outcome.stdout_bytes
    );
}

#[tokio::test]
async fn ending_by_output_takes_a_limit_of_it() {
    let dir = workspace();
    let none = Limits { output_ends: true, ..Limits::default() };
    let error =
        Sandbox::new(&Policy::profile(Profile::NoNetwork, dir.path()).limits(none.clone())).unwrap_err();
    assert_eq!(error.chain(), "policy: limits.output_ends `true`: needs limits.output");
    let session = Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path())).await.unwrap();
    let error = session.command("true").limits(none).output().await.unwrap_err();
    assert_eq!(error.chain(), "policy: limits.output_ends `true`: needs limits.output");
}

#[test]
fn the_command_line_names_limits() {
    let dir = workspace();
    let flags = ["--max-output", "1K", "--output-ends", "--quiet"];
    let (output, said) = report(dir.path(), &flags, &["yes"]);
    assert_eq!(crate::support::shown(output.status), Some(137), "{output:?}");
    let (limit, class, details) = named(&said);
    assert_eq!((limit, class), (&json!("output"), &json!("resource_limit_exceeded")));
    assert_eq!((&details["limit"], &details["configured"]), (&json!("output"), &json!("1K")), "{said}");
    assert_eq!(said["ended"], "signaled");

    let (output, said) =
        report(dir.path(), &["--tmp-size", "1M"], &["sh", "-c", "head -c 2M /dev/zero > /tmp/f"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let details = json!({"limit": "tmpfs", "configured": "1M", "used": "1M"});
    assert_eq!(named(&said), (&json!("tmpfs"), &json!("resource_limit_exceeded"), &details));
    let last = "kennel: the command hit a limit: private file systems, 1M; --tmp-size, --tmp-inodes or --tmpfs P:SIZE gives more";
    assert_eq!(stderr(&output).lines().last(), Some(last), "{output:?}");

    let flags = ["--tmpfs", "/scratch:1M", "--tmp-size", "8M"];
    let (_, said) = report(dir.path(), &flags, &["sh", "-c", "head -c 2M /dev/zero > /scratch/f"]);
    assert_eq!(said["failure"]["details"], details, "that of the tmpfs, not of all: {said}");
}

/// A client of a session that listens gets the same status, lines and report.
#[test]
fn clients_get_the_same_words_about_limits() {
    let hosted = Hosted::start(&["--max-output", "1K", "--output-ends", "--tmp-inodes", "40", "-q"]);
    let json = hosted.workspace.path().join("report.json");
    let exec = |script: &str| {
        let arguments = ["exec", "s", "--json", json.to_str().unwrap(), "--", "sh", "-c", script];
        let output = hosted.kennel(&arguments).output().unwrap();
        let text = std::fs::read_to_string(&json).unwrap();
        (output, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (output, said) = exec("yes");
    assert_eq!(
        (crate::support::shown(output.status), &said["limit"]),
        (Some(137), &json!("output")),
        "{output:?}"
    );
    let (output, said) = exec("i=0; while true > /tmp/$i; do i=$((i+1)); done; exit 1");
    assert_eq!(said["failure"]["details"]["configured"], "40 inodes", "{said}");
    let last = "the command hit a limit: private file systems, 40 inodes; a session started with --tmp-size, --tmp-inodes or --tmpfs P:SIZE gives more";
    assert!(stderr(&output).ends_with(last), "{output:?}");
    let (output, said) = exec("echo on");
    assert_eq!(
        (stdout(&output).as_str(), &said["limit"], &said["failure"]),
        ("on", &Value::Null, &Value::Null)
    );
}

/// With the rails alone, in the same words.
#[tokio::test]
async fn commands_with_the_rails_alone_get_the_same_words_about_limits() {
    let dir = workspace();
    let limits = kennel::capabilities::RunLimits {
        timeout: Some(Duration::from_millis(200)),
        ..kennel::capabilities::RunLimits::default()
    };
    let (caps, arguments) = (kennel::capabilities::Capabilities::default(), ["60"]);
    let (out, _) =
        kennel::capabilities::run_command("sleep", arguments, dir.path(), &caps, &limits).await.unwrap();
    let Some(Details::Limit { limit, configured, used }) =
        out.outcome.failure().map(|failure| failure.details)
    else {
        panic!("{out:?}")
    };
    assert_eq!((limit, configured.as_deref()), (Limit::WallTime, Some("200ms")));
    assert!(used.is_some_and(|used| used.ends_with("ms")));
}

/// SIGKILL for all processes does not make a full directory the reason.
#[test]
fn a_timeout_counts_before_a_full_directory() {
    let dir = workspace();
    let flags = ["--tmp-size", "1M", "--timeout", &patient_flag(Duration::from_millis(500))];
    let (output, said) = report(dir.path(), &flags, &["sh", "-c", "head -c 2M /dev/zero > /tmp/f; sleep 60"]);
    assert_eq!((output.status.code(), &said["limit"]), (Some(124), &json!("wall_time")), "{said}");
}
