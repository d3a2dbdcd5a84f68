//! `isolation = "session"`: commands work as on one machine, behind the walls of the session.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use kennel::{Command, Ended, Error, Isolation, Limits, Output, Policy, Session};

mod hostile;
mod storms;

use super::{attempt, git, in_time, ready, said, shell, tree};
use crate::support::{World, eventually, has, patient, require};

async fn shared(policy: Policy) -> Session {
    Session::prepare(&policy.isolation(Isolation::Session)).await.expect("a session")
}

/// The commands that `ps` would list, without Kennel's own processes.
async fn processes(session: &Session) -> Vec<String> {
    let script = "for d in /proc/[0-9]*; do [ $d = /proc/$$ ] || { tr '\\0' ' ' < $d/cmdline; echo; }; done 2>/dev/null";
    let said = shell(session, script).await;
    said.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && *line != "kennel")
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn what_a_command_leaves_is_there_for_the_next_one() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let out =
        shell(&session, "sleep 1000 > /dev/null 2>&1 & echo $! > /tmp/pid; echo left > /dev/shm/file").await;
    assert_eq!(out, "");
    assert_eq!(shell(&session, "cat /dev/shm/file").await, "left\n");
    assert_eq!(processes(&session).await, ["sleep 1000"]);
    assert_eq!(session.stats().background, 1);
    assert_eq!(shell(&session, "kill $(cat /tmp/pid) && echo sent").await, "sent\n");
    eventually("the background process is gone", || session.stats().background == 0).await;
    assert_eq!(processes(&session).await, Vec::<String>::new());
}

#[tokio::test]
async fn commands_share_ipc_and_the_keyring_and_trace_each_other() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    shell(&session, "ipcmk -M 4096 > /dev/null").await;
    assert_eq!(shell(&session, "ipcs -m | grep -c '^0x'").await, "1\n");
    let script = "echo $$ > /tmp/pid; echo ready; sleep 1000";
    let mut other = ready(session.command("sh").args(["-c", script]), 1).await;
    let pid = shell(&session, "cat /tmp/pid").await.trim().to_owned();
    // PTRACE_SEIZE
    let seize = format!("call {} {} {pid} 0 0", libc::SYS_ptrace, 0x4206);
    assert_eq!(said(&mut attempt(&session, &seize)).await, "ok\n");
    in_time(other.kill()).await.unwrap();
}

#[tokio::test]
async fn the_walls_of_the_session_are_those_of_each_command() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    for _ in 0..3 {
        let out = session.command("sh").args(["-c", "echo x > /etc/x"]).output().await.unwrap();
        assert!(String::from_utf8_lossy(&out.stderr).contains("Read-only file system"), "{out:?}");
        assert_eq!(said(&mut attempt(&session, "call unshare 0x10000000")).await, "EPERM\n");
    }
    // Its init is not theirs: no signal ends it, nobody traces it, and nobody sets its limits.
    shell(&session, "kill -9 1; kill -STOP 1; kill -TERM 1; true").await;
    let calls = [
        (format!("call {} {} 1 0 0", libc::SYS_ptrace, 0x4206), "EPERM"),
        (format!("call {} 1 7 0 0", libc::SYS_prlimit64), "EPERM"),
    ];
    for (call, errno) in calls {
        assert_eq!(said(&mut attempt(&session, &call)).await, format!("{errno}\n"), "{call}");
    }
    assert_eq!(shell(&session, "echo alive").await, "alive\n");
}

/// A chain of daemons: each process forks the next one and ends, so that nobody's child can be found from its
/// parent.
const STORM: &str = "import os, time
open('storm', 'w').close()
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    open('storm', 'a').write('x')
";

/// Waits until nobody writes to the file any more.
async fn is_still(path: &Path) {
    let started = Instant::now();
    let length = || fs::metadata(path).map_or(0, |file| file.len());
    loop {
        let before = length();
        tokio::time::sleep(Duration::from_millis(100)).await;
        if length() == before {
            return;
        }
        assert!(started.elapsed() < patient(Duration::from_secs(5)), "the storm goes on");
    }
}

/// Runs a storm into a timeout. On a busy machine it may not have begun by then: the next timeout is longer.
async fn into_timeout(storm: &Path, timeout: Duration, command: impl Fn() -> Command) -> Output {
    for factor in [1, 4, 16] {
        let out = in_time(command().timeout(patient(timeout) * factor).output()).await.unwrap();
        assert_eq!(out.outcome.ended, Ended::TimedOut, "{out:?}");
        if fs::metadata(storm).is_ok_and(|file| file.len() > 0) {
            return out;
        }
    }
    panic!("the storm does not begin");
}

/// On a busy machine, killed processes may take longer than Kennel waits. Then the report says so, and they
/// are gone soon.
async fn are_gone_or_told(session: &Session, out: &Output) {
    let notes = out.outcome.enforcement.notes();
    if notes.iter().any(|note| note.subject == "processes" && note.text.contains("killed")) {
        are_gone_soon(session).await;
    }
}

/// Waits until no process of the storm is left.
async fn are_gone_soon(session: &Session) {
    for _ in 0..50 {
        let is_of_storm = |process: &String| ["payload", "python3"].iter().any(|it| process.contains(it));
        if !processes(session).await.iter().any(is_of_storm) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("killed processes are still there: {:?}", processes(session).await);
}

#[tokio::test]
async fn a_timeout_kills_every_descendant_and_nothing_else() {
    require!(has("python3"), "python3");
    let world = World::new();
    let session = shared(world.policy()).await;
    shell(&session, "sleep 1000 > /dev/null 2>&1 &").await;
    let script =
        format!("for i in 1 2 3; do python3 -c \"{STORM}\" & done; (setsid sleep 2000 &); sleep 3000");
    let command = || {
        let mut command = session.command("sh");
        command.args(["-c", &script]);
        command
    };
    let out = into_timeout(&world.at("storm"), Duration::from_secs(2), command).await;
    are_gone_or_told(&session, &out).await;
    // When the outcome is known, nothing of the command writes any more.
    let length = fs::metadata(world.at("storm")).unwrap().len();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fs::metadata(world.at("storm")).unwrap().len(), length);
    assert_eq!(processes(&session).await, ["sleep 1000"]);
}

#[tokio::test]
async fn a_dropped_command_is_killed_with_every_descendant() {
    require!(has("python3"), "python3");
    let world = World::new();
    let session = shared(world.policy()).await;
    let script = format!("python3 -c \"{STORM}\" & sleep 3000");
    let child = session.command("sh").args(["-c", &script]).spawn().await.unwrap();
    let storm = world.at("storm");
    eventually("the storm has begun", || fs::metadata(&storm).is_ok_and(|file| file.len() > 0)).await;
    drop(child);
    is_still(&storm).await;
    assert_eq!(processes(&session).await, Vec::<String>::new());
}

#[tokio::test]
async fn no_process_can_shed_the_mark_of_its_command() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let read = "sed -n 's/^Max realtime timeout *//p' /proc/self/limits";
    let mark = shell(&session, &format!("{read}; (ulimit -R 5; {read}) 2>&1 | tail -n 1")).await;
    let [first, second] = mark.lines().collect::<Vec<_>>()[..] else { panic!("{mark}") };
    assert_eq!(first, second);
    let other = shell(&session, read).await;
    assert_ne!(first, other.trim_end(), "each command has its own");
}

#[tokio::test]
async fn a_command_whose_worker_is_killed_ends_with_an_error_and_leaves_nothing() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let script = "sleep 1000 & kill -9 $PPID; wait";
    let error = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap_err();
    assert!(matches!(error, Error::Lost), "{error}");
    for _ in 0..100 {
        if processes(&session).await.is_empty() {
            return;
        }
    }
    panic!("{:?}", processes(&session).await);
}

#[tokio::test]
async fn git_files_stay_protected_after_git_replaced_them_outside() {
    require!(has("git"), "git");
    let world = World::new();
    git(world.path(), &["init", "-q"]);
    let session = shared(world.policy()).await;
    // A command runs all the time, so nothing can be set up anew.
    let _running = ready(session.command("sh").args(["-c", "echo ready; sleep 1000"]), 1).await;
    for name in ["one", "two", "three"] {
        git(world.path(), &["config", "user.name", name]);
        let script = "echo x >> .git/config; echo x > .git/hooks/pre-commit; git config user.name";
        let out = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(errors.matches("Read-only file system").count(), 2, "{errors}");
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim_end(), name);
    }
}

#[tokio::test]
async fn a_shell_keeps_its_state_when_git_replaces_a_file_outside() {
    require!(has("git"), "git");
    let world = World::new();
    git(world.path(), &["init", "-q"]);
    let session = shared(world.policy()).await;
    let shell = session.shell();
    in_time(shell.run("kept=state")).await.unwrap();
    for name in ["one", "two"] {
        git(world.path(), &["config", "user.name", name]);
        let out =
            in_time(shell.run("echo $kept; git config user.name; echo x >> .git/config")).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("state\n{name}\n"));
        assert!(String::from_utf8_lossy(&out.stderr).contains("Read-only file system"), "{out:?}");
    }
}

#[tokio::test]
async fn calls_for_files_see_what_commands_see() {
    let world = World::new();
    let session = shared(world.policy()).await;
    shell(&session, "echo inside > /tmp/one").await;
    assert_eq!(session.read("/tmp/one").await.unwrap(), b"inside\n");
    session.write("/tmp/two", b"outside\n").await.unwrap();
    assert_eq!(shell(&session, "cat /tmp/two").await, "outside\n");
}

#[tokio::test]
async fn a_command_cannot_have_a_narrower_view_than_the_others() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let error = session.command("true").read_only(world.path()).output().await.unwrap_err();
    assert!(error.to_string().contains("isolation = \"command\""), "{error}");
    let limits = Limits { open_files: Some(77), ..Limits::default() };
    let out = session.command("sh").args(["-c", "ulimit -n"]).limits(limits).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "77\n", "limits of a process hold");
}

#[tokio::test]
async fn the_end_of_the_session_ends_what_commands_left() {
    let world = World::new();
    let session = shared(world.policy()).await;
    shell(&session, "for i in 1 2 3; do setsid sleep 1077 > /dev/null 2>&1 & done").await;
    let sleeps = || {
        let cmdline =
            |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x001077\0");
        tree::descendants(std::process::id()).into_iter().filter(cmdline).count()
    };
    eventually("all of them run", || sleeps() == 3).await;
    in_time(session.shutdown()).await;
    assert_eq!(sleeps(), 0);
}

#[tokio::test]
async fn many_commands_leave_nothing() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let run = async || {
        for _ in 0..50 {
            shell(&session, "(sleep 0 &); true").await;
        }
    };
    tokio::join!(run(), run(), run(), run());
    eventually("all background processes have ended", || session.stats().background == 0).await;
    assert_eq!(processes(&session).await, Vec::<String>::new());
    assert_eq!(session.stats().running, 0);
}
