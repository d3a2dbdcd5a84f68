//! PID 1 and the program around the sandbox as targets.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::fs::MetadataExt,
        unix::net::{SocketAddr, UnixDatagram, UnixListener},
    },
    process::Stdio,
};

use super::{check, command, landlock_abi, lines};
use crate::support::{attempt, is_root, kennel_path, payload_path, quiet, require, shell, stdout, workspace};

#[test]
fn descriptors_of_init_are_out_of_reach() {
    let ws = workspace();
    for call in ["readlink s:/proc/1/fd/{} buf 4096", "open s:/proc/1/fd/{} 2"] {
        // Its control socket has the first free number from 8 on.
        let calls: Vec<String> = (0..32).map(|number| call.replace("{}", &number.to_string())).collect();
        let calls = calls.join(" + ");
        let arguments: Vec<&str> = calls.split_whitespace().collect();
        let said = attempt(ws.path(), &[], "call", &arguments);
        let is_refused = |answer: &str| ["EACCES", "ENOENT"].contains(&answer);
        assert!(said.lines().all(is_refused) && said.lines().any(|answer| answer == "EACCES"), "{said}");
    }
}

#[test]
fn init_is_not_opened() {
    let ws = workspace();
    // The numbers lead nowhere here. For real root the mode of the directory would be no obstacle.
    let listed = if is_root() { "ok" } else { "EACCES" };
    let own = fs::metadata(payload_path()).unwrap().uid() == nix::unistd::geteuid().as_raw();
    let running = if own { "ETXTBSY" } else { "EACCES" };
    // Root owns the files of init, so a read-only /proc is the wall. A user's /proc is writable.
    let written = if is_root() { "EROFS" } else { "EACCES" };
    let own_memory = if is_root() { "EROFS" } else { "ok" };
    check(
        ws.path(),
        &[],
        &[
            ("open s:/proc/1/mem 0", "EACCES"),
            ("open s:/proc/1/mem 2", written),
            ("open s:/proc/1/maps 0", "EACCES"),
            ("open s:/proc/1/environ 0", "EACCES"),
            ("open s:/proc/1/auxv 0", "EACCES"),
            ("open s:/proc/1/exe 0", "EACCES"),
            ("open s:/proc/1/exe 1", "EACCES"),
            ("open s:/proc/1/fd 0", listed),
            ("open s:/proc/1/map_files 0", listed),
            ("open s:/proc/1/ns/user 0", "EACCES"),
            ("open s:/proc/1/oom_score_adj 1", written),
            ("open s:/proc/1/comm 1", written),
            ("execve s:/proc/1/exe 0 0", "EACCES"),
            ("open s:/proc/self/exe 1", running),
            ("open s:/proc/self/mem 2", own_memory),
        ],
    );
}

#[test]
fn init_is_not_traced() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("ptrace 16 1 0 0", "EPERM"),     // PTRACE_ATTACH
            ("ptrace 0x4206 1 0 0", "EPERM"), // PTRACE_SEIZE
            ("process_vm_readv 1 p:0x10000,8 1 p:0x10000,8 1 0", "EPERM"),
            ("process_vm_writev 1 p:0x10000,8 1 p:0x10000,8 1 0", "EPERM"),
            ("pidfd_open 1 0", "ok"),
            ("pidfd_getfd $ 0 0", "EPERM"),
            ("pidfd_getfd $ 8 0", "EPERM"),
            ("setns $ 0x20000000", "EPERM"),
        ],
    );
}

#[test]
fn init_is_not_signalled() {
    let ws = workspace();
    // Without scopes the kernel drops a signal that a namespace's init does not handle. That looks like
    // success.
    let errno = if landlock_abi() >= 6 { "EPERM" } else { "ok" };
    check(
        ws.path(),
        &[],
        &[
            ("kill 1 9", errno),
            ("kill 1 19", errno),
            ("kill 1 15", errno),
            ("kill 1 17", errno),
            ("tgkill 1 1 9", errno),
            ("tkill 1 19", errno),
            ("pidfd_open 1 0", "ok"),
            ("pidfd_send_signal $ 9 0 0", errno),
            ("open s:/proc/1 0x10000", "ok"),
            ("pidfd_send_signal $ 9 0 0", errno),
        ],
    );
    let said = stdout(&shell(ws.path(), &[], "kill -KILL 1; kill -STOP 1; sleep 0.2; (true &); echo on"));
    assert_eq!(said, "on");
}

#[test]
fn init_tells_no_secrets() {
    let ws = workspace();
    let mut run = command(ws.path(), &[], &["read", "/proc/1/cmdline", "/proc/1/comm", "/proc/1/environ"]);
    let output = run.env("KENNEL_TEST_SECRET", "hunter2").output().unwrap();
    let said = lines(&output);
    assert_eq!(said[2], "EACCES");
    assert!(said[0].starts_with("[kennel"), "{said:?}");
    assert!(
        !said.iter().any(|line| line.contains("hunter2") || line.contains("/tmp/kennel-test")),
        "{said:?}"
    );
}

#[test]
fn a_variable_of_the_caller_is_not_found() {
    let ws = workspace();
    let mut run = std::process::Command::new(kennel_path());
    run.current_dir(ws.path()).env("KENNEL_TEST_SECRET", "hunter2");
    let script =
        "cat /proc/*/environ /proc/self/task/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hunter2";
    let output = run.args(["run", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "0");
    let mut run = std::process::Command::new(kennel_path());
    run.current_dir(ws.path()).env("KENNEL_TEST_SECRET", "hunter2");
    let output =
        run.args(["run", "--pass-env", "KENNEL_TEST_SECRET", "--", "sh", "-c", script]).output().unwrap();
    assert_ne!(stdout(&output), "0");
}

#[test]
fn no_control_socket_is_among_the_descriptors() {
    let ws = workspace();
    assert_eq!(attempt(ws.path(), &[], "descriptors", &[]), "0 1 2");
    let links = stdout(&shell(ws.path(), &[], "for fd in 0 1 2 3 8 9; do readlink /proc/self/fd/$fd; done"));
    assert!(!links.contains("socket:") && !links.contains("kennel"), "{links}");
    // The same if kennel starts without any standard descriptor.
    let grant = format!("{}:/payload", payload_path().display());
    let script =
        format!("exec {} run --ro {grant} -- /payload descriptors 0<&- 2>&-", kennel_path().display());
    let output =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(ws.path()).output().unwrap();
    assert_eq!(stdout(&output), "0 1 2");
}

#[test]
fn the_terminal_of_a_command_is_its_only_descriptor() {
    require!(crate::support::has("script"), "script(1)");
    let ws = workspace();
    let grant = format!("{}:/payload", payload_path().display());
    let run = format!(
        "{} run {} --tty --ro {grant} -- /payload descriptors",
        kennel_path().display(),
        quiet().concat()
    );
    let output = std::process::Command::new("script")
        .args(["-qec", &run, "/dev/null"])
        .current_dir(ws.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // The terminal echoes the end of file that script(1) types, before or after the output.
    assert_eq!(stdout(&output).trim_matches(['^', '@', '\r', '\n']), "0 1 2");
}

#[test]
fn the_programs_file_is_not_changed() {
    let ws = workspace();
    let before = fs::metadata(kennel_path()).unwrap();
    let script = "cp /proc/self/exe x; for f in /proc/1/exe /proc/self/exe; do echo evil > $f; done; true";
    shell(ws.path(), &[], script);
    let after = fs::metadata(kennel_path()).unwrap();
    assert_eq!((before.len(), before.modified().unwrap()), (after.len(), after.modified().unwrap()));
}

#[test]
fn abstract_sockets_of_the_host_are_not_reached() {
    let ws = workspace();
    let name = format!("kennel-escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let _datagrams = UnixDatagram::bind_addr(&address).unwrap();
    assert_eq!(attempt(ws.path(), &[], "abstract", &[&name]), "ECONNREFUSED\nECONNREFUSED");
    if landlock_abi() >= 6 {
        assert_eq!(attempt(ws.path(), &["--net", "host"], "abstract", &[&name]), "EPERM\nEPERM");
    }
    let outside = std::process::Command::new(payload_path()).args(["abstract", &name]).output();
    assert_eq!(lines(&outside.unwrap()), ["ok", "ok"]);
}
