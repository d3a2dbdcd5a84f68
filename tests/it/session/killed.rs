//! The embedding program is killed: nothing of its sessions is left.

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use kennel::Session;
use tokio::{runtime::Builder, time::sleep};

use super::tree::{children, descendants, lives};
use crate::support::{HEARTBEAT, beats, is_silent, payload, policy_at, stdout, until, workspace};

/// The variable that gives the host below its workspace.
const HOST: &str = "KENNEL_TEST_HOST";

/// Not a test: the program that is killed. It keeps sessions with waiting, running and background commands.
#[test]
fn host() {
    let Some(dir) = env::var_os(HOST) else { return };
    let dir = Path::new(&dir);
    Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let policy = policy_at(dir);
        let one = Session::prepare(&policy).await.unwrap();
        let other = Session::prepare(&policy.mount(payload())).await.unwrap();
        let heart = format!("trap '' TERM HUP; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}");
        let mut running = one.command("sh");
        let _running = running.args(["-c", &heart]).spawn().await.unwrap();
        let mut left = one.command("sh");
        let leave = format!("(setsid sh -c '{HEARTBEAT}') >/dev/null 2>&1 &");
        left.args(["-c", &leave]).background(true).stdin(kennel::Stdio::null()).status().await.unwrap();
        other.command("sleep").arg("60").kill_on_drop(false).spawn().await.unwrap();
        loop {
            let _ = other.command("true").status().await;
        }
    });
}

fn start(dir: &Path) -> Child {
    Command::new("/proc/self/exe")
        .args(["--exact", "session::killed::host", "--nocapture"])
        .env(HOST, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn nothing_is_left_of_a_program_that_is_killed() {
    let dir = workspace();
    let mut host = start(dir.path());
    until("a heartbeat", || beats(dir.path()) > 20);
    until("all that it starts", || descendants(host.id()).len() > 12);
    let below = descendants(host.id());
    host.kill().unwrap();
    host.wait().unwrap();
    until("all are gone", || below.iter().all(|&pid| !lives(pid)));
    assert!(is_silent(dir.path()));
}

#[test]
fn nothing_is_left_of_a_program_that_is_killed_at_any_moment() {
    let dir = workspace();
    for round in 0..25u64 {
        let mut host = start(dir.path());
        until("a child", || !children(host.id()).is_empty());
        std::thread::sleep(Duration::from_micros(round * 800));
        let below = descendants(host.id());
        host.kill().unwrap();
        host.wait().unwrap();
        until("all are gone", || below.iter().all(|&pid| !lives(pid)));
    }
    until("nothing beats", || is_silent(dir.path()));
}

/// A process that lost its parent without being killed has another parent now, so the test looks for the
/// workspace in every process.
#[test]
fn no_process_of_the_workspace_is_left_anywhere() {
    let dir = workspace();
    let mut host = start(dir.path());
    until("a heartbeat", || beats(dir.path()) > 5);
    host.kill().unwrap();
    host.wait().unwrap();
    let find = format!("ls -l /proc/[0-9]*/cwd 2>/dev/null | grep -c '{}$'", dir.path().display());
    until("nobody is in the workspace", || {
        stdout(&Command::new("sh").args(["-c", &find]).output().unwrap()) == "0"
    });
}

#[tokio::test]
async fn the_end_of_a_program_ends_its_sessions() {
    let dir = workspace();
    let mut host = start(dir.path());
    until("a heartbeat", || beats(dir.path()) > 5);
    // SIGTERM, which it does not handle.
    let pid = nix::unistd::Pid::from_raw(host.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    host.wait().unwrap();
    while !is_silent(dir.path()) {
        sleep(Duration::from_millis(10)).await;
    }
}
