//! The audit log has a record for everything that happens, and no secret. The policy says what happens if the
//! log fails.

mod chain;
mod full;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime},
};

use kennel::{Audit, Profile, Sandbox, Session, audit::audit_log_path, report::Class};
use serde_json::Value;

use crate::support::{TempDir, World, is_alone, kennel, refused, report, shell, stderr, until, workspace};

/// A log in a directory of its own, where no command can write.
struct Log {
    place: TempDir,
}

impl Log {
    fn new() -> Self {
        Self { place: workspace() }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("log")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }

    fn lines(&self) -> Vec<Value> {
        lines(&self.path())
    }

    fn events(&self) -> Vec<String> {
        self.lines().iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    }

    fn plain(&self) -> Audit {
        Audit::new(self.path())
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

#[test]
fn a_command_is_its_begin_and_its_end() {
    let (place, log) = (workspace(), Log::new());
    let output = shell(place.path(), &["--audit", &log.text()], "exit 3");
    assert_eq!(output.status.code(), Some(3));
    let lines = log.lines();
    let [exec, exit] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&exec["event"], &exec["program"], &exec["arguments"]),
        (&"exec".into(), &"sh".into(), &2.into())
    );
    assert_eq!(exec["directory"], place.path().to_str().unwrap());
    assert_eq!(exec["argv"], Value::Null);
    assert_eq!(
        (&exit["event"], &exit["ended"], &exit["exit_code"]),
        (&"exit".into(), &"exited".into(), &3.into())
    );
    assert!(exit["usage"]["user_us"].is_u64() && exit["duration_ms"].is_u64(), "{exit}");
    assert_eq!((&exit["signal"], &exit["limit"], &exit["class"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!((&exec["session"], &exec["exec"]), (&exit["session"], &1.into()));
    assert_ne!(exec["id"], exit["id"]);
    assert_eq!(fs::metadata(log.path()).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn no_argument_and_no_variable_is_logged_unless_asked_for() {
    let (place, log) = (workspace(), Log::new());
    let script = "true secret-argument";
    shell(place.path(), &["--audit", &log.text(), "--setenv", "TOKEN=secret-value"], script);
    assert!(!fs::read_to_string(log.path()).unwrap().contains("secret"));
    shell(place.path(), &["--audit", &log.text(), "--audit-arguments", "--setenv", "T=secret-value"], script);
    let text = fs::read_to_string(log.path()).unwrap();
    assert!(text.contains("secret-argument") && !text.contains("secret-value"), "{text}");
    assert_eq!(log.lines()[2]["argv"], serde_json::json!(["-c", script]));
}

#[tokio::test]
async fn a_session_is_logged_from_begin_to_end() {
    let (world, log) = (World::new(), Log::new());
    let session = Session::prepare(&world.policy_of(Profile::RepoWrite).audit(log.plain())).await.unwrap();
    for _ in 0..2 {
        session.command("true").status().await.unwrap();
    }
    session.shutdown().await;
    drop(session);
    assert_eq!(log.events(), ["session", "exec", "exit", "exec", "exit", "session_end"]);
    let lines = log.lines();
    let first = &lines[0];
    assert_eq!((&first["profile"], &first["network"]), (&"repo-write".into(), &"proxy".into()));
    assert_eq!(first["workspace"], world.path().to_str().unwrap());
    assert!(["full", "partial"].iter().any(|level| first["enforcement"] == *level), "{first}");
    let execs: Vec<_> = lines.iter().map(|line| line["exec"].as_u64()).collect();
    assert_eq!(execs, [None, Some(1), Some(1), Some(2), Some(2), None]);
    assert!(lines.iter().all(|line| line["session"] == first["session"]));
    let mut ids: Vec<_> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}

#[test]
fn a_limit_and_its_failure_point_at_the_record() {
    let (place, log) = (workspace(), Log::new());
    let flags = ["--audit", &log.text(), "--timeout", "200ms"];
    let (output, report) = report(place.path(), &flags, &["sleep", "9"]);
    assert_eq!(output.status.code(), Some(124));
    let lines = log.lines();
    assert_eq!(log.events(), ["exec", "limit", "exit"]);
    assert_eq!(report["failure"]["audit_id"], lines[0]["id"]);
    assert_eq!((&lines[1]["limit"], &lines[1]["configured"]), (&"wall_time".into(), &"200ms".into()));
    assert_eq!((&lines[2]["ended"], &lines[2]["class"]), (&"timed_out".into(), &"timeout".into()));
}

#[test]
fn a_denial_is_logged() {
    let (place, log) = (workspace(), Log::new());
    fs::create_dir(place.path().join(".git")).unwrap();
    shell(place.path(), &["-q", "--audit", &log.text()], "mkdir -p .git/hooks; touch .git/hooks/post-merge");
    let lines = log.lines();
    let denial = lines.iter().find(|line| line["event"] == "denial").unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(denial["protection"], "protected_paths");
    assert!(denial["subject"].as_str().unwrap().contains(".git/hooks"), "{denial}");
}

#[test]
fn a_failed_start_is_logged() {
    let (place, log) = (workspace(), Log::new());
    let output = kennel(place.path(), &["--audit", &log.text()], &["absent-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let lines = log.lines();
    assert_eq!(log.events(), ["exec", "exit"]);
    assert_eq!((&lines[1]["ended"], &lines[1]["class"]), (&"failed".into(), &"load_failed".into()));
}

#[tokio::test]
async fn a_command_that_nobody_waited_for_has_an_end() {
    let (world, log) = (World::new(), Log::new());
    let sandbox = Sandbox::new(&world.policy_of(Profile::RepoWrite).audit(log.plain())).unwrap();
    let child = sandbox.command("sleep").arg("60").spawn().await.unwrap();
    drop(child);
    assert_eq!(log.events(), ["exec", "exit"]);
    assert_eq!(log.lines()[1]["ended"], "dropped");
}

#[test]
fn a_killed_writer_leaves_whole_lines() {
    let (place, log) = (workspace(), Log::new());
    let mut child = kennel(place.path(), &["--audit", &log.text()], &["sleep", "60"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the command is logged", || fs::read(log.path()).is_ok_and(|text| text.ends_with(b"\n")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(log.events(), ["exec"]);
}

#[test]
fn a_log_in_reach_of_the_command_is_refused_without_a_network_too() {
    let place = workspace();
    let said = refused(place.path(), &["--audit", "log"]);
    assert!(said.contains("writable grant"), "{said}");
    assert!(!place.path().join("log").exists());
}

#[test]
fn a_granted_log_is_refused_on_every_day() {
    let (place, logs) = (workspace(), workspace());
    let at = |name: &str| logs.path().join(name).display().to_string();
    std::os::unix::fs::symlink(logs.path(), place.path().join("link")).unwrap();
    for (log, granted) in
        [("log", "log"), ("x-{date}.log", "x-2026-01-31.log"), ("x-{date}.log", "x-2999-12-31.log")]
    {
        fs::write(at(granted), "").unwrap();
        let said = refused(place.path(), &["--rw", &at(granted), "--audit", &at(log)]);
        assert!(said.contains("writable grant"), "{said}");
        assert_eq!(fs::read(at(granted)).unwrap(), b"");
    }
    // Another file beside it may be granted.
    fs::write(at("x-2026.log"), "").unwrap();
    let flags = ["--rw", &at("x-2026.log"), "--audit", &at("x-{date}.log")];
    assert!(kennel(place.path(), &flags, &["true"]).status().unwrap().success());
}

#[test]
fn flags_about_a_log_need_one() {
    let place = workspace();
    for flag in ["--audit-chain", "--audit-closed", "--audit-arguments"] {
        let said = refused(place.path(), &[flag]);
        assert!(said.contains("--audit FILE"), "{said}");
    }
}

#[test]
fn each_day_has_its_file() {
    let (place, log) = (workspace(), Log::new());
    let template = log.place.path().join("exec-{date}.log");
    shell(place.path(), &["--audit", template.to_str().unwrap()], "true");
    let names: Vec<_> =
        fs::read_dir(log.place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let [name] = &names[..] else { panic!("{names:?}") };
    let name = name.to_str().unwrap();
    assert_eq!(name.len(), "exec-2026-01-31.log".len());
    assert!(name.starts_with("exec-20"), "{name}");
}

#[tokio::test]
async fn a_log_that_was_removed_is_made_again() {
    let (world, log) = (World::new(), Log::new());
    let session = Session::prepare(&world.policy_of(Profile::RepoWrite).audit(log.plain())).await.unwrap();
    fs::remove_file(log.path()).unwrap();
    session.command("true").status().await.unwrap();
    assert_eq!(log.events(), ["exec", "exit"]);
    // Nor is a link followed that took its place.
    fs::remove_file(log.path()).unwrap();
    let elsewhere = log.place.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, log.path()).unwrap();
    session.command("true").status().await.unwrap();
    assert!(!elsewhere.exists());
}

#[tokio::test]
async fn half_a_line_of_another_program_stays() {
    let (world, log) = (World::new(), Log::new());
    fs::write(log.path(), "{\"event\":\"exe").unwrap();
    let sandbox = Sandbox::new(&world.policy_of(Profile::RepoWrite).audit(log.plain())).unwrap();
    sandbox.command("true").status().await.unwrap();
    let text = fs::read_to_string(log.path()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "{\"event\":\"exe"));
    for line in &lines[1..] {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[tokio::test]
async fn commands_side_by_side_keep_their_numbers() {
    let (world, log) = (World::new(), Log::new());
    let session = Session::prepare(&world.policy_of(Profile::RepoWrite).audit(log.plain())).await.unwrap();
    let many: Vec<_> = (0..20)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.command("true").status().await.unwrap() })
        })
        .collect();
    for one in many {
        one.await.unwrap();
    }
    let lines = log.lines();
    for number in 1..=20 {
        let of: Vec<_> =
            lines.iter().filter(|line| line["exec"] == number).map(|line| &line["event"]).collect();
        assert_eq!(of, ["exec", "exit"], "{number}");
    }
}

#[test]
fn the_usual_log_is_made_in_a_directory_of_ones_own() {
    let (place, log) = (workspace(), Log::new());
    let state = log.place.path().join("state");
    let usual = state.join("kennel/audit/exec-{date}.log");
    let output = kennel(place.path(), &["--audit", usual.to_str().unwrap()], &["true"])
        .env("XDG_STATE_HOME", &state)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let directory = usual.parent().unwrap();
    assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o7777, 0o700);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let output = kennel(place.path(), &["--audit", usual.to_str().unwrap()], &["true"])
        .env("XDG_STATE_HOME", &state)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("others can write to its directory"), "{}", stderr(&output));
}

#[test]
fn the_place_of_the_usual_log_is_made_for_its_owner_alone() {
    let log = Log::new();
    let state = log.place.path().join("state");
    let test = "audit::the_place_of_the_usual_log_is_made_for_its_owner_alone";
    if !is_alone(test, &format!("exec env XDG_STATE_HOME={} \"$@\"", state.display())) {
        return;
    }
    let path = audit_log_path(SystemTime::UNIX_EPOCH).unwrap();
    assert!(path.ends_with("state/kennel/audit/exec-1970-01-01.log"), "{}", path.display());
    let directory = path.parent().unwrap();
    assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(!path.exists());
    assert_eq!(audit_log_path(SystemTime::UNIX_EPOCH).unwrap(), path);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let error = audit_log_path(SystemTime::UNIX_EPOCH).unwrap_err();
    assert!(error.remedy().unwrap().contains("only yourself"), "{error}");
}
