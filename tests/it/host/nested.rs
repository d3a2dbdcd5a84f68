//! Kennel inside something else: in a sandbox of Kennel, in namespaces, as PID 1, without privileges.

use super::{DEGRADE, Degraded, Row, place, run, script};
use crate::support::{kennel, kennel_path, require, stderr, stdout};

#[test]
fn a_sandbox_in_a_sandbox_is_refused_with_a_message() {
    let dir = place();
    let grant = format!("{}:/kennel", kennel_path().display());
    for flags in [&[][..], &DEGRADE] {
        let inner = [&["/kennel", "run"], flags, &["--", "echo", "ran"]].concat();
        let output = kennel(dir.path(), &["-q", "--ro", &grant], &inner).output().unwrap();
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        assert_eq!(
            stderr(&output),
            "kennel: new user and pid namespace: Operation not permitted\n\
             kennel: hint: this runs in a sandbox already, and they do not nest: run the command in that one \
             without kennel, or start kennel outside of it"
        );
    }
    let output = kennel(dir.path(), &["-q", "--ro", &grant], &["/kennel", "probe"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stdout(&output).contains("this runs in a sandbox already"), "{output:?}");
}

#[test]
fn user_namespaces_in_user_namespaces() {
    let dir = place();
    let nested: Vec<String> = ["unshare", "-Ur"].repeat(3).into_iter().map(str::to_owned).collect();
    let output = run(&nested, dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

#[test]
fn a_single_mapped_id_and_no_groups() {
    let dir = place();
    let before = ["unshare", "-U", "--map-user=1000", "--map-group=1000"];
    let output = run(&before.map(str::to_owned).to_vec(), dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

/// Root of a rootless container that has no capabilities.
#[test]
fn root_without_capabilities() {
    require!(crate::support::has("setpriv"), "setpriv of util-linux");
    let before = ["unshare", "-Ur", "setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    Row {
        before: before.map(str::to_owned).to_vec(),
        protection: "user_namespace",
        says: "write /proc/self/uid_map: Operation not permitted",
        remedy: "give root CAP_SETFCAP",
        degraded: Degraded::Refused,
    }
    .holds();
}

#[test]
fn no_new_privileges() {
    require!(crate::support::has("setpriv"), "setpriv of util-linux");
    let dir = place();
    let before = ["setpriv", "--no-new-privs"].map(str::to_owned).to_vec();
    let output = run(&before, dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

/// Kennel is PID 1 of a container and gets orphans that are not its own.
#[test]
fn process_1_of_a_container() {
    let dir = place();
    let before = script(&["unshare", "-Urpf", "--mount-proc"], "for i in 1 2 3; do (sleep 0.05 &) ; done");
    let output = run(&before, dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

/// As in a container: nobody reaps the processes that go to PID 1.
#[test]
fn nothing_is_left_to_a_process_1_that_reaps_nobody() {
    const FIRST: &str = "import os, sys\n\
        child = os.posix_spawn(sys.argv[1], ['kennel', 'run', '-q', '--', 'true'], os.environ)\n\
        print(os.waitpid(child, 0)[1], [pid for pid in os.listdir('/proc') if pid.isdigit()])";
    require!(crate::support::has("python3"), "python3");
    let dir = place();
    let mut unshare = std::process::Command::new("unshare");
    unshare
        .args(["-Urpf", "--mount-proc", "python3", "-c", FIRST])
        .arg(kennel_path())
        .current_dir(dir.path());
    let output = unshare.output().unwrap();
    assert_eq!(stdout(&output), "0 ['1']", "{output:?}");
}
