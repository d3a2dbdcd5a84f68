//! Real root on a host that refuses user namespaces: the same walls without one, and the report says so.
//! Other means must replace the user namespace, so all attempts to get out run again here.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    process::Command,
};

use super::{DEGRADE, no_user_namespaces, place, refusing, report, run, runtime_directory};
use crate::support::{
    TempDir, copy_program, has, is_root, is_without_user_namespace, kennel_path, only_as_root, pass,
    payload_path, protection, stderr, stdout, write_program,
};

/// A test of such a sandbox: the result of `kennel run FLAGS -- sh -c SCRIPT`.
fn inside(flags: &[&str], script: &str) -> String {
    let dir = place();
    let arguments = [&["run", "-q"], &DEGRADE[..], flags, &["--", "sh", "-c", script]].concat();
    let output = super::kennel(&no_user_namespaces("EPERM"), dir.path(), &arguments).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    stdout(&output)
}

#[test]
fn the_report_says_so_and_everything_else_is_enforced() {
    only_as_root!();
    let (dir, before) = (place(), no_user_namespaces("EPERM"));
    let output = run(&before, dir.path(), &DEGRADE);
    assert_eq!((stdout(&output), output.status.code()), ("ran".to_owned(), Some(0)));
    let detail = "refused by this host: commands run as the host's root, without capabilities";
    assert!(stderr(&output).contains(&format!("kennel: user_namespace off: {detail}")), "{output:?}");
    let report = report(&before, dir.path(), &DEGRADE);
    for name in [
        "mount_namespace",
        "pid_namespace",
        "network_namespace",
        "ipc_namespace",
        "uts_namespace",
        "cgroup_namespace",
        "root",
        "capabilities",
        "no_new_privs",
        "seccomp",
        "keyring",
    ] {
        assert_eq!(protection(&report, name).0, "enforced", "{report}");
    }
}

#[test]
fn a_requirement_of_the_policy_allows_it_too_and_ci_only_never_does() {
    only_as_root!();
    let (dir, before) = (place(), no_user_namespaces("EPERM"));
    let file = tempfile::Builder::new().suffix(".toml").tempfile_in("/tmp").unwrap();
    fs::write(file.path(), "[require]\nuser_namespace = \"if_available\"\n").unwrap();
    let flags = ["--policy", file.path().to_str().unwrap()];
    let output = run(&before, dir.path(), &flags);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
    assert!(stderr(&output).contains("kennel: user_namespace off: "), "{output:?}");
    let output = run(&before, dir.path(), &["--profile", "ci-only"]);
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    // If there are user namespaces, there is one.
    let output = run(&Vec::new(), dir.path(), &flags);
    assert!(output.status.success() && !stderr(&output).contains("user_namespace"), "{output:?}");
}

#[test]
fn no_capability_is_left_and_none_comes_back() {
    only_as_root!();
    let script = "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status; id -u";
    let none = "0000000000000000";
    let caps: Vec<String> =
        ["Inh", "Prm", "Eff", "Bnd", "Amb"].iter().map(|set| format!("Cap{set}:\t{none}")).collect();
    assert_eq!(inside(&[], script), format!("{}\nNoNewPrivs:\t1\n0", caps.join("\n")));
}

/// The same for init and zygote once a command runs: their privileges would be those of the host.
#[test]
fn no_process_inside_keeps_capabilities_that_it_does_not_need() {
    only_as_root!();
    let script = "grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/1/status | cut -f2 | sort -u";
    assert_eq!(inside(&[], script), "0000000000000000");
}

#[test]
fn shared_mounts_outside_do_not_propagate_inside() {
    only_as_root!();
    let dir = place();
    let (kennel, payload) = (kennel_path(), payload_path());
    // A mount namespace with shared mounts, as most hosts have them.
    let steps = "mount --make-rshared /; cat /proc/self/mountinfo > before; \"$@\"; status=$?; \
                 cat /proc/self/mountinfo > after; ls -d /proc/self >/dev/null && cmp before after && exit $status";
    let rules = ["clone/0&0x10000000=EPERM", "clone3=ENOSYS"];
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", steps, "sh"])
        .arg(&payload)
        .arg("refuse")
        .args(rules)
        .arg("--")
        .arg(&kennel)
        .args(["run", "-q"])
        .args(DEGRADE)
        .args(["--", "sh", "-c", "wc -l < /proc/self/mountinfo"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(stdout(&output).parse::<u32>().unwrap() > 10, "{output:?}");
}

/// Without the namespace a change in it would be a change of the host.
#[test]
fn no_other_namespace_may_be_missing_then() {
    only_as_root!();
    let dir = place();
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (flag, word) in [
        (0x0400_0000, "uts"),
        (0x4000_0000, "network"),
        (0x0800_0000, "ipc"),
        (0x0200_0000, "cgroup"),
        (0x0002_0000, "mount"),
    ] {
        let mut before = no_user_namespaces("EPERM");
        before.extend(refusing(&[&format!("unshare/0&{flag:#x}=EPERM")]));
        let output = run(&before, dir.path(), &DEGRADE);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{word}: {output:?}");
        let says = format!("kennel: new {word} namespace: Operation not permitted");
        assert!(stderr(&output).starts_with(&says), "{output:?}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), name);
}

#[test]
fn no_filter_of_system_calls_may_be_missing_then() {
    only_as_root!();
    let dir = place();
    // The host is known to lack it, or Kennel finds out when it installs the filter (SECCOMP_SET_MODE_FILTER
    // is 1).
    for rule in ["seccomp=EPERM", "seccomp/0&0x1=EPERM"] {
        let mut before = no_user_namespaces("EPERM");
        before.extend(refusing(&[rule]));
        let output = run(&before, dir.path(), &DEGRADE);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("seccomp filter") && said.contains("kennel: hint: "), "{said}");
    }
}

#[test]
fn root_without_capabilities_is_refused() {
    only_as_root!();
    let dir = place();
    let mut before = no_user_namespaces("EPERM");
    before.extend(["setpriv", "--bounding-set", "-net_admin"].map(str::to_owned));
    for flags in [&[][..], &DEGRADE] {
        let output = run(&before, dir.path(), flags);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with("kennel: new user and pid namespace: Operation not permitted"), "{said}");
        assert!(said.contains("hint:") && !said.contains("go without"), "{said}");
    }
}

/// The result of a script in a directory of its own, where root starts sessions. `$1` is the command line.
fn with_sessions(starter: &[&str], steps: &str) -> std::process::Output {
    let dir = place();
    let mut words = starter.iter().map(|word| (*word).to_owned()).chain(no_user_namespaces("EPERM"));
    let output = Command::new(words.next().unwrap())
        .args(words)
        .args(["sh", "-c", steps, "sh"])
        .arg(kennel_path())
        .current_dir(dir.path())
        .env("XDG_RUNTIME_DIR", runtime_directory(dir.path()))
        .output()
        .unwrap();
    fs::remove_dir_all(runtime_directory(dir.path())).unwrap();
    output
}

/// A session, its commands, and what they leave behind.
#[test]
fn sessions_work_and_leave_nothing() {
    only_as_root!();
    let steps = "k=$1; $k session start --name root --on-unavailable degrade >/dev/null; $k exec root -- \
                 sh -c 'echo first > file; grep CapEff /proc/self/status; grep CapBnd /proc/1/status; hostname'; \
                 $k exec root -- cat file; $k session stop root; rm file; ls -A";
    let output = with_sessions(&[], steps);
    let none = "0000000000000000";
    assert_eq!(stdout(&output), format!("CapEff:\t{none}\nCapBnd:\t{none}\nkennel\nfirst"), "{output:?}");
    assert!(output.status.success(), "{output:?}");
}

/// Between its birth and its end the zygote of a session keeps four of some forty capabilities; a fifth if it
/// may have to enter the mounts that commands share. Here they are the host's.
#[test]
fn a_zygote_holds_no_more_than_it_needs() {
    only_as_root!();
    // CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_ADMIN; CAP_SYS_CHROOT.
    for (isolation, expected) in [("command", "0000000000201500"), ("session", "0000000000241500")] {
        let steps = format!(
            "k=$1; $k session start --name zygote --isolation {isolation} --on-unavailable degrade >/dev/null; for p in \
             /proc/[0-9]*; do if grep -qE '^NSpid:[[:space:]][0-9]+[[:space:]]1$' $p/status; then \
             grep -E '^Cap(Inh|Prm|Eff|Amb)' $p/status | cut -f2; fi; done | sort -u; $k session stop zygote"
        );
        let output = with_sessions(&["unshare", "-pmf", "--mount-proc"], &steps);
        assert_eq!(stdout(&output), expected, "{output:?}");
    }
}

/// A command has the user namespace of root's sessions and root's uid. The sessions must not take it for a
/// client.
#[test]
fn commands_are_no_clients_of_roots_sessions() {
    only_as_root!();
    let dir = place();
    let sockets = runtime_directory(dir.path());
    let kennel = kennel_path();
    let steps = "k=$1; s=$($k session start --name open); $2 refuse 'clone/0&0x10000000=EPERM' clone3=ENOSYS -- $k run -q \
                 --on-unavailable degrade --rw $s --ro $(dirname $s)/kennel-exec:/kennel-exec -- /kennel-exec $s -- echo \
                 ran; echo $?; $(dirname $s)/kennel-exec $s -- echo client; $k session stop open";
    let output = Command::new("sh")
        .args(["-c", steps, "sh"])
        .args([&kennel, &payload_path()])
        .current_dir(dir.path())
        .env("XDG_RUNTIME_DIR", &sockets)
        .output()
        .unwrap();
    fs::remove_dir_all(&sockets).unwrap();
    let said = stdout(&output);
    assert!(!said.contains("ran") && said.lines().any(|line| line == "client"), "{output:?}");
    assert!(said.lines().next() != Some("0"), "{output:?}");
}

/// Makes a socket in a user and network namespace of root, and executes the given program with the socket as
/// standard input.
const PASSES_A_SOCKET: &str = r#"
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
there = ["import socket", "s = socket.socket(fileno=0)", "n = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
         "socket.send_fds(s, [b'x'], [n.fileno()])"]
subprocess.run(["unshare", "-Urn", "python3", "-c", "; ".join(there)], stdin=theirs, check=True)
os.dup2(socket.recv_fds(ours, 1, 1)[1][0], 0)
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Root has every capability over the user namespaces that it made, and here a command has root's user
/// namespace. If somebody passes it a socket of such a namespace, the command may use it, but not set up the
/// network there.
#[test]
fn a_passed_socket_sets_up_no_network() {
    only_as_root!();
    if !has("python3") || is_without_user_namespace() {
        return;
    }
    let dir = place();
    let copy = dir.path().join("attempts");
    copy_program(payload_path(), &copy);
    let (lo, up) = ("6c6f0000000000000000000000000000", "4100");
    let attempts = format!(
        "call ioctl 0 0x8913 x:{lo} + ioctl 0 0x8914 x:{lo}{up} + ioctl 0 0x8916 x:{lo}0200000a7f000002 + \
         setsockopt 0 1 36 w:7 4 + setsockopt 0 1 33 w:9000000 4 + 55 0 0 64 buf w:84 + setsockopt 0 0 64 buf 4096 + \
         setsockopt 0 0 128 buf 4096 + setsockopt 0 0 200 w:2 4 + setsockopt 0 0 1152 buf 4096 + \
         setsockopt 0 41 75 w:1 4 + setsockopt 0 41 200 w:2 4 + setsockopt 0 41 27 buf 20 + \
         55 0 0 83 buf p:64 + ioctl 0 0x8940 buf + setsockopt 0 1 2 w:1 4"
    );
    let passing = |to: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", PASSES_A_SOCKET]).args(to).arg(&copy).args(attempts.split_whitespace());
        let output = command.current_dir(dir.path()).output().unwrap();
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Outside a sandbox all of it is allowed, whatever this kernel knows of iptables.
    let outside = passing(&["/usr/bin/env"]);
    assert_eq!(outside.len(), 16, "{outside:?}");
    assert!(
        outside[..5].iter().all(|said| said == "ok") && !outside.contains(&"EPERM".to_owned()),
        "{outside:?}"
    );
    let (payload, kennel) = (payload_path().display().to_string(), kennel_path().display().to_string());
    let before = ["refuse", "clone/0&0x10000000=EPERM", "unshare/0&0x10000000=EPERM", "clone3=ENOSYS", "--"];
    let run = [&[&*payload][..], &before, &[&kennel, "run", "-q"], &DEGRADE, &["--"]].concat();
    let refused = ["EPERM"; 14];
    assert_eq!(passing(&run), [&["ok"][..], &refused, &["ok"]].concat());
}

/// Calls `kennel run` as root must call it here. Everything else stays the same.
const WRAPPER: &str = r#"#!/bin/sh
if [ "$1" = run ]; then
    shift
    case " $* " in *ci-only*) ;; *) set -- --on-unavailable degrade "$@" ;; esac
    case "$KENNEL_TEST_QUIETLY" in 1) set -- -q "$@" ;; esac
    set -- run "$@"
fi
exec @PAYLOAD@ refuse 'clone/0&0x10000000=EPERM' clone3=ENOSYS -- @KENNEL@ "$@"
"#;

/// All attempts to get out, and the promises about view and identity, as real root without a user namespace.
#[test]
fn all_attempts_to_get_out_fail_as_before() {
    if !is_root() || is_without_user_namespace() {
        return;
    }
    let dir = TempDir::new("kennel-hosts-", "/tmp");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let [payload, kennel] = [payload_path(), kennel_path()].map(|path| path.display().to_string());
    let wrapper = dir.path().join("kennel");
    write_program(&wrapper, WRAPPER.replace("@PAYLOAD@", &payload).replace("@KENNEL@", &kennel));
    // Some tests compare all output. Kennel runs with `-q` there, which silences its own lines.
    let of_words = [
        "escape::helper::the_terminal_of_a_command_is_its_only_descriptor",
        "escape::paths::standard_output_is_not_reopened_for_more",
        "plan::identity::signals_have_their_default_dispositions",
    ];
    // Profile ci-only never runs without a user namespace. The wrapper changes `kennel run` only, and only
    // for root: an owner that Kennel becomes cannot do without one. One test compares the level of
    // enforcement.
    let impossible = [
        "escape::owner::",
        "protect::git::with_trust_commands",
        "view::caches::commands_of_a_session",
        "view::devices::sys_has_only_what_runtimes",
        "view::etc::ci_only_",
        "view::etc::secrets_and_lists",
        "view::kept_caches::kept_changes_have_one_user",
        "view::layouts::",
        "view::profiles::ci_only_",
    ];
    // Kennel decides these before there is a process: what a link leads to, what git obeys, what a name
    // means.
    let decided_outside = [
        "escape::led::",
        "escape::planted::",
        "protect::git_layouts::",
        "protect::git_user::",
        "protect::home::",
        "protect::patterns::",
        "view::search_path::",
    ];
    let skipped =
        of_words.iter().chain(&impossible).chain(&decided_outside).flat_map(|test| ["--skip", test]);
    let all: Vec<&str> =
        ["escape::", "plan::identity::", "view::", "protect::"].into_iter().chain(skipped).collect();
    for (tests, quietly, least) in [(&all[..], "", 150), (&of_words, "1", of_words.len())] {
        let mut command = Command::new("/proc/self/exe");
        command.args(tests).args(["--test-threads", "3"]).env("KENNEL_TEST_QUIETLY", quietly);
        command.env("KENNEL_BIN", &wrapper).env("KENNEL_PAYLOAD", &payload);
        command.env("KENNEL_WITHOUT_USER_NAMESPACE", "1").env("KENNEL_SECOND_PASS", "1");
        pass(command, &dir.path().join("log"), least);
    }
}
