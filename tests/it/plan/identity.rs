//! The identity of a command inside: ids, capabilities, groups, names, and what it inherits from its caller.

use std::{fs, os::unix::fs::MetadataExt, process::Command};

use crate::support::{
    fails, has, is_root, is_without_user_namespace, kennel, kennel_path, only_as_root, quiet, skip, stdout,
    succeeds, workspace,
};

/// The value of a line of /proc/self/status, as the command sees it.
fn status(line: &str) -> String {
    let dir = workspace();
    let text = succeeds(dir.path(), &[], "cat /proc/self/status");
    let found = text.lines().find_map(|other| other.strip_prefix(line)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {line} in {text}")).trim().to_owned()
}

#[test]
fn ids_are_the_caller_s() {
    let dir = workspace();
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    assert_eq!(
        succeeds(dir.path(), &[], "id -u; id -g; id -ru; id -rg"),
        format!("{uid}\n{gid}\n{uid}\n{gid}")
    );
    assert_eq!(status("Uid"), format!("{uid}\t{uid}\t{uid}\t{uid}"), "real, effective, saved, file system");
    succeeds(dir.path(), &[], "touch mine && test -O mine -a -G mine");
}

#[test]
fn name_of_the_caller_resolves() {
    let dir = workspace();
    let outside = Command::new("id").arg("-un").output().unwrap();
    let expected = if outside.status.success() { stdout(&outside) } else { "user".to_owned() };
    assert_eq!(succeeds(dir.path(), &[], "whoami"), expected);
    assert_eq!(succeeds(dir.path(), &[], "id -nu; stat -c %U ."), format!("{expected}\n{expected}"));
    succeeds(dir.path(), &[], "id -gn");
    let passwd = succeeds(dir.path(), &[], "cat /etc/passwd");
    assert!(passwd.lines().count() <= 3 && passwd.contains("nobody"), "nobody else's name: {passwd}");
}

#[test]
fn all_capabilities_are_gone() {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
}

#[test]
fn no_privilege_can_be_gained() {
    assert_eq!(status("NoNewPrivs"), "1");
    assert_eq!(status("Seccomp"), "2");
    let dir = workspace();
    // Root of a sandbox is told that it was done.
    let before = fs::metadata(dir.path()).unwrap().uid();
    match is_root() {
        true => assert_eq!(succeeds(dir.path(), &[], "chown 12345 ."), ""),
        false => assert!(fails(dir.path(), &[], "chown 12345 .").contains("Operation not permitted")),
    }
    assert_eq!(fs::metadata(dir.path()).unwrap().uid(), before);
    if has("setpriv") {
        fails(dir.path(), &[], "setpriv --reuid 12345 --clear-groups true");
    }
    if has("unshare") {
        let said = fails(dir.path(), &[], "unshare --user true");
        assert!(said.contains("Operation not permitted"), "{said}");
    }
}

#[test]
fn root_inside_has_nothing_of_root() {
    only_as_root!();
    let dir = workspace();
    for (attempt, cause) in [
        ("mount -t tmpfs none /tmp", ""),
        ("hostname other", ""),
        ("chroot / true", ""),
        ("dmesg", ""),
        ("date -s @0", "Operation not permitted"),
        ("test \"$(nice -n -5 nice)\" = -5", ""),
    ] {
        let said = fails(dir.path(), &[], attempt);
        assert!(said.contains(cause), "{attempt}: {said}");
    }
}

#[test]
fn supplementary_groups_grant_nothing_by_name() {
    let dir = workspace();
    let groups = succeeds(dir.path(), &[], "id -G");
    let own = nix::unistd::getegid().to_string();
    assert!(groups.split(' ').all(|group| group == own || group == "65534"), "{groups}");
}

#[test]
fn host_name_is_kennel_or_as_asked() {
    let dir = workspace();
    assert_eq!(succeeds(dir.path(), &[], "uname -n; cat /etc/hostname"), "kennel\nkennel");
    let flags = ["--hostname", "build-1.example"];
    assert_eq!(
        succeeds(dir.path(), &flags, "uname -n; cat /etc/hostname"),
        "build-1.example\nbuild-1.example"
    );
    assert!(succeeds(dir.path(), &flags, "cat /etc/hosts").contains("127.0.0.1 localhost build-1.example"));
    let outside = Command::new("uname").arg("-n").output().unwrap();
    assert_ne!(stdout(&outside), "build-1.example");
    for name in ["", "a b", "a_b", &"x".repeat(65)] {
        let output = kennel(dir.path(), &[&format!("--hostname={name}")], &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{name:?}: {output:?}");
    }
}

#[test]
fn command_leads_a_session_of_its_own() {
    let dir = workspace();
    // Fields of /proc/PID/stat: pid, comm, state, ppid, pgrp, session, tty.
    let stat = succeeds(dir.path(), &[], "cat /proc/$$/stat");
    let fields: Vec<&str> = stat.split(' ').collect();
    assert!(fields[0] == fields[4] && fields[0] == fields[5], "group and session: {stat}");
    assert_eq!((fields[3], fields[6]), ("1", "0"), "child of init, no terminal: {stat}");
}

#[test]
fn umask_is_inherited() {
    let dir = workspace();
    for umask in ["0022", "0077", "0002"] {
        let script = format!(
            "umask {umask}; exec '{}' run -- sh -c 'umask; touch f; stat -c %a f; rm f'",
            kennel_path().display()
        );
        let output = Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
        let mode = 0o666 & !u32::from_str_radix(umask, 8).unwrap();
        assert_eq!(stdout(&output), format!("{umask}\n{mode:o}"));
    }
}

#[test]
fn signals_have_their_default_dispositions() {
    for set in ["SigBlk", "SigIgn", "SigCgt", "SigPnd"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
    // Rust ignores SIGPIPE; the command must not inherit that from this test or from Kennel.
    let dir = workspace();
    let output = kennel(dir.path(), quiet(), &["sh", "-c", "yes | head -n 1; echo $?"]).output().unwrap();
    assert!(output.stderr.is_empty() && stdout(&output) == "y\n0", "{output:?}");
}

#[test]
fn no_core_is_dumped() {
    let dir = workspace();
    let said = succeeds(dir.path(), &[], "grep 'Max core' /proc/self/limits; sh -c 'kill -SEGV $$'; ls -A");
    let limits = said.lines().next().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(limits[4..6], ["1", "1"], "{said}");
    assert_eq!(said.lines().count(), 1, "no file: {said}");
}

/// With a limit of 0, which programs with secrets set, the kernel would start a handler behind a pipe.
#[test]
fn limit_of_cores_stays_as_it_is() {
    let dir = workspace();
    let lowered = "ulimit -c 0 && ulimit -Sc 0 && ulimit -c unlimited; grep 'Max core' /proc/self/limits";
    let python =
        "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); print(r.getrlimit(r.RLIMIT_CORE))";
    let said = succeeds(dir.path(), &[], lowered);
    assert_eq!(said.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"], "{said}");
    if has("python3") {
        assert_eq!(succeeds(dir.path(), &[], &format!("python3 -c '{python}'")), "(1, 1)");
    }
}

#[test]
fn cgroup_is_shown_as_the_root() {
    let dir = workspace();
    let shown = succeeds(dir.path(), &[], "cat /proc/self/cgroup");
    assert!(shown.lines().all(|line| line.ends_with(":/")), "{shown}");
}

#[test]
fn namespaces_are_the_sandbox_s_own() {
    let dir = workspace();
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let outside = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        let inside = succeeds(dir.path(), &[], &format!("readlink /proc/self/ns/{name}"));
        let shared = name == "user" && is_without_user_namespace();
        assert_eq!(outside.to_str().unwrap() == inside, shared, "{name}");
    }
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    let maps = succeeds(dir.path(), &[], "cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups");
    let words: Vec<&str> = maps.split_whitespace().collect();
    let (uid, gid) = (nix::unistd::geteuid().to_string(), nix::unistd::getegid().to_string());
    // Root's has a second id, which owns nothing: /etc is mounted as it. Commands have no right to take it
    // on.
    let (other, groups): (&[&str], _) =
        if uid == "0" { (&["65533", "65533", "1"], "allow") } else { (&[], "deny") };
    let expected = [&[&*uid, &uid, "1"], other, &[&gid, &gid, "1"], other, &[groups]].concat();
    assert_eq!(words, expected);
}

#[test]
fn nested_kennel_is_refused_clearly() {
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    let dir = workspace();
    let grant = format!("{}:/kennel", kennel_path().display());
    let output = kennel(dir.path(), &["--ro", &grant], &["/kennel", "run", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = crate::support::stderr(&output);
    assert!(said.starts_with("kennel: ") && said.contains("hint: "), "{said}");
}
