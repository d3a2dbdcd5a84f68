//! Paths: the report names the right wall, and the named flag does what the report says.

use std::{fs, path::Path};

use super::{entry, explained};
use crate::support::{fails, require, runs, succeeds, workspace};

/// Runs a script that fails with these flags. The report names one refusal. With its remedy in place of the
/// flags the script succeeds.
fn remedied(workspace: &Path, flags: &[&str], script: &str, expected: super::Told) {
    let (code, told) = explained(workspace, flags, script);
    assert_ne!(code, 0, "{script}");
    assert_eq!(told, [expected], "{script}");
    let remedy = told[0].3.clone().expect("a remedy");
    succeeds(workspace, &remedy.split(' ').collect::<Vec<_>>(), script);
}

#[test]
fn a_read_only_workspace() {
    let ws = workspace();
    let script = format!("LC_ALL=C touch {}/x", ws.path().display());
    let subject = format!("{}/x", ws.path().display());
    let expected = entry("root", &subject, "derived", Some("--profile repo-write"));
    remedied(ws.path(), &["--profile", "read-only"], &script, expected);
    assert!(ws.path().join("x").exists());
    // Also from another directory.
    fs::create_dir(ws.path().join("sub")).unwrap();
    let (_, told) = explained(ws.path(), &["--profile", "read-only"], "cd sub; touch y 2> /dev/null");
    let subject = format!("{}/sub/y", ws.path().display());
    assert_eq!(told, [entry("root", &subject, "derived", Some("--profile repo-write"))]);
}

#[test]
fn a_read_only_grant() {
    let (ws, data) = (workspace(), workspace());
    let at = data.path().display().to_string();
    let script = format!("mkdir {at}/x");
    let flag = format!("--rw {at}");
    remedied(ws.path(), &["--ro", &at], &script, entry("root", &format!("{at}/x"), "derived", Some(&flag)));
    // In another place of the sandbox: by both its names.
    let (_, told) = explained(ws.path(), &["--ro", &format!("{at}:/data")], "mkdir /data/y");
    assert_eq!(told, [entry("root", "/data/y", "derived", Some(&format!("--rw {at}:/data")))]);
}

#[test]
fn a_path_that_is_not_visible() {
    let (ws, data) = (workspace(), workspace());
    let at = data.path().display().to_string();
    fs::write(data.path().join("in"), "x").unwrap();
    let file = format!("{at}/in");
    let flag = format!("--ro {file}");
    remedied(ws.path(), &[], &format!("cat {file}"), entry("root", &file, "possible", Some(&flag)));
}

#[test]
fn a_protected_path() {
    let ws = workspace();
    fs::create_dir_all(ws.path().join(".git/hooks")).unwrap();
    fs::write(ws.path().join(".git/config"), "").unwrap();
    let config = format!("{}/.git/config", ws.path().display());
    let (_, told) = explained(ws.path(), &[], &format!("echo >> {config}"));
    assert_eq!(told, [entry("protected_paths", &config, "derived", Some("--git trust"))]);
    let hooks = format!("{}/.git/hooks", ws.path().display());
    let (_, told) = explained(ws.path(), &[], &format!("mv {hooks} {hooks}2"));
    assert_eq!(told, [entry("protected_paths", &hooks, "derived", Some("--git trust"))]);
}

#[test]
fn the_sandboxs_own_root_and_files() {
    let ws = workspace();
    for (script, subject) in [
        ("mkdir /kennel-test", "/kennel-test"),
        ("echo >> /etc/passwd", "/etc/passwd"),
        ("touch /usr/bin/x", "/usr/bin/x"),
    ] {
        let (code, told) = explained(ws.path(), &[], script);
        assert_ne!(code, 0, "{script}");
        assert_eq!(told, [entry("root", subject, "derived", None)], "{script}");
    }
}

#[test]
fn a_private_place_that_is_full() {
    let ws = workspace();
    let script = "dd if=/dev/zero of=/tmp/x bs=1M count=4";
    let (code, told) = explained(ws.path(), &["--tmp-size", "1M"], script);
    assert_ne!(code, 0);
    assert_eq!(told, [entry("root", "/tmp", "possible", Some("--tmp-size 2M"))]);
    assert_eq!(explained(ws.path(), &["--tmp-size", "8M"], script), (0, vec![]));
    let (_, told) = explained(ws.path(), &["--tmpfs", "/scratch:1M"], &script.replace("/tmp", "/scratch"));
    assert_eq!(told, [entry("root", "/scratch", "possible", Some("--tmpfs /scratch:2M"))]);
}

#[test]
fn modes_of_the_host_are_not_ours() {
    use std::os::unix::fs::PermissionsExt;
    let ws = workspace();
    fs::write(ws.path().join("x"), "").unwrap();
    fs::set_permissions(ws.path().join("x"), fs::Permissions::from_mode(0o000)).unwrap();
    let at = ws.path().display();
    // The same for root inside, who has no capability.
    let script = format!("cat {at}/x");
    assert!(fails(ws.path(), &[], &script).ends_with("Permission denied"));
    for script in [script, format!("cat {at}/nothing"), format!("cd {at}/x"), "cat /tmp".to_owned()] {
        let (code, told) = explained(ws.path(), &[], &script);
        assert_ne!(code, 0, "{script}");
        assert_eq!(told, [], "{script}");
    }
}

#[test]
fn a_limit_that_ended_it() {
    let ws = workspace();
    let (code, told) = explained(ws.path(), &["--cpu-time", "1s"], "while :; do :; done");
    assert_eq!(code, 128 + i64::from(libc::SIGXCPU));
    // The command could have sent the signal itself.
    assert_eq!(told, [entry("cpu_time", "cpu time", "possible", Some("--cpu-time TIME"))]);
}

#[test]
fn a_network_that_is_not_there() {
    require!(crate::support::has("python3"), "python3");
    let ws = workspace();
    let script = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'";
    for (flags, flag) in [
        (&[][..], Some("--allow HOST:PORT")),
        (&["--profile", "ci-only"], Some("--allow HOST:PORT")),
        (&["--net", "none"], Some("--net proxy --allow HOST:PORT")),
        // These profiles require that there is no network.
        (&["--profile", "read-only"], None),
        (&["--profile", "no-network"], None),
    ] {
        if flags.contains(&"ci-only") && !runs("ci-only") {
            continue;
        }
        let (_, told) = explained(ws.path(), flags, script);
        assert_eq!(told, [entry("network_namespace", "network", "derived", flag)], "{flags:?}");
    }
}

#[test]
fn a_port_that_landlock_refuses() {
    require!(crate::support::has("bash"), "bash");
    require!(kennel::probe::Host::detect().landlock_abi >= 4, "Landlock rules for TCP ports");
    let ws = workspace();
    let script = "bash -c ': < /dev/tcp/127.0.0.1/9'";
    let (_, told) = explained(ws.path(), &["--net", "host", "--allow", "*:443"], script);
    assert_eq!(told, [entry("landlock_network", "port 9", "derived", Some("--allow '*:9'"))]);
}

#[tokio::test]
async fn each_command_of_a_session_gets_its_own_paths_also_if_they_share_processes() {
    let ws = workspace();
    for isolation in [kennel::Isolation::Command, kennel::Isolation::Session] {
        let policy = kennel::Policy::profile(kennel::Profile::RepoWrite, ws.path()).explain(true);
        let session = kennel::Session::prepare(&policy.isolation(isolation)).await.unwrap();
        let run = async |script: &str| {
            let output = session.command("sh").args(["-c", script]).output().await.unwrap();
            output.outcome.denials.iter().map(|denial| denial.subject.clone()).collect::<Vec<_>>()
        };
        let (one, two) =
            tokio::join!(run("touch /usr/a; sleep 0.2; exit 1"), run("sleep 0.1; cat /srv/b; touch /usr/c"));
        assert_eq!((one, two), (vec!["/usr/a".to_owned()], vec!["/srv/b".to_owned(), "/usr/c".to_owned()]));
        session.shutdown().await;
    }
}
