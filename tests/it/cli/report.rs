//! The object of `--json`, key by key.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use serde_json::Value;

use crate::support::{ends, kennel, report, require, stderr, workspace, workspace_in};

/// Checks every key of the report and returns it.
fn has_every_key(report: &Value) -> &Value {
    let object = report.as_object().unwrap();
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "denials",
        "duration_ms",
        "ended",
        "enforcement",
        "exit_code",
        "failure",
        "limit",
        "network_failures",
        "signal",
        "started",
        "stderr_bytes",
        "stdout_bytes",
        "truncated",
        "usage",
    ];
    assert_eq!(keys, expected);
    assert!(report["ended"].is_string() && report["exit_code"].is_u64() && report["duration_ms"].is_u64());
    assert!(report["truncated"].is_boolean() && report["denials"].is_array());
    assert!(report["signal"].is_u64() || report["signal"].is_null());
    assert!(report["limit"].is_string() || report["limit"].is_null());
    report
}

/// More keys of the report of a command that ran.
fn has_run(report: &Value) {
    has_every_key(report);
    for key in ["user_us", "system_us", "max_rss_bytes", "killed"] {
        assert!(report["usage"][key].is_u64(), "usage.{key}: {report}");
    }
    assert!(report["stdout_bytes"].is_u64() && report["stderr_bytes"].is_u64(), "{report}");
    assert_eq!(report["started"], "exec");
    assert!(["full", "partial"].contains(&report["enforcement"]["level"].as_str().unwrap()));
    for entry in report["enforcement"]["protections"].as_array().unwrap() {
        assert!(entry["name"].is_string() && entry["detail"].is_string(), "{entry}");
        assert!(["enforced", "degraded", "off"].contains(&entry["state"].as_str().unwrap()), "{entry}");
    }
    for note in report["enforcement"]["notes"].as_array().unwrap() {
        assert!(note["subject"].is_string() && note["text"].is_string(), "{note}");
    }
}

fn has_failed(report: &Value, class: &str, boundary: &str) {
    let failure = report["failure"].as_object().unwrap_or_else(|| panic!("no failure: {report}"));
    let mut keys: Vec<&str> = failure.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["audit_id", "boundary", "class", "details", "message", "retriable"]);
    assert_eq!((&failure["class"], &failure["boundary"]), (&class.into(), &boundary.into()), "{report}");
    assert_eq!(failure["retriable"], false);
    assert!(
        failure["message"].as_str().is_some_and(|message| !message.is_empty() && !message.contains('\n'))
    );
}

#[test]
fn report_of_success() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &[], &["sh", "-c", "echo out; printf err >&2"]);
    assert!(output.status.success());
    has_run(&report);
    assert_eq!((&report["ended"], &report["exit_code"]), (&"exited".into(), &0.into()));
    assert_eq!((&report["stdout_bytes"], &report["stderr_bytes"]), (&4.into(), &3.into()));
    assert!(report["failure"].is_null() && report["limit"].is_null() && report["signal"].is_null());
    assert!(report["usage"]["max_rss_bytes"].as_u64().unwrap() > 100_000, "{report}");
}

#[test]
fn report_of_a_command_that_failed() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &[], &["sh", "-c", "sleep 60 & sleep 60 & exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    has_run(&report);
    assert_eq!(
        (&report["ended"], &report["exit_code"], &report["usage"]["killed"]),
        (&"exited".into(), &7.into(), &2.into())
    );
    assert!(report["failure"].is_null(), "the command's own failure is not Kennel's");
}

#[test]
fn report_of_a_command_ended_by_a_signal() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &[], &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!(crate::support::shown(output.status), Some(139));
    has_run(&report);
    assert_eq!(
        (&report["ended"], &report["exit_code"], &report["signal"]),
        (&"signaled".into(), &139.into(), &11.into())
    );
    assert!(report["failure"].is_null());
}

#[test]
fn report_of_a_timeout() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &["--timeout", "100ms"], &["sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    has_run(&report);
    has_failed(&report, "timeout", "sandbox");
    assert_eq!((&report["ended"], &report["exit_code"]), (&"timed_out".into(), &124.into()));
}

#[test]
fn report_of_a_run_that_did_not_start() {
    let dir = workspace();
    fs::write(dir.path().join("plain"), "").unwrap();
    for (flags, command, status, class, boundary) in [
        (&["--ro", "/absent"][..], "true", 125, "capability_denied", "manifest"),
        (
            &["--profile", "ci-only", "--cgroup", "off", "--cpus", "1"],
            "true",
            125,
            "spawn_sandbox_unavailable",
            "sandbox",
        ),
        (&["--cwd", "/absent"], "true", 125, "capability_denied", "action"),
        (&["--policy", "/absent.toml"], "true", 125, "load_failed", "manifest"),
        (&[], "absent-program", 127, "load_failed", "sandbox"),
        (&[], "./plain", 126, "load_failed", "sandbox"),
    ] {
        let (output, report) = report(dir.path(), flags, &[command]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        has_every_key(&report);
        has_failed(&report, class, boundary);
        assert_eq!((&report["ended"], &report["exit_code"]), (&"failed".into(), &status.into()));
        assert!(report["enforcement"].is_null() && report["usage"].is_null(), "nothing ran: {report}");
        let message = report["failure"]["message"].as_str().unwrap();
        assert!(stderr(&output).contains(message), "the same words for people: {output:?}");
    }
}

#[test]
fn report_replaces_an_older_one() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("report");
    fs::write(&file, "x".repeat(100_000)).unwrap();
    let output = kennel(dir.path(), &["--json", file.to_str().unwrap()], &["true"]).output().unwrap();
    assert!(output.status.success());
    let text = fs::read_to_string(file).unwrap();
    has_run(&serde_json::from_str(&text).unwrap());
    assert!(text.ends_with("}\n") && text.lines().count() == 1);
}

#[test]
fn report_can_go_to_a_pipe() {
    let dir = workspace();
    let output = kennel(dir.path(), &["--json", "/dev/stderr"], &["true"]).output().unwrap();
    has_run(&serde_json::from_slice(&output.stderr).unwrap());
}

/// An earlier command can leave any kind of file in the workspace.
#[test]
fn a_pipe_in_the_place_of_the_report_is_refused_at_once() {
    let dir = workspace();
    let made = kennel(dir.path(), &[], &["mkfifo", "report.json"]).status().unwrap();
    assert!(made.success());
    let reader =
        std::fs::File::options().read(true).write(true).open(dir.path().join("report.json")).unwrap();
    for reader in [None, Some(reader)] {
        let output = kennel(dir.path(), &["--json", "report.json"], &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).contains("pass a writable file to --json"), "{output:?}");
        drop(reader);
    }
}

/// Everybody can write to /dev/shm, wherever it is.
#[test]
fn a_report_in_shared_memory_is_a_file_like_others() {
    require!(Path::new("/dev/shm").is_dir(), "/dev/shm");
    let (dir, shared) = (workspace(), workspace_in(Path::new("/dev/shm")));
    let file = shared.path().join("report.json");
    let run = || kennel(dir.path(), &["--json", file.to_str().unwrap()], &["echo", "ran"]);
    for _ in 0..2 {
        assert!(run().output().unwrap().status.success());
        has_run(&serde_json::from_slice(&fs::read(&file).unwrap()).unwrap());
    }
    let victim = shared.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let pipe = |path: &Path| mkfifo(path, Mode::S_IRWXU).unwrap();
    let link = |path: &Path| symlink(&victim, path).unwrap();
    let linked = "pass the file itself to --json: links are not followed";
    for (make, remedy) in [(&pipe as &dyn Fn(&Path), "pass a writable file to --json"), (&link, linked)] {
        fs::remove_file(&file).unwrap();
        make(&file);
        let mut child = run().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(ends("a report that cannot be", &mut child).code(), Some(125));
        let output = child.wait_with_output().unwrap();
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(stderr(&output).contains(remedy), "{output:?}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
}

#[test]
fn a_report_can_go_to_a_descriptor_or_a_device() {
    let (dir, beside) = (workspace(), workspace());
    let log = beside.path().join("log");
    fs::write(&log, "before\n").unwrap();
    // Runs `kennel run` with this as descriptor 3.
    let run = |path: &str, third: Stdio| {
        let command = kennel(dir.path(), &["--json", path], &["true"]);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "exec \"$@\" 3>&1 >/dev/null", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        let child = shell.current_dir(dir.path()).stdout(third).stderr(Stdio::null()).spawn();
        ends(path, &mut child.unwrap()).code()
    };
    for path in ["/dev/fd/3", "/proc/self/fd/3"] {
        fs::write(&log, "before\n").unwrap();
        let file = fs::File::options().append(true).open(&log).unwrap();
        assert_eq!(run(path, file.into()), Some(0));
        let said = fs::read_to_string(&log).unwrap();
        has_run(&serde_json::from_str(said.strip_prefix("before\n").unwrap()).unwrap());
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert_eq!(run("/dev/fd/3", writer.into()), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
    has_run(&serde_json::from_str(&said).unwrap());
    let named = beside.path().join("pipe");
    mkfifo(&named, Mode::S_IRWXU).unwrap();
    for nobody_reads in [false, true] {
        let reader = fs::File::options().read(true).write(true).open(&named).unwrap();
        let writer = fs::File::options().write(true).open(&named).unwrap();
        let reader = (!nobody_reads).then_some(reader);
        assert_eq!(run("/dev/fd/3", writer.into()), Some(if nobody_reads { 125 } else { 0 }));
        drop(reader);
    }
    assert_eq!(run("/dev/null", Stdio::null()), Some(0));
}

#[test]
fn a_report_to_our_own_streams_takes_nothing_from_them() {
    let dir = workspace();
    for (stream, by_stderr) in [("/dev/stdout", false), ("/dev/fd/1", false), ("/dev/stderr", true)] {
        let log = dir.path().join("log");
        fs::write(&log, "before\n").unwrap();
        let file = || fs::File::options().append(true).open(&log).unwrap();
        let mut command = kennel(dir.path(), &["--json", stream], &["echo", "out"]);
        if by_stderr {
            command.stderr(file())
        } else {
            command.stdout(file())
        };
        assert!(command.output().unwrap().status.success());
        let said = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "before", "{stream}: {said}");
        assert!(by_stderr || lines[1] == "out", "{stream}: {said}");
        let report: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(report["exit_code"], 0);
    }
}
