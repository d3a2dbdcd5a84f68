//! The words of `kennel probe` about this host agree with a run.

use serde_json::Value;

use crate::support::{kennel_path, require, stdout};

/// The report and the exit status of a probe.
fn probe(flags: &[&str]) -> (Value, Option<i32>) {
    let mut command = std::process::Command::new(kennel_path());
    let output = command.args(["probe", "--json"]).args(flags).output().unwrap();
    (serde_json::from_str(&stdout(&output)).unwrap(), output.status.code())
}

#[test]
fn every_attempt_succeeds_on_a_complete_host() {
    let host = kennel::probe::Host::detect();
    require!(host.landlock_abi >= 6 && host.seccomp, "Landlock with scopes, and seccomp");
    for profile in ["read-only", "repo-write", "no-network", "ci-only"] {
        let (report, status) = probe(&["--profile", profile]);
        assert_eq!(
            (report["verdict"].as_str(), status),
            (Some("fully_enforced"), Some(0)),
            "{profile}: {report:#}"
        );
        let tried = report["findings"].as_array().unwrap().iter();
        let walls = ["landlock_alone", "seccomp_alone", "write_outside", "connect_host", "signal_host"];
        let works = tried
            .filter(|finding| finding["state"] == "works")
            .filter_map(|finding| finding["name"].as_str());
        let works: Vec<&str> = works.collect();
        for wall in walls {
            assert!(works.contains(&wall), "{profile}: {wall}: {report:#}");
        }
    }
}

#[test]
fn every_missing_protection_has_a_remedy() {
    let (report, _) = probe(&[]);
    for finding in report["findings"].as_array().unwrap() {
        if finding["state"] == "missing" {
            assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding:#}");
        }
    }
}

#[test]
fn the_table_names_the_profile_and_ends_with_the_verdict() {
    let output =
        std::process::Command::new(kennel_path()).args(["probe", "--profile", "read-only"]).output().unwrap();
    let last = stdout(&output).lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("profile read-only: "), "{last}");
}
