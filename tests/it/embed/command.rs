//! Commands of a sandbox and their outcomes; `embed::doors` has what holds in sessions too.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, process::ExitStatusExt},
    path::PathBuf,
    time::Duration,
};

use kennel::{
    Ended, Error, Policy, Profile, Sandbox,
    report::{Boundary, Class, Level, Limit, State, Wording},
};

use super::sandbox;
use crate::support::{patient, workspace};

#[tokio::test(flavor = "multi_thread")]
async fn status_runs_to_the_end() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("touch");
    let outcome = command.arg("made").status().await.unwrap();
    assert!(outcome.status.success() && dir.path().join("made").exists());
    let outcome = sandbox(dir.path()).command("sh").args(["-c", "kill -9 $$"]).status().await.unwrap();
    assert_eq!(
        (outcome.status.signal(), outcome.exit_code(), outcome.ended),
        (Some(9), 137, Ended::Signaled)
    );
}

#[tokio::test]
async fn sandbox_outlives_its_clones_and_its_commands_outlive_it() {
    let dir = workspace();
    let mut command = {
        let sandbox = sandbox(dir.path());
        let clone = sandbox.clone();
        drop(sandbox);
        clone.command("true")
    };
    assert!(command.status().await.unwrap().status.success());
}

#[tokio::test]
async fn every_command_has_a_sandbox_of_its_own() {
    let dir = workspace();
    let sandbox = sandbox(dir.path());
    sandbox.command("touch").arg("/tmp/x").status().await.unwrap();
    let listed = sandbox.command("ls").args(["-A", "/tmp"]).output().await.unwrap();
    assert!(!String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == "x"), "{listed:?}");
}

#[tokio::test]
async fn working_directory_is_the_workspace_or_as_asked() {
    let dir = workspace();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let sandbox = sandbox(dir.path());
    let pwd = async |to: Option<&str>| {
        let mut command = sandbox.command("pwd");
        if let Some(to) = to {
            command.current_dir(to);
        }
        command.output().await.map(|output| PathBuf::from(OsStr::from_bytes(output.stdout.trim_ascii_end())))
    };
    assert_eq!(pwd(None).await.unwrap(), dir.path());
    assert_eq!(pwd(Some("sub")).await.unwrap(), dir.path().join("sub"));
    assert_eq!(pwd(Some("/tmp")).await.unwrap(), PathBuf::from("/tmp"));
    let error = pwd(Some("/absent")).await.unwrap_err();
    assert!(matches!(error, Error::Command { what: "working directory", .. }), "{error:?}");
    assert_eq!(error.failure().class, Class::CapabilityDenied);
}

#[tokio::test]
async fn errors_name_the_class() {
    let dir = workspace();
    let sandbox = sandbox(dir.path());
    let error = sandbox.command("absent-program").output().await.unwrap_err();
    assert!(matches!(&error, Error::NotFound { program } if program == "absent-program"), "{error:?}");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("directory with ro;")));
    assert_eq!((error.failure().class, error.failure().boundary), (Class::LoadFailed, Boundary::Sandbox));
    let error = sandbox.command("/tmp").output().await.unwrap_err();
    assert!(
        matches!(&error, Error::NotExecutable { source, .. } if source.raw_os_error() == Some(13)),
        "{error:?}"
    );
    let error = Sandbox::new(&Policy::profile(Profile::RepoWrite, "/absent")).unwrap_err();
    assert!(matches!(&error, Error::Grant { what: "workspace", .. }), "{error:?}");
    assert!(error.remedy().is_some() && error.failure().class == Class::CapabilityDenied);
    let error =
        Sandbox::new(&Policy::profile(Profile::RepoWrite, dir.path()).tmpfs("relative", None)).unwrap_err();
    assert!(matches!(&error, Error::Policy(_)), "{error:?}");
}

#[tokio::test]
async fn timeout_is_the_shorter_of_the_command_s_and_the_policy_s() {
    let dir = workspace();
    let policy = Policy::profile(Profile::RepoWrite, dir.path()).timeout(Duration::from_millis(150));
    let sandbox = Sandbox::new(&policy).unwrap();
    let outcome = sandbox.command("sleep").arg("60").status().await.unwrap();
    assert_eq!(
        (outcome.ended, outcome.limit, outcome.exit_code()),
        (Ended::TimedOut, Some(Limit::WallTime), 124)
    );
    assert!(
        outcome.duration >= Duration::from_millis(150) && outcome.duration < patient(Duration::from_secs(5))
    );
    let failure = outcome.failure().unwrap();
    assert_eq!(failure.class, Class::Timeout);
    assert_eq!(failure.message, "command timed out after 150ms");
    let mut longer = sandbox.command("sleep");
    let outcome = longer.arg("60").timeout(Duration::from_secs(60)).status().await.unwrap();
    assert_eq!(outcome.ended, Ended::TimedOut, "the policy's holds for every command");
    let sandbox = Sandbox::new(&Policy::profile(Profile::RepoWrite, dir.path())).unwrap();
    let mut longer = sandbox.command("sleep");
    let outcome = longer.arg("0.3").timeout(Duration::from_secs(60)).status().await.unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    let outcome = longer.timeout(Duration::ZERO).status().await.unwrap();
    assert_eq!(outcome.ended, Ended::TimedOut);
    let outcome = longer.timeout(Duration::MAX).status().await.unwrap();
    assert!(outcome.status.success(), "no overflow: {outcome:?}");
}

#[tokio::test]
async fn enforcement_is_predicted_and_confirmed() {
    let dir = workspace();
    let sandbox = sandbox(dir.path());
    let output = sandbox.command("true").output().await.unwrap();
    assert_eq!(sandbox.enforcement(), &output.outcome.enforcement);
    let everything =
        output.outcome.enforcement.protections().iter().all(|entry| entry.state == State::Enforced);
    assert_eq!(output.outcome.enforcement.level() == Level::Full, everything);
}

#[tokio::test]
async fn a_sandbox_protects_paths_that_appeared_since() {
    let dir = workspace();
    let sandbox = sandbox(dir.path());
    let init =
        "mkdir -p .git/objects .git/refs .git/hooks; echo ref: refs/heads/x >.git/HEAD; echo >.git/config";
    assert!(sandbox.command("sh").args(["-c", init]).status().await.unwrap().status.success());
    for start in [Sandbox::new, Sandbox::eager] {
        let later = start(&Policy::profile(Profile::RepoWrite, dir.path())).unwrap();
        for sandbox in [&sandbox, &later, &later] {
            let evil = "echo evil >.git/hooks/pre-commit; echo evil >>.git/config";
            let output = sandbox.command("sh").args(["-c", evil]).output().await.unwrap();
            assert!(!dir.path().join(".git/hooks/pre-commit").exists(), "{output:?}");
            assert_eq!(std::fs::read_to_string(dir.path().join(".git/config")).unwrap(), "\n", "{output:?}");
        }
    }
}

/// An eager sandbox that has started by now.
async fn has_its_mounts() {
    tokio::time::sleep(patient(Duration::from_millis(100))).await;
}

#[tokio::test]
async fn a_sandbox_whose_workspace_was_replaced_is_an_error() {
    let place = workspace();
    let (ws, old) = (place.path().join("w"), place.path().join("old"));
    std::fs::create_dir(&ws).unwrap();
    let used = sandbox(&ws);
    assert!(used.command("true").status().await.unwrap().status.success());
    let eager = Sandbox::eager(&Policy::profile(Profile::RepoWrite, &ws)).unwrap();
    has_its_mounts().await;
    for sandbox in [used, sandbox(&ws), eager] {
        std::fs::rename(&ws, &old).unwrap();
        std::fs::create_dir(&ws).unwrap();
        let error = sandbox.command("true").status().await.unwrap_err();
        assert!(
            error.lines(Wording::default()).iter().any(|line| line.contains("make a new sandbox")),
            "{error:?}"
        );
        std::fs::remove_dir(&ws).unwrap();
        std::fs::rename(&old, &ws).unwrap();
        assert!(sandbox.command("true").status().await.unwrap().status.success());
    }
}

#[tokio::test]
async fn a_sandbox_goes_on_after_git_replaced_its_config() {
    let dir = workspace();
    std::fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
    let config = dir.path().join(".git/config");
    std::fs::write(&config, "").unwrap();
    for start in [Sandbox::new, Sandbox::eager] {
        let sandbox = start(&Policy::profile(Profile::RepoWrite, dir.path())).unwrap();
        has_its_mounts().await;
        for _ in 0..3 {
            std::fs::write(dir.path().join(".git/config.lock"), "").unwrap();
            std::fs::rename(dir.path().join(".git/config.lock"), &config).unwrap();
            let mut command = sandbox.command("sh");
            let output = command.args(["-c", "echo evil >>.git/config"]).output().await.unwrap();
            assert_eq!(output.outcome.status.code(), Some(2), "{output:?}");
        }
    }
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "");
}
