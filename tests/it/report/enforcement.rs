//! The report is true: a protection that it calls enforced holds, and it does not call others enforced.

use std::{fs, net::TcpListener};

use kennel::{probe::Host, report::Protection};
use serde_json::Value;

use crate::support::{
    has, has_scopes, kennel, protection, refused, report, require, runs, shell, stderr, workspace,
};

fn entries(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let entries = report["enforcement"]["protections"].as_array().unwrap().iter();
    entries.map(|entry| (text(&entry["name"]), text(&entry["state"]))).collect()
}

#[test]
fn plain_run_enforces_everything_that_is_no_limit() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &[], &["true"]);
    let host = Host::detect();
    require!(host.landlock_abi >= 6 && host.seccomp, "Landlock with scopes, and seccomp");
    assert_eq!(report["enforcement"]["level"], "full");
    let mut named: Vec<String> = entries(&report).into_iter().map(|(name, _)| name).collect();
    let is_expected = |it: &Protection| !it.is_limit() && *it != Protection::LandlockNetwork;
    let expected = Protection::ALL.into_iter().filter(is_expected);
    let mut expected: Vec<String> = expected.map(|protection| protection.to_string()).collect();
    named.sort();
    expected.sort();
    assert_eq!(named, expected, "one entry each");
    assert!(entries(&report).iter().all(|(_, state)| state == "enforced"), "{report}");
    assert!(output.stderr.is_empty(), "nothing to remark: {output:?}");
}

#[test]
fn every_entry_has_a_detail_of_one_line() {
    let dir = workspace();
    let flags = [
        "--cgroup",
        "off",
        "--memory",
        "1G",
        "--cpus",
        "1",
        "--cpu-time",
        "10s",
        "--pids",
        "100",
        "--net",
        "host",
        "--on-unavailable",
        "degrade",
    ];
    let (_, report) = report(dir.path(), &flags, &["true"]);
    for entry in report["enforcement"]["protections"].as_array().unwrap() {
        let detail = entry["detail"].as_str().unwrap();
        assert!(!detail.is_empty() && !detail.contains('\n'), "{entry}");
        assert_eq!(entry.as_object().unwrap().len(), 3, "name, state, detail: {entry}");
    }
}

#[test]
fn network_that_was_granted_is_off_and_does_not_lower_the_level() {
    let dir = workspace();
    for flags in [&["--net", "host"][..], &["--profile", "full-dev"]] {
        let (output, report) = report(dir.path(), flags, &["true"]);
        assert_eq!(protection(&report, "network_namespace").0, "off");
        // Only Landlock scopes could be missing here, not the network.
        assert_eq!(report["enforcement"]["level"], if has_scopes() { "full" } else { "partial" }, "{report}");
        assert!(output.stderr.is_empty() || !has_scopes(), "{output:?}");
    }
}

#[test]
fn network_is_as_the_report_says() {
    require!(has("bash"), "bash, which connects by /dev/tcp");
    let dir = workspace();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect =
        format!("exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/{}'", listener.local_addr().unwrap().port());
    for flags in
        [&[][..], &["--profile", "no-network"], &["--profile", "read-only"], &["--profile", "ci-only"]]
            .into_iter()
            .filter(|flags| flags.last().is_none_or(|profile| runs(profile)))
    {
        let output = shell(dir.path(), flags, &connect);
        assert!(
            !output.status.success() && stderr(&output).contains("Connection refused"),
            "{flags:?}: {output:?}"
        );
    }
    for flags in [&["--net", "host"][..], &["--profile", "full-dev"]] {
        let output = shell(dir.path(), flags, &connect);
        assert!(output.status.success(), "{flags:?}: {output:?}");
    }
    let interfaces = shell(dir.path(), &[], "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '");
    assert_eq!(crate::support::stdout(&interfaces), "lo");
}

#[test]
fn degraded_limit_makes_the_level_partial() {
    let dir = workspace();
    for flags in [["--memory", "1G"], ["--cpus", "1"], ["--cpu-time", "10s"]] {
        let flags = [&["--cgroup", "off", "--on-unavailable", "degrade"], &flags[..]].concat();
        let (output, report) = report(dir.path(), &flags, &["true"]);
        assert_eq!(report["enforcement"]["level"], "partial", "{flags:?}");
        assert!(output.status.success() && !output.stderr.is_empty(), "{flags:?}: {output:?}");
    }
}

#[test]
fn requirements_can_be_relaxed_except_for_indispensable_protections() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    let with = |text: &str| {
        fs::write(&file, format!("workspace = '{}'\n{text}", dir.path().display())).unwrap();
        ["--policy", file.to_str().unwrap()]
    };
    let relaxed = "[require]\nlandlock = 'if_available'\nseccomp = 'if_available'\nkeyring = 'required'";
    let (_, report) = report(dir.path(), &with(relaxed), &["true"]);
    if Host::detect().landlock_abi > 0 {
        assert_eq!(protection(&report, "landlock").0, "enforced", "available is used");
    }
    // Useful to root alone, and only if there is no user namespace.
    let (_, report) =
        crate::support::report(dir.path(), &with("require.user_namespace = 'if_available'"), &["true"]);
    assert_eq!(protection(&report, "user_namespace").0, "enforced", "available is used");
    for name in ["root", "mount_namespace", "capabilities", "no_new_privs"] {
        let said = refused(dir.path(), &with(&format!("require.{name} = 'if_available'")));
        assert!(said.contains(&format!("require.{name}")), "{said}");
    }
}

#[test]
fn a_required_limit_that_is_unavailable_is_refused() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    fs::write(
        &file,
        format!("workspace = '{}'\nlimits.cpus = 1\nrequire.cpus = 'required'", dir.path().display()),
    )
    .unwrap();
    let said = refused(dir.path(), &["--cgroup", "off", "--policy", file.to_str().unwrap()]);
    assert!(said.contains("cpus: ") && said.contains("hint: "), "{said}");
}

#[test]
fn a_host_without_namespaces_is_refused_with_a_remedy() {
    let dir = workspace();
    let grant = format!("{}:/kennel", crate::support::kennel_path().display());
    let flags = ["--ro", &grant];
    for profile in ["repo-write", "ci-only"] {
        let output = kennel(dir.path(), &flags, &["/kennel", "run", "--profile", profile, "--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("new user and pid namespace: Operation not permitted"), "{said}");
        assert!(said.contains("kennel: hint: "), "{said}");
    }
}
