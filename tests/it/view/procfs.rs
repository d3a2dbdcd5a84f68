//! What a command may write to in /proc: what belongs to its own processes, and nothing of the kernel's or of
//! init's.

use std::path::Path;

use crate::support::{fails, has, is_root, require, shell, stdout, succeeds, workspace};

/// A thread names another one (pthread_setname_np), and a process makes itself the first to go when memory is
/// short.
const OWN: &str = "echo worker > /proc/self/task/$$/comm && test \"$(cat /proc/$$/comm)\" = worker && \
    echo 500 > /proc/self/oom_score_adj && test \"$(cat /proc/self/oom_score_adj)\" = 500 && \
    echo 0x33 > /proc/self/coredump_filter && echo 60000 > /proc/$$/timerslack_ns";

#[test]
fn a_user_writes_to_what_belongs_to_its_own_processes() {
    let ws = workspace();
    if is_root() {
        assert!(fails(ws.path(), &[], "echo worker > /proc/self/comm").contains("Read-only"));
        let said = fails(ws.path(), &["--explain"], "echo 500 > /proc/self/oom_score_adj");
        assert!(said.contains("it is in /proc, of root"), "{said}");
        return;
    }
    succeeds(ws.path(), &[], OWN);
    fails(ws.path(), &[], "echo -500 > /proc/self/oom_score_adj");
}

#[tokio::test]
async fn a_command_of_a_session_does_so_too() {
    if is_root() {
        return;
    }
    let ws = workspace();
    for isolation in [kennel::Isolation::Command, kennel::Isolation::Session] {
        let policy = kennel::Policy::profile(kennel::Profile::RepoWrite, ws.path()).isolation(isolation);
        let session = kennel::Session::prepare(&policy).await.unwrap();
        let mut command = session.command("sh");
        let outcome = command.args(["-c", OWN]).status().await.unwrap();
        assert!(outcome.status.success(), "{isolation:?}");
        let mut next = session.command("cat");
        let next = next.arg("/proc/self/oom_score_adj").output().await.unwrap();
        assert_ne!(next.stdout, b"500\n", "{isolation:?}");
    }
}

#[test]
fn settings_of_the_kernel_cannot_be_written_to() {
    require!(has("find"), "find");
    let ws = workspace();
    // Open to everybody, as outside: PSI triggers, and a number that only a capability can set. What is
    // covered is the null device.
    let script = "find /proc -path '/proc/[0-9]*' -prune -o -path '/proc/self' -prune -o -path '/proc/thread-self' -prune \
        -o -type f -writable -print 2>/dev/null \
        | grep -vE '^/proc/(pressure/.*|sys/kernel/ns_last_pid)$' | while read -r f; do test -c $f || echo $f; done";
    assert_eq!(stdout(&shell(ws.path(), &[], script)), "");
    for knob in [
        "sys/kernel/core_pattern",
        "sys/kernel/ns_last_pid",
        "sys/vm/drop_caches",
        "sys/kernel/hostname",
        "sysrq-trigger",
    ] {
        if !Path::new("/proc").join(knob).exists() {
            continue;
        }
        let said = fails(ws.path(), &[], &format!("echo x > /proc/{knob}"));
        assert!(
            ["Permission denied", "I/O error", "Read-only"].iter().any(|word| said.contains(word)),
            "{knob}: {said}"
        );
    }
}

#[test]
fn nothing_of_init_can_be_written_to() {
    let ws = workspace();
    let files = [
        "oom_score_adj",
        "comm",
        "task/1/comm",
        "mem",
        "clear_refs",
        "coredump_filter",
        "timerslack_ns",
        "attr/current",
        "uid_map",
        "setgroups",
        "autogroup",
        "sched",
    ];
    let before = stdout(&shell(ws.path(), &[], "cat /proc/1/oom_score_adj /proc/1/comm"));
    for file in files {
        let script = format!("test -e /proc/1/{file} || exit 1; echo 1 > /proc/1/{file}");
        fails(ws.path(), &[], &script);
    }
    assert_eq!(stdout(&shell(ws.path(), &[], "cat /proc/1/oom_score_adj /proc/1/comm")), before);
}

/// The kernel keeps queues in a mount of its own, which no rule of Landlock names.
#[test]
fn explain_names_the_queue_that_is_refused() {
    let ws = workspace();
    let script = "import ctypes, os; c = ctypes.CDLL('librt.so.1', use_errno=True); \
        print(c.mq_open(b'/q', os.O_CREAT | os.O_RDWR, 0o600, None), os.strerror(ctypes.get_errno())); raise SystemExit(1)";
    require!(has("python3"), "python3");
    let output = crate::support::run(ws.path(), &["--explain"], &["python3", "-c", script]);
    assert_eq!(stdout(&output), "-1 Permission denied");
    assert!(crate::support::stderr(&output).contains("mq_open"), "{output:?}");
}
