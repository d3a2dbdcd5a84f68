//! Attacks of a command on what it shares with others: their init, their workers, and what Kennel does for
//! them from outside. A command may harm the commands of its own session. It gains nothing, no call of the
//! library hangs, and what must end ends.

use std::{
    fs,
    os::unix::fs::FileTypeExt as _,
    time::{Duration, Instant},
};

use kennel::{Ended, Error, Limits, Session, Size};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::{attempt, in_time, ready, said, shell};
use super::{is_still, processes, shared};
use crate::support::{World, has, only_as_user, patient, repository, require, workspace};

/// A function of the shell: the pids of Kennel's own processes inside.
const KENNELS: &str = "kennels() { for d in /proc/[0-9]*; do
    [ \"$(tr -d '\\0' < $d/cmdline)\" = kennel ] && echo ${d#/proc/}; done 2>/dev/null; }; ";

/// The same for Python: `kennels()` without init.
const WORKERS: &str = "import os, signal, sys, time
def is_kennel(pid):
    try:
        return open(f'/proc/{pid}/cmdline', 'rb').read() == b'kennel\\0'
    except OSError:
        return False
def workers():
    return [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and pid != '1' and is_kennel(pid)]
";

/// Starts Python with these lines after [`WORKERS`], and waits until it prints `ready`.
async fn python(session: &Session, lines: &str) -> kennel::Child {
    let program = format!("{WORKERS}{lines}");
    ready(session.command("python3").args(["-c", &program]), 1).await
}

/// The session still runs commands, and ends in time.
async fn still_works(session: Session) {
    for _ in 0..3 {
        assert_eq!(shell(&session, "echo alive").await, "alive\n");
    }
    in_time(session.shutdown()).await;
}

#[tokio::test]
async fn kennel_s_own_processes_are_not_traced_read_or_entered() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    // Numbers of descriptors can be listed by root. Nothing opens them.
    // Init, the worker of this command, and one that waits.
    let script = format!(
        "{KENNELS} for pid in $(kennels); do echo pid $pid; /payload call \
        ptrace 0x4206 $pid 0 0 + ptrace 16 $pid 0 0 + process_vm_readv $pid p:0,8 1 p:0,8 1 0 + \
        process_vm_writev $pid p:0,8 1 p:0,8 1 0 + pidfd_open $pid 0 + pidfd_getfd $ 0 0 + setns $ 0x20000; \
        for file in mem maps environ auxv stack syscall root/etc/passwd exe ns/mnt ns/pid io $(ls /proc/$pid/fd | \
            sed s,^,fd/,); do \
        head -c 1 /proc/$pid/$file > /dev/null 2>&1 && echo opened $file; \
        readlink /proc/$pid/$file && echo $file; done; \
        for file in oom_score_adj oom_adj timerslack_ns coredump_filter clear_refs autogroup comm sched mem attr/current; do \
        (echo 1 > /proc/$pid/$file) 2>/dev/null && echo wrote $file; done; done; true"
    );
    let out = shell(&session, &script).await;
    let of_each: Vec<_> = out.split("pid ").skip(1).collect();
    assert!(of_each.len() >= 3, "{out}");
    for of_one in of_each {
        let said: Vec<_> = of_one.lines().skip(1).collect();
        // Only pidfd_open(2) succeeds, which kill(2) needs no more than the number.
        assert_eq!(said, ["EPERM", "EPERM", "EPERM", "EPERM", "ok", "EPERM", "EPERM"], "{out}");
    }
}

#[tokio::test]
async fn a_worker_that_can_look_no_more_lets_nothing_live_on() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    // With few descriptors the worker finds no process; with none it cannot even wait. The command ends by
    // itself when its worker is told to kill.
    for most in [3, 5, 0] {
        let script = format!(
            "/payload call prlimit64 $PPID 7 p:{most},{most} 0; \
            (setsid sh -c 'while :; do echo x >> beat; sleep 0.01; done' > /dev/null 2>&1 &); exec sleep 2.3"
        );
        let mut command = session.command("sh");
        command.args(["-c", &script]).timeout(Duration::from_secs(2));
        if let Ok(out) = in_time(command.output()).await {
            assert_eq!(out.outcome.ended, Ended::TimedOut);
            assert_eq!(processes(&session).await, Vec::<String>::new());
        }
        is_still(&world.at("beat")).await;
        assert_eq!(processes(&session).await, Vec::<String>::new());
    }
    still_works(session).await;
}

#[tokio::test]
async fn workers_that_are_stopped_as_soon_as_they_are_born_make_nobody_hang() {
    require!(has("python3"), "python3");
    let world = World::new();
    let session = shared(world.policy()).await;
    let lines = "print('ready', flush=True)
last = os.getpid()
while True:
    for pid in range(last + 1, last + 30):
        try:
            os.kill(pid, signal.SIGSTOP)
            last = pid
        except OSError:
            pass
";
    let mut hostile = python(&session, lines).await;
    for _ in 0..8 {
        let mut command = session.command("true");
        // It is stopped, killed, or faster.
        drop(in_time(command.timeout(Duration::from_millis(200)).output()).await);
    }
    in_time(hostile.kill()).await.unwrap();
    // What it stopped while it waited goes on for its command, without a timeout. Such a command may fail,
    // but ends.
    for _ in 0..4 {
        drop(in_time(session.command("true").output()).await);
    }
    still_works(session).await;
}

#[tokio::test]
async fn a_command_that_kills_everybody_costs_only_commands() {
    let world = World::new();
    let session = shared(world.policy()).await;
    let mut other = ready(session.command("sh").args(["-c", "echo ready; sleep 1000"]), 1).await;
    for _ in 0..3 {
        // Its own worker dies too.
        let killed = in_time(session.command("sh").args(["-c", "kill -9 -1; sleep 1000"]).output()).await;
        assert!(killed.is_err(), "{killed:?}");
    }
    assert!(in_time(other.wait()).await.is_err());
    still_works(session).await;
}

#[tokio::test]
async fn a_tracer_keeps_no_killed_command_from_its_end() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let script = "(sleep 1000 & echo $! > /tmp/left); echo ready; sleep 1000";
    let mut traced = ready(session.command("sh").args(["-c", script]), 1).await;
    // PTRACE_SEIZE, and no wait(2) ever.
    let sleep = libc::SYS_nanosleep;
    let tracer = format!("/payload call ptrace 0x4206 $(cat /tmp/left) 0 0 + {sleep} p:1000,0 0");
    let mut tracer = ready(session.command("sh").args(["-c", &tracer]), 1).await;
    eventually_traced(&session).await;
    let outcome = in_time(traced.kill()).await.unwrap();
    assert_eq!(outcome.ended, Ended::Killed);
    in_time(tracer.kill()).await.unwrap();
    still_works(session).await;
}

async fn eventually_traced(session: &Session) {
    let script = "until grep -q '^TracerPid:.*[1-9]' /proc/$(cat /tmp/left)/status; do sleep 0.01; done";
    shell(session, script).await;
}

#[tokio::test]
async fn what_is_planted_in_private_directories_leads_calls_nowhere() {
    let world = World::new();
    let outside = workspace();
    let file = outside.path().join("file");
    fs::write(&file, "the secret").unwrap();
    let session = shared(world.policy()).await;
    let path = file.display();
    let script = format!(
        "cd /tmp; ln -s {path} link; ln -s /proc/1/root{path} magic; ln -s /proc/self/cwd/x cwd; mkfifo fifo; \
         ln -s /dev/null null; ln -s /dev/pts/ptmx ptmx; ln -s loop loop; ln -s /etc/passwd etc; \
         ln -s /proc/sys/kernel/core_pattern knob; mkdir directory; ln -s /tmp/fifo /dev/shm/fifo"
    );
    shell(&session, &script).await;
    for name in ["link", "magic", "cwd", "fifo", "null", "ptmx", "loop", "etc", "knob", "directory"] {
        let place = format!("/tmp/{name}");
        let written = in_time(session.write(&place, "written")).await;
        assert!(written.is_err(), "{place}");
        let read = in_time(session.read(&place)).await;
        assert!(
            read.as_ref().map_or(true, |bytes| bytes.starts_with(b"root") || name == "etc"),
            "{place}: {read:?}"
        );
    }
    assert!(in_time(session.write("/dev/shm/fifo", "written")).await.is_err());
    assert_eq!(fs::read(&file).unwrap(), b"the secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    still_works(session).await;
}

#[tokio::test]
async fn a_session_whose_rooms_are_full_starts_and_kills_commands() {
    let world = World::new();
    let session = shared(
        world.policy().limits(Limits { tmp_size: Some(Size::from_bytes(1 << 20)), ..Limits::default() }),
    )
    .await;
    let fill = "for place in /tmp /dev/shm; do cat /dev/zero > $place/all; i=0; \
        while true > $place/$i; do i=$((i+1)); [ $i -lt 2000 ] || break; done; done 2> /dev/null; true";
    shell(&session, fill).await;
    let error = in_time(session.write("/tmp/more", vec![0; 1 << 20])).await.unwrap_err();
    assert!(error.to_string().contains("/tmp/more"), "{error}");
    let mut command = session.command("sleep");
    let out = in_time(command.arg("1000").timeout(Duration::from_millis(100)).output()).await.unwrap();
    assert_eq!(out.outcome.ended, Ended::TimedOut);
    still_works(session).await;
}

#[tokio::test]
async fn a_terminal_that_another_command_holds_ends_with_its_command() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let mut command = session.command("sh");
    command.args(["-c", "tty; read line; echo got $line; read line"]);
    let mut child = in_time(command.terminal(11, 22).spawn()).await.unwrap();
    let mut terminal = child.terminal.clone().unwrap();
    let mut seen = String::new();
    while !seen.contains("/dev/pts/0") {
        let mut byte = [0];
        in_time(terminal.read_exact(&mut byte)).await.unwrap();
        seen.push(char::from(byte[0]));
    }
    // Another command types nothing into it, and cannot make it its own controlling terminal. It can write to
    // it.
    let other = "exec 3<> /dev/pts/0; echo from another >&3; \
        setsid /payload call ioctl 3 0x5412 s:x + ioctl 3 0x540e 1 + ioctl 3 0x540e 0";
    assert_eq!(shell(&session, other).await, "EPERM\nEPERM\nEPERM\n");
    let mut holder =
        ready(session.command("sh").args(["-c", "exec 3<> /dev/pts/0; echo ready; sleep 1000"]), 1).await;
    terminal.clone().write_all(b"typed\nend\n").await.unwrap();
    let outcome = in_time(child.wait()).await.unwrap();
    assert!(outcome.status.success());
    while !(seen.contains("from another") && seen.contains("got typed")) {
        let mut bytes = [0; 100];
        let count = in_time(terminal.read(&mut bytes)).await.unwrap();
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    in_time(holder.kill()).await.unwrap();
    still_works(session).await;
}

#[tokio::test]
async fn a_command_has_three_descriptors_and_no_more() {
    let world = World::new();
    let session = shared(world.with_payload()).await;
    let mut other = ready(session.command("sh").args(["-c", "echo ready; sleep 1000"]), 1).await;
    assert_eq!(said(&mut attempt(&session, "descriptors")).await, "0 1 2\n");
    in_time(other.kill()).await.unwrap();
}

#[tokio::test]
async fn what_outlives_its_killed_worker_makes_nothing_that_counts_as_the_user_s() {
    let world = World::new();
    fs::create_dir_all(world.at(".git/hooks")).unwrap();
    fs::write(world.at(".git/config"), "[a]\n").unwrap();
    let session = shared(world.policy()).await;
    let file = world.at(".git/commondir");
    // Many processes make it slow to find those of the command.
    let script = "i=0; while [ $i -lt 300 ]; do sleep 1000 & i=$((i+1)); done; \
        (while :; do echo x > .git/commondir; done) & until [ -e .git/commondir ]; do :; done; kill -9 $PPID; wait";
    for _ in 0..3 {
        let lost = in_time(session.command("sh").args(["-c", script]).output()).await;
        assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
        assert!(!file.exists());
        assert_eq!(processes(&session).await, Vec::<String>::new());
        assert!(!file.exists());
    }
    still_works(session).await;
}

#[tokio::test]
async fn a_command_that_takes_all_processes_ends_with_its_session_and_harms_no_other() {
    only_as_user!();
    let (world, neighbour) = (World::new(), World::new());
    let limits = Limits { pids: Some(60), ..Limits::default() };
    let session = shared(world.with_payload().limits(limits)).await;
    let other = shared(neighbour.policy()).await;
    let mut bomb = ready(session.command("/payload").arg("fork-bomb"), 0).await;
    let refused = in_time(session.command("sh").args(["-c", "sleep 0 & sleep 0 & wait"]).output()).await;
    if let Err(error) = refused {
        assert!(error.chain().to_string().contains("Resource temporarily unavailable"), "{}", error.chain());
    }
    assert_eq!(shell(&other, "echo alive").await, "alive\n");
    in_time(bomb.kill()).await.unwrap();
    still_works(session).await;
    still_works(other).await;
}

#[tokio::test]
async fn a_command_that_takes_all_terminals_leaves_some_for_other_sessions() {
    require!(has("python3"), "python3");
    let (world, neighbour) = (World::new(), World::new());
    let session = shared(world.policy()).await;
    let other = shared(neighbour.policy()).await;
    let lines = "count = 0
try:
    while count < 1000:
        os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)
        count += 1
except OSError as error:
    assert error.errno == 28, error
assert count == 256, count
print('ready', flush=True)
time.sleep(1000)
";
    let mut hostile = python(&session, lines).await;
    let refused = in_time(session.command("true").terminal(24, 80).output()).await.unwrap_err();
    assert!(refused.chain().to_string().contains("No space left"), "{}", refused.chain());
    let mut command = other.command("tty");
    let mut child = in_time(command.terminal(24, 80).spawn()).await.unwrap();
    assert!(in_time(child.wait()).await.unwrap().status.success());
    in_time(hostile.kill()).await.unwrap();
    still_works(session).await;
}

/// Somebody outside replaces a protected file again and again, and each time its mount is gone until the next
/// command. Meanwhile another command exchanges what is at that path and above it.
#[tokio::test]
async fn mounts_that_are_repaired_while_a_command_exchanges_their_paths_cover_nothing_else() {
    require!(has("python3"), "python3");
    let world = World::of(repository());
    let config = world.at(".git/config");
    let session = shared(world.policy()).await;
    let lines = "print('ready', flush=True)
def quiet(call, *what):
    try:
        call(*what)
    except OSError:
        pass
while True:
    for target in ('/etc/passwd', '/tmp', '../other', '/proc/1/root/etc'):
        quiet(os.rename, '.git/config', '.git/away')
        quiet(os.symlink, target, '.git/config')
        quiet(os.rename, '.git', 'git')
        quiet(os.mkdir, '.git')
        quiet(os.unlink, '.git/config')
        quiet(os.rename, '.git/away', '.git/config')
";
    let mut hostile = python(&session, lines).await;
    let replace = || {
        let new = world.at(".git/config.new");
        fs::write(&new, "[core]\n\tuser = true\n").unwrap();
        fs::rename(&new, &config).unwrap();
    };
    let (begun, mut tried, mut ran) = (Instant::now(), 0, 0);
    // On a busy machine, the hostile command may come first many times.
    while tried < 30 || ran == 0 && begun.elapsed() < patient(Duration::from_secs(30)) {
        tried += 1;
        replace();
        let mut command = session.command("sh");
        command.args([
            "-c",
            "echo x >> /etc/passwd; echo x > /etc/x; echo writable > /tmp/file && cat /tmp/file",
        ]);
        if let Ok(out) = in_time(command.output()).await {
            assert_eq!(String::from_utf8_lossy(&out.stdout), "writable\n", "nothing is mounted on /tmp");
            assert_eq!(
                String::from_utf8_lossy(&out.stderr).matches("Read-only file system").count(),
                2,
                "{out:?}"
            );
            ran += 1;
        }
    }
    assert!(ran > 0, "none of {tried} ran");
    in_time(hostile.kill()).await.unwrap();
    replace();
    let out = in_time(session.command("sh").args(["-c", "echo evil >> .git/config"]).output()).await.unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("Read-only file system"), "{out:?}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "[core]\n\tuser = true\n");
    still_works(session).await;
}
