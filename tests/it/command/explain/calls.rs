//! System calls: the same results as without `--explain`, each counted, even if a process is slow or dies.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use kennel::{
    Policy, Profile, Sandbox, Session,
    report::{Basis, Protection},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::explained;
use crate::support::{
    HEARTBEAT, World, attempt, beats, is_alone, is_silent, kennel_path, patient, payload, payload_path,
    report, require, until, workspace,
};

/// Refused calls, with every errno that the filter has, and some allowed ones.
const CALLS: &str = "mount 0 0 0 0 0 + unshare 0x10000000 + unshare 0x20000 + unshare 0 + clone3 buf 64 + openat2 0 buf buf 24 \
    + socket 38 5 0 + socket 16 3 0 + socket 16 3 15 + socket 2 1 0 + socket 2 1 262 + socket 2 5 0 + socket 1 1 0 \
    + ioctl 0 0x5412 buf + chmod s:/tmp 04755 + chmod s:/tmp 0755 + mknod s:/tmp/n 020666 259 + personality 0xffffffff \
    + personality 0x0040000 + personality 0x40000000 + prlimit64 1 0 0 buf + setpriority 0 1 5 + setpriority 2 0 5 \
    + renameat2 -100 s:/a -100 s:/b 4 + keyctl 0 -3 0 + io_uring_setup 8 buf + bpf 0 buf 64 + 447 0 + 500 0 + 1000 0 \
    + sendto 0 buf 1 0x20000000 0 0 + setns 0 0 + getpid + open_by_handle_at 0 buf 0 + 134 0 + 471 0";

#[test]
fn refused_calls_return_the_same_errno_as_without() {
    let ws = workspace();
    let words: Vec<&str> = CALLS.split_whitespace().collect();
    let without_pids = |said: String| {
        said.lines().filter(|line| line.parse::<u32>().is_err()).collect::<Vec<_>>().join("\n")
    };
    let without = without_pids(attempt(ws.path(), &[], "call", &words));
    let with = without_pids(attempt(ws.path(), &["--explain", "--quiet"], "call", &words));
    assert_eq!(with, without);
    for errno in ["EPERM", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP", "ok"]
    {
        assert!(with.lines().any(|line| line == errno), "{errno} is not among {with}");
    }
}

/// Makes calls of the payload, then ends with status 1. Returns the calls that seccomp refused, according to
/// the report.
fn refused(flags: &[&str], calls: &str) -> Vec<(String, String)> {
    let ws = workspace();
    let payload = format!("{}:/payload", payload_path().display());
    let flags = [&["--explain", "--ro", &payload], flags].concat();
    let script = format!("/payload call {calls}; exit 1");
    let (_, report) = report(ws.path(), &flags, &["sh", "-c", &script]);
    let denials = report["denials"].as_array().unwrap().iter();
    denials
        .map(|denial| {
            assert_eq!((&denial["protection"], &denial["basis"]), (&"seccomp".into(), &"observed".into()));
            let text = |key: &str| denial[key].as_str().unwrap().to_owned();
            (text("subject"), text("reason"))
        })
        .collect()
}

#[test]
fn each_call_is_named_with_its_reason_and_count() {
    let told = refused(
        &[],
        "mount 0 0 0 0 0 + mount 0 0 0 0 0 + unshare 0x10000000 + socket 38 5 0 + getpid + clone3 buf 64",
    );
    let expected = [
        ("socket(AF_ALG)", "refused with EAFNOSUPPORT, first to 'payload'; no flag allows it"),
        ("mount", "refused with EPERM, 2 times, first to 'payload'; no flag allows it"),
        ("unshare(CLONE_NEWUSER)", "refused with EPERM, first to 'payload'; no flag allows it"),
    ];
    let expected: Vec<_> = expected.map(|(subject, reason)| (subject.to_owned(), reason.to_owned())).into();
    assert_eq!(told, expected);
}

#[test]
fn nothing_is_reported_if_nothing_was_refused() {
    assert_eq!(refused(&[], "getpid + socket 1 1 0 + clone3 buf 64 + openat2 0 buf buf 24 + 1000 0"), []);
}

fn explaining(world: &World) -> Policy {
    world.policy_of(Profile::RepoWrite).explain(true).mount(payload())
}

fn subjects(denials: &[kennel::report::Denial]) -> Vec<&str> {
    denials.iter().map(|denial| &*denial.subject).collect()
}

#[tokio::test]
async fn each_command_of_a_session_gets_its_own_refusals() {
    let world = World::new();
    let session = Session::prepare(&explaining(&world)).await.unwrap();
    let run = async |calls: &str| {
        let mut command = session.command("/payload");
        command.arg("call").args(calls.split_whitespace()).output().await.unwrap()
    };
    let (one, two, three) = tokio::join!(run("mount 0 0 0 0 0"), run("getpid"), run("setns 0 0 + setns 0 0"));
    assert_eq!(subjects(&one.outcome.denials), ["mount"]);
    assert_eq!(subjects(&two.outcome.denials), [""; 0]);
    assert_eq!(subjects(&three.outcome.denials), ["setns"]);
    assert_eq!(three.outcome.denials[0].basis, Basis::Observed);
    assert_eq!(three.outcome.denials[0].protection, Protection::Seccomp);
    // The zygote can still make workers, and no worker gets more for it.
    for _ in 0..5 {
        let output = run("unshare 0x10000000 + mount 0 0 0 0 0 + unshare 0x20000").await;
        assert_eq!(output.stdout, b"EPERM\nEPERM\nEPERM\n");
    }
    session.shutdown().await;
}

#[tokio::test]
async fn a_busy_runtime_keeps_no_command_waiting() {
    let world = World::new();
    let sandbox = Sandbox::new(&explaining(&world)).unwrap();
    let script = "/payload call mount 0 0 0 0 0 > said; echo >> done";
    let mut child = sandbox.command("sh").args(["-c", script]).spawn().await.unwrap();
    // This task occupies the runtime's only thread.
    until("answered without the runtime", || world.at("done").exists());
    assert_eq!(fs::read_to_string(world.at("said")).unwrap(), "EPERM\n");
    let outcome = child.wait().await.unwrap();
    assert_eq!(subjects(&outcome.denials), ["mount"]);
}

#[test]
fn a_flood_is_counted_and_a_kill_ends_it() {
    let ws = workspace();
    let script =
        format!("({HEARTBEAT}) & while :; do /payload call mount 0 0 0 0 0 + setns 0 0 >/dev/null; done");
    let payload = format!("{}:/payload", payload_path().display());
    let mut child = Command::new(kennel_path())
        .current_dir(ws.path())
        .args(["run", "--explain", "--ro", &payload, "--", "sh", "-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("a heartbeat", || beats(ws.path()) > 3);
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    until("everything inside is gone", || is_silent(ws.path()));
    let (code, told) = explained(
        ws.path(),
        &["--ro", &payload, "--timeout", "1s"],
        "while :; do /payload call mount 0 0 0 0 0 + setns 0 0 >/dev/null; done",
    );
    assert_eq!(code, 124);
    let subjects: Vec<_> = told.iter().map(|(_, subject, ..)| &**subject).collect();
    assert_eq!(subjects, ["mount", "setns"]);
}

#[test]
fn a_stopped_kennel_answers_when_it_continues() {
    let ws = workspace();
    let payload = format!("{}:/payload", payload_path().display());
    let script = "echo > ready; while [ ! -e go ]; do sleep 0.01; done; /payload call mount 0 0 0 0 0 > said";
    let mut child = Command::new(kennel_path())
        .current_dir(ws.path())
        .args(["run", "--explain", "--quiet", "--ro", &payload, "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    until("ready", || ws.path().join("ready").exists());
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    until("every thread has stopped", || has_stopped(pid));
    fs::write(ws.path().join("go"), "").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let is_answered = ws.path().join("said").exists();
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!is_answered, "nobody could have answered");
    assert_eq!(fs::read_to_string(ws.path().join("said")).unwrap(), "EPERM\n");
}

/// Whether every thread of a process has stopped. On a busy machine one still answers after the signal.
fn has_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // One that has ended meanwhile has no file.
    let mut states = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// The threads of this process that answer.
fn answering() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "kennel-seccomp").count()
}

#[test]
fn no_thread_outlives_its_command() {
    if !is_alone("command::explain::calls::no_thread_outlives_its_command", "exec \"$@\"") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new();
        let sandbox = Sandbox::new(&explaining(&world)).unwrap();
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(sandbox.command("sleep").arg("100").spawn().await.unwrap());
        }
        until("threads", || answering() == 4);
        children[0].kill().await.unwrap();
        drop(children);
        no_threads().await;
        let session = Session::prepare(&explaining(&world)).await.unwrap();
        for _ in 0..10 {
            session.command("true").status().await.unwrap();
        }
        session.shutdown().await;
        no_threads().await;
    });
}

/// Before Linux 6.11 a filter lives until the last zombie that has it is reaped. The runtime must be free for
/// that.
async fn no_threads() {
    tokio::task::spawn_blocking(|| until("no threads", || answering() == 0)).await.unwrap();
}

#[test]
fn a_program_can_still_confine_itself() {
    require!(crate::support::has("python3"), "python3");
    let ws = workspace();
    // prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER) with a filter that allows everything; then a refused call.
    let program = "import ctypes,errno,struct\n\
        l=ctypes.CDLL(None,use_errno=True)\n\
        i=ctypes.create_string_buffer(struct.pack('HBBI',6,0,0,0x7fff0000))\n\
        p=ctypes.create_string_buffer(struct.pack('HxxxxxxQ',1,ctypes.addressof(i)))\n\
        assert l.prctl(22,2,p)==0\n\
        assert l.mount(0,0,0,0,0)==-1 and ctypes.get_errno()==errno.EPERM\n";
    let start = Instant::now();
    let (output, report) = report(ws.path(), &["--explain"], &["python3", "-c", program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["denials"][0]["subject"], "mount");
    assert!(start.elapsed() < patient(Duration::from_secs(10)));
}

#[test]
fn a_filter_with_a_listener_outside_does_not_weaken_the_filter() {
    require!(crate::support::has("python3"), "python3");
    let ws = workspace();
    // Calls seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER) with a filter that allows
    // everything, keeps its listener, and runs `kennel`.
    let program = "import ctypes,os,struct,sys\n\
        l=ctypes.CDLL(None,use_errno=True)\n\
        assert l.prctl(38,1,0,0,0)==0\n\
        i=ctypes.create_string_buffer(struct.pack('HBBI',6,0,0,0x7fff0000))\n\
        p=ctypes.create_string_buffer(struct.pack('HxxxxxxQ',1,ctypes.addressof(i)))\n\
        fd=l.syscall(317,1,8,p)\n\
        assert fd>=0\n\
        os.set_inheritable(fd,True)\n\
        os.execv(sys.argv[1],sys.argv[1:])\n";
    let payload = format!("{}:/payload", payload_path().display());
    let output = Command::new("python3")
        .current_dir(ws.path())
        .args(["-c", program])
        .arg(kennel_path())
        .args([
            "run",
            "--explain",
            "--ro",
            &payload,
            "--",
            "/payload",
            "call",
            "mount",
            "0",
            "+",
            "unshare",
            "0x20000",
        ])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"EPERM\nEPERM\n"[..]), "{output:?}");
}
