//! Commands do not change their host program, and they work whatever the host program does. Each test runs in
//! a process of its own.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use kennel::{Error, Policy, Profile, Sandbox, Session, Stdio};
use tokio::{runtime::Handle, task::JoinSet};

use super::sandbox;
use crate::support::{is_alone, own_children, require, until, workspace};

/// The state of a host program that must not change.
#[derive(Debug, PartialEq)]
struct Process {
    descriptors: BTreeMap<String, String>,
    status: Vec<String>,
    directory: std::path::PathBuf,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    limits: String,
    mounts: String,
}

impl Process {
    fn now() -> Self {
        let text = fs::read_to_string("/proc/thread-self/status").unwrap();
        let kept = [
            "Umask",
            "Uid",
            "Gid",
            "Groups",
            "SigBlk",
            "SigIgn",
            "SigCgt",
            "CapEff",
            "CapBnd",
            "CapAmb",
            "NoNewPrivs",
            "Seccomp",
        ];
        let status = text.lines().filter(|line| kept.iter().any(|key| line.starts_with(key)));
        Self {
            descriptors: descriptors(),
            status: status.map(str::to_owned).collect(),
            directory: env::current_dir().unwrap(),
            environment: env::vars_os().collect(),
            limits: fs::read_to_string("/proc/self/limits").unwrap(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap(),
        }
    }
}

fn descriptors() -> BTreeMap<String, String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let link = |entry: fs::DirEntry| {
        let to = fs::read_link(entry.path()).ok()?.display().to_string();
        (!to.contains("/proc/")).then(|| (entry.file_name().to_string_lossy().into_owned(), to))
    };
    entries.filter_map(link).collect()
}

/// Commands that end in every possible way.
async fn every_ending(dir: &Path) {
    let sandbox = sandbox(dir);
    for script in ["exit 0", "exit 3", "kill -9 $$", "sleep 60 & exit 0"] {
        sandbox.command("sh").args(["-c", script]).output().await.unwrap();
    }
    sandbox.command("absent-program").output().await.unwrap_err();
    sandbox.command("true").current_dir("/absent").output().await.unwrap_err();
    sandbox.command("sleep").arg("60").timeout(Duration::from_millis(20)).output().await.unwrap();
    let mut command = sandbox.command("sleep");
    command.arg("60").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    drop(command.spawn().await.unwrap());
    command.spawn().await.unwrap().kill().await.unwrap();
    drop(command.terminal(10, 10).spawn().await.unwrap());
    for millis in [0, 3, 9] {
        let mut command = sandbox.command("sleep");
        let _ = tokio::time::timeout(Duration::from_millis(millis), command.arg("60").output()).await;
    }
}

#[test]
fn the_process_is_unchanged() {
    if !is_alone("embed::host::the_process_is_unchanged", "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Descriptors that the runtime and the first use of anything open for good.
    runtime.block_on(every_ending(dir.path()));
    let settle = || runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
    until("the first round's children are gone", || {
        settle();
        own_children() == 0
    });
    let before = Process::now();
    for _ in 0..3 {
        runtime.block_on(every_ending(dir.path()));
    }
    until("no child is left, dead or alive", || {
        settle();
        own_children() == 0
    });
    assert_eq!(Process::now(), before);
}

#[test]
fn first_use_changes_no_handler_and_leaves_no_thread() {
    if !is_alone("embed::host::first_use_changes_no_handler_and_leaves_no_thread", "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let (before, threads_before) = (Process::now(), threads());
    runtime.block_on(every_ending(dir.path()));
    drop(runtime);
    let after = Process::now();
    assert_eq!(
        (after.status, after.limits, after.environment),
        (before.status, before.limits, before.environment)
    );
    assert_eq!(threads(), threads_before);
}

#[test]
fn many_commands_at_once() {
    if !is_alone("embed::host::many_commands_at_once", "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = sandbox(dir.path());
        let mut all = JoinSet::new();
        for number in 0..50u8 {
            let mut command = sandbox.command("sh");
            command.args(["-c", &format!("echo {number}; exit {number}")]);
            all.spawn(async move { (number, command.output().await.unwrap()) });
        }
        while let Some(ended) = all.join_next().await {
            let (number, output) = ended.unwrap();
            assert_eq!(
                (output.outcome.exit_code(), output.stdout),
                (number, format!("{number}\n").into_bytes())
            );
        }
        for _ in 0..100 {
            if own_children() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} children left", own_children());
    });
}

#[test]
fn program_that_ignores_sigchld() {
    // This check is not in the child process: a child of std could not be waited for there.
    if env::var_os("KENNEL_ALONE").is_none() {
        let ignoring = Command::new("env").args(["--ignore-signal=CHLD", "true"]).output();
        require!(
            ignoring.is_ok_and(|output| output.status.success()),
            "env --ignore-signal of coreutils 8.31"
        );
    }
    if !is_alone("embed::host::program_that_ignores_sigchld", "exec env --ignore-signal=CHLD \"$@\"") {
        return;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim().to_owned();
    assert_ne!(u64::from_str_radix(&ignored, 16).unwrap() & 1 << 16, 0, "SIGCHLD is ignored here");
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        every_ending(dir.path()).await;
        let output =
            sandbox(dir.path()).command("sh").args(["-c", "true & wait; exit 3"]).output().await.unwrap();
        assert_eq!(output.outcome.status.code(), Some(3), "nor does the command inherit it");
    });
}

#[test]
fn program_that_reaps_all_children() {
    if !is_alone("embed::host::program_that_reaps_all_children", "exec \"$@\"") {
        return;
    }
    static DONE: AtomicBool = AtomicBool::new(false);
    let reaper = thread::spawn(|| {
        let mut reaped = 0;
        while !DONE.load(Ordering::Relaxed) {
            match nix::sys::wait::waitpid(None, None) {
                Ok(_) => reaped += 1,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        reaped
    });
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for status in 0..20 {
            let output = sandbox(dir.path())
                .command("sh")
                .args(["-c", &format!("exit {status}")])
                .output()
                .await
                .unwrap();
            assert_eq!(output.outcome.status.code(), Some(status));
        }
        every_ending(dir.path()).await;
    });
    DONE.store(true, Ordering::Relaxed);
    assert!(reaper.join().unwrap() > 0, "it did get some");
}

#[test]
fn a_descriptor_with_the_number_of_a_closed_stream_is_not_passed_on() {
    if !is_alone(
        "embed::host::a_descriptor_with_the_number_of_a_closed_stream_is_not_passed_on",
        "exec \"$@\"",
    ) {
        return;
    }
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    nix::unistd::close(0).unwrap();
    runtime.block_on(async {
        let policy = Policy::profile(Profile::RepoWrite, dir.path());
        let session = Session::prepare(&policy).await.unwrap();
        let own = fs::read_link("/proc/self/fd/0").unwrap();
        let script = "readlink /proc/self/fd/0 >got";
        let error = session.command("sh").args(["-c", script]).status().await.unwrap_err();
        let Error::Io { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(libc::EBADF), "{own:?}");
        assert!(!dir.path().join("got").exists());
        let mut command = session.command("sh");
        assert!(command.args(["-c", script]).stdin(Stdio::null()).status().await.unwrap().status.success());
        assert_eq!(fs::read_to_string(dir.path().join("got")).unwrap(), "/dev/null\n");
    });
}

#[test]
fn command_outlives_the_thread_that_started_it() {
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = sandbox(dir.path());
        let handle = Handle::current();
        let start = move || {
            let mut command = sandbox.command("sh");
            command.args(["-c", "sleep 0.3; exit 4"]);
            handle.block_on(command.spawn()).unwrap()
        };
        let mut child = tokio::task::spawn_blocking(|| thread::spawn(start).join().unwrap()).await.unwrap();
        assert_eq!(child.wait().await.unwrap().status.code(), Some(4));
    });
}

#[test]
fn drops_in_a_runtime_without_io_do_not_panic() {
    if !is_alone("embed::host::drops_in_a_runtime_without_io_do_not_panic", "exec \"$@\"") {
        return;
    }
    static PANICKED: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|_| PANICKED.store(true, Ordering::Relaxed)));
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(sandbox(dir.path()).command("sleep").arg("60").spawn()).unwrap();
    let session =
        runtime.block_on(Session::prepare(&Policy::profile(Profile::RepoWrite, dir.path()))).unwrap();
    let poor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    poor.block_on(async {
        drop((child, session));
        for _ in 0..9 {
            tokio::task::yield_now().await;
        }
    });
    until("no child is left, dead or alive", || own_children() == 0);
    assert!(!PANICKED.load(Ordering::Relaxed));
}

#[test]
fn large_program_with_many_threads_starts_commands() {
    if !is_alone("embed::host::large_program_with_many_threads_starts_commands", "exec \"$@\"") {
        return;
    }
    let mut ballast = vec![1u8; 256 << 20];
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
    for _ in 0..100 {
        let stopped = stopped.clone();
        thread::spawn(move || stopped.lock().unwrap().recv());
    }
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(every_ending(dir.path()));
    ballast[0] = 2;
    let ones = vec![1u8; 1 << 20];
    let is_as_before = ballast[1..].chunks(ones.len()).all(|part| *part == ones[..part.len()]);
    assert!(ballast[0] == 2 && is_as_before, "memory is as it was");
    drop(stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sandboxes_are_made_at_once_from_many_threads() {
    let dir = workspace();
    let mut all = JoinSet::new();
    for number in 0..16 {
        let path = dir.path().to_owned();
        all.spawn(async move {
            let policy = Policy::profile(Profile::RepoWrite, path).hostname(format!("host-{number}"));
            let output = Sandbox::new(&policy).unwrap().command("uname").arg("-n").output().await.unwrap();
            assert_eq!(output.stdout, format!("host-{number}\n").into_bytes());
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
}
