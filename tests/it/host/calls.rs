//! System calls that a filter refuses: the lists of container engines, older kernels, service managers.

use std::process::Command;

use super::{Degraded, Row, no_user_namespaces, place, refusing, root_goes_without, run, runtime_directory};
use crate::support::{is_root, kennel_path, notes, require, stderr, stdout, workspace};

#[test]
fn clone3_is_not_missed() {
    let dir = place();
    let output = run(&refusing(&["clone3=ENOSYS"]), dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

#[test]
fn user_namespaces_that_are_refused() {
    // As user.max_user_namespaces does; a filter; a security module.
    for (errno, words) in [
        ("ENOSPC", "No space left on device"),
        ("EPERM", "Operation not permitted"),
        ("EACCES", "Permission denied"),
    ] {
        let remedy = match (errno, is_root()) {
            ("ENOSPC", _) => "raise the limit: sysctl -w user.max_user_namespaces=15000",
            (_, true) => {
                "; or let root's commands run without one: --on-unavailable degrade, or [require] user_namespace"
            }
            (_, false) => "security",
        };
        Row {
            before: no_user_namespaces(errno),
            protection: "user_namespace",
            says: &format!("new user and pid namespace: {words}"),
            remedy,
            degraded: root_goes_without(),
        }
        .holds();
    }
}

/// No call that a start needs may fail half-way and leave something running. The numbers are of calls that no
/// other test names.
#[test]
fn whichever_call_fails_nothing_runs() {
    const EPOLL_CREATE1: &str = "291";
    const EVENTFD2: &str = "290";
    const FCNTL: &str = "72";
    const DUP2: &str = "33";
    const RECVMSG: &str = "47";
    const SENDMSG: &str = "46";
    const SIGNALFD4: &str = "289";
    const RT_SIGPROCMASK: &str = "14";
    const LANDLOCK_ADD_RULE: &str = "445";
    const LANDLOCK_RESTRICT_SELF: &str = "446";
    let calls = [
        EPOLL_CREATE1,
        EVENTFD2,
        FCNTL,
        DUP2,
        RECVMSG,
        SENDMSG,
        SIGNALFD4,
        RT_SIGPROCMASK,
        LANDLOCK_ADD_RULE,
        LANDLOCK_RESTRICT_SELF,
        "socketpair",
        "memfd_create",
        "clone",
        "unshare",
        "mount",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "pivot_root",
        "prctl",
        "capset",
        "execveat",
        "umount2",
        "openat2",
        "mkdirat",
        "symlinkat",
        "mknodat",
        "fchdir",
        "close_range",
        "sethostname",
        "socket",
    ];
    let dir = place();
    for call in calls {
        for (errno, words, remedy) in [
            ("EMFILE", "Too many open files", "ulimit -n"),
            ("ENOMEM", "Cannot allocate memory", "ulimit -v"),
        ] {
            let rule = format!("{call}={errno}");
            let output = run(&refusing(&[&rule, "clone3=ENOSYS"]), dir.path(), &["-q"]);
            let said = stderr(&output);
            assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{rule}: {output:?}");
            let lines: Vec<&str> = said.lines().collect();
            let [first, second] = lines.as_slice() else { panic!("{rule}: {said}") };
            assert!(first.starts_with("kennel: ") && first.ends_with(words), "{rule}: {said}");
            assert!(second.starts_with("kennel: hint: ") && second.contains(remedy), "{rule}: {said}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The result of the default list of a container engine without privileges.
#[test]
fn namespaces_and_mounts_that_an_engine_refuses() {
    let mut before = no_user_namespaces("EPERM");
    before.extend(refusing(&["unshare=EPERM", "mount=EPERM", "pivot_root=EPERM", "keyctl=EPERM"]));
    let dir = place();
    for flags in [&[][..], &super::DEGRADE] {
        let output = run(&before, dir.path(), flags);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let first = if flags.is_empty() || !is_root() { "new user and pid" } else { "new mount" };
        assert!(
            stderr(&output).starts_with(&format!("kennel: {first} namespace: Operation not")),
            "{output:?}"
        );
        assert!(stderr(&output).contains("kennel: hint: "), "{output:?}");
    }
}

#[test]
fn mounts_that_are_refused() {
    for (rule, says) in [
        ("mount=EPERM", "mount a tmpfs for the root: Operation not permitted"),
        ("mount=EACCES", "mount a tmpfs for the root: Permission denied"),
        ("pivot_root=EPERM", "make the new root the root: Operation not permitted"),
        ("open_tree=EPERM", "bind /dev/full at /dev/full: Operation not permitted"),
        ("mount_setattr=ENOSYS", "bind /dev/full at /dev/full: Function not implemented"),
    ] {
        let remedy = if rule.ends_with("ENOSYS") { "use Linux 5.12 or later" } else { "security" };
        Row { before: refusing(&[rule]), protection: "root", says, remedy, degraded: Degraded::Refused }
            .holds();
    }
}

#[test]
fn no_landlock() {
    // The kernel was built without it, or lsm= leaves it out.
    for errno in ["ENOSYS", "EOPNOTSUPP"] {
        Row {
            before: refusing(&[&format!("landlock_create_ruleset={errno}")]),
            protection: "landlock",
            says: "landlock: this kernel has no Landlock",
            remedy: "boot with landlock in the lsm= list (CONFIG_SECURITY_LANDLOCK=y, Linux 5.13 or later), let the \
                     seccomp filter of this process allow landlock_create_ruleset(2), or set [require] landlock",
            degraded: Degraded::Off(&["landlock"]),
        }
        .holds();
    }
    // A machine without it, as `scripts/kernels` boots one. There the message blames no filter.
    let abi = kennel::probe::Host::detect().landlock_abi;
    if abi == 0 {
        Row {
            before: Vec::new(),
            protection: "landlock",
            says: "landlock: this kernel has no Landlock",
            remedy: "(CONFIG_SECURITY_LANDLOCK=y, Linux 5.13 or later), or set [require] landlock",
            degraded: Degraded::Off(&["landlock"]),
        }
        .holds();
    }
}

#[test]
fn no_filters_of_system_calls() {
    for errno in ["ENOSYS", "EPERM"] {
        Row {
            before: refusing(&[&format!("seccomp={errno}")]),
            protection: "seccomp",
            says: "seccomp: seccomp filters cannot be installed here",
            remedy: "let the seccomp filter of this process allow seccomp(2), or set [require] seccomp",
            degraded: Degraded::Off(&["seccomp"]),
        }
        .holds();
    }
}

#[test]
fn calls_that_start_the_inside() {
    let dir = place();
    for (rule, says, remedy) in [
        ("memfd_create=EPERM", "hand over the plan: Operation not permitted", "seccomp filter"),
        ("memfd_create=ENOSYS", "create a memfd for the init program: Function not", "seccomp filter"),
        ("execveat=EPERM", "execute the init program: Operation not permitted", "se"),
        ("execveat=EACCES", "execute the init program: Permission denied", "vm.memfd_noexec=0"),
        ("capset=EPERM", "keep the capabilities for the set-up: Operation not permitted", "se"),
        ("close_range=EPERM", "carry out the plan inside: Operation not permitted", "seccomp filter"),
        ("socketpair=EMFILE", "make the control socket: Too many open files", "ulimit -n"),
        ("clone=EAGAIN", "new user and pid namespace: Resource temporarily unavailable", "ulimit -u"),
        ("clone=ENOMEM", "new user and pid namespace: Cannot allocate memory", "ulimit -v"),
    ] {
        let before = refusing(&[rule, "clone3=ENOSYS"]);
        for flags in [&[][..], &super::DEGRADE] {
            let output = run(&before, dir.path(), flags);
            let said = stderr(&output);
            assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{rule}: {output:?}");
            assert!(said.starts_with(&format!("kennel: {says}")), "{rule}: {output:?}");
            let hint = said.lines().nth(1).unwrap_or_else(|| panic!("{rule}: no remedy: {said}"));
            assert!(hint.starts_with("kennel: hint: ") && hint.contains(remedy), "{rule}: {said}");
        }
    }
}

/// The report of each command of a session has the notes of what the session did without when it was set up.
#[test]
fn copy_on_write_layers_of_a_session() {
    require!(crate::overlay::in_memory(), "copy-on-write layers, Linux 6.6");
    let (dir, home) = (place(), workspace());
    std::fs::create_dir_all(home.path().join(".npm/_cacache")).unwrap();
    let sockets = runtime_directory(dir.path());
    let kennel = |arguments: &[&str]| {
        let mut kennel = super::kennel(&refusing(&["fsopen=EPERM"]), dir.path(), arguments);
        kennel.env("HOME", home.path()).env("XDG_RUNTIME_DIR", &sockets).env_remove("npm_config_cache");
        kennel.output().unwrap()
    };
    let says = format!("kennel: note: {}: no copy-on-write layer can be put over it", home.path().display());
    let started = kennel(&["session", "start", "--name", "layers"]);
    assert!(started.status.success() && stderr(&started).contains(&says), "{started:?}");
    for _ in 0..2 {
        let output = kennel(&["exec", "--json", "/dev/stdout", "layers", "--", "true"]);
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let of_home = |(subject, _): &(&str, &str)| *subject == home.path().to_str().unwrap();
        assert_eq!(notes(&report).into_iter().filter(of_home).count(), 1, "{report}");
    }
    assert!(kennel(&["session", "stop", "layers"]).status.success());
    std::fs::remove_dir_all(sockets).unwrap();
}

#[test]
fn a_personality_is_not_taken_for_an_old_kernel() {
    require!(crate::support::has("setarch"), "setarch of util-linux");
    let dir = place();
    let old = ["setarch", "--uname-2.6"].map(str::to_owned).to_vec();
    let output = run(&old, dir.path(), &["-q"]);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
    let output = Command::new("setarch")
        .args(["--addr-no-randomize", "--addr-compat-layout", "--read-implies-exec"])
        .arg(kennel_path())
        .args(["run", "-q", "--", "echo", "ran"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}
