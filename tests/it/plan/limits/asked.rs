//! A limit that somebody asks for and that nothing here holds is refused, whichever door it comes through.
//! What is only weaker runs, and the report says how weak it is.

use std::{fs, process::Stdio};

use kennel::{
    Cgroup, Error, Limits, Policy, Profile, Requirement, Sandbox, Session, Size,
    report::{Protection, State},
};

use crate::support::{kennel, kennel_path, protection, refused, report, stderr, stdout, workspace};

/// A policy with this limit and no cgroup.
fn policy(workspace: &std::path::Path, limits: Limits) -> Policy {
    Policy::profile(Profile::RepoWrite, workspace).limits(Limits { cgroup: Cgroup::Off, ..limits })
}

fn cpus() -> Limits {
    Limits { cpus: Some(1.0), ..Limits::default() }
}

/// Flags with a limit that only a cgroup holds, and its name.
const ONLY_BY_CGROUP: [(&[&str], &str); 4] = [
    (&["--cpus", "1"], "cpus"),
    (&["--cpuset", "0"], "cpuset"),
    (&["--io", "read=1M"], "io"),
    (&["--memory", "64M", "--swap", "8M"], "memory"),
];

#[test]
fn a_flag_with_a_limit_that_nothing_holds_is_refused_with_cause_and_remedy() {
    let dir = workspace();
    for (flags, name) in ONLY_BY_CGROUP {
        for quiet in [&[][..], &["--quiet"]] {
            let flags = [&["--cgroup", "off"][..], quiet, flags].concat();
            let said = refused(dir.path(), &flags);
            assert!(said.starts_with(&format!("kennel: {name}: cannot be kept here: ")), "{said}");
            assert!(said.contains("kennel: hint: ") && said.contains("--on-unavailable degrade"), "{said}");
        }
        let degrade = [&["--cgroup", "off", "--on-unavailable", "degrade"][..], flags].concat();
        let (output, said) = report(dir.path(), &degrade, &["echo", "ran"]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "ran"), "{output:?}");
        assert_ne!(protection(&said, name).0, "enforced");
        assert!(stderr(&output).contains(&format!("kennel: {name} ")), "{output:?}");
    }
}

#[test]
fn a_limit_of_a_policy_file_is_refused_unless_the_file_lets_it_be_missing() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    let flags = ["--cgroup", "off", "--policy", file.to_str().unwrap()];
    let with = |text: &str| {
        fs::write(&file, format!("workspace = '{}'\nlimits.cpus = 1\n{text}", dir.path().display())).unwrap();
    };
    with("");
    assert!(refused(dir.path(), &flags).contains("cpus: cannot be kept here"));
    with("require.cpus = 'if_available'");
    let (output, said) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(protection(&said, "cpus").0, "off");
    with("on_unavailable = 'degrade'");
    assert_eq!(protection(&report(dir.path(), &flags, &["true"]).1, "cpus").0, "off");
    with("on_unavailable = 'degrade'\nrequire.cpus = 'required'");
    assert!(refused(dir.path(), &flags).contains("cpus: cannot be kept in full"));
}

/// A limit that is weaker than asked is none that is missing.
#[test]
fn a_weaker_limit_runs_and_is_told() {
    let dir = workspace();
    let (output, said) = report(dir.path(), &["--cgroup", "off", "--memory", "64M", "-q"], &["true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(protection(&said, "memory").0, "degraded");
}

#[test]
fn sessions_and_mcp_do_not_start_with_a_limit_that_nothing_holds() {
    let dir = workspace();
    for command in [&["session", "start", "--name", "limited"][..], &["mcp"], &["policy", "check"]] {
        let words = [command, &["--cgroup", "off", "--cpus", "1"]].concat();
        let mut command = std::process::Command::new(kennel_path());
        let output = command.current_dir(dir.path()).args(&words).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{command:?}: {output:?}");
        assert!(stderr(&output).contains("cpus: cannot be kept here"), "{command:?}: {output:?}");
    }
    let ran = kennel(dir.path(), &["--cgroup", "off"], &["true"]).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

#[tokio::test]
async fn the_library_refuses_it_before_anything_runs() {
    let dir = workspace();
    let strict = policy(dir.path(), cpus());
    let of_session = Session::prepare(&strict).await.err();
    let of_sandbox = Sandbox::new(&strict).err();
    for error in [of_session, of_sandbox] {
        assert!(matches!(error, Some(Error::Unavailable { protection: Protection::Cpus, .. })), "{error:?}");
    }
    let optional = strict.require(Protection::Cpus, Requirement::IfAvailable);
    let session = Session::prepare(&optional).await.unwrap();
    let outcome = session.command("true").output().await.unwrap().outcome;
    assert_eq!(outcome.enforcement.get(Protection::Cpus).map(|entry| entry.state), Some(State::Off));
}

/// The report of a command has the limits that only this command has.
#[tokio::test]
async fn limits_of_one_command_are_in_its_report() {
    let dir = workspace();
    let session = Session::prepare(&policy(dir.path(), Limits::default())).await.unwrap();
    let state = |outcome: &kennel::Outcome| Some(outcome.enforcement.get(Protection::Memory)?.state);
    let own = Limits { memory: Some(Size::from_bytes(512 << 20)), ..Limits::default() };
    let outcome = session.command("true").limits(own).output().await.unwrap().outcome;
    assert_eq!(state(&outcome), Some(State::Degraded));
    let outcome = session.command("true").output().await.unwrap().outcome;
    assert_eq!(state(&outcome), None);
}
