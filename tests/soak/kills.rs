//! Embedding programs that are killed at any moment: no process inside outlives them.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use kennel::Session;
use tokio::{runtime::Builder, task::JoinSet};

/// The workspace, set for the program that will be killed.
const VICTIM: &str = "KENNEL_SOAK_VICTIM";

/// Longest life of a victim, in milliseconds: from before its zygote is born to well into its commands.
const LONGEST: u64 = 60;

pub(crate) fn is_victim() -> bool {
    env::var_os(VICTIM).is_some()
}

/// Prepares sessions and runs commands in them until it is killed.
pub(crate) fn victim() {
    let workspace = env::var_os(VICTIM).expect("set by the killer");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        loop {
            let session = Session::prepare(&crate::policy(workspace.as_ref())).await.expect("a session");
            let mut running = JoinSet::new();
            for script in ["sleep 60 & true", "setsid sleep 60 & setsid sleep 60", "sleep 60", "echo done"] {
                let session = session.clone();
                running.spawn(async move { session.command("sh").args(["-c", script]).output().await });
            }
            drop(tokio::time::timeout(Duration::from_millis(20), running.join_all()).await);
        }
    });
}

/// Starts and kills that many programs.
pub(crate) fn kill(count: u32) {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    let program = env::current_exe().expect("this program");
    for number in 0..count {
        let mut victim = Command::new(&program)
            .env(VICTIM, workspace.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a victim");
        thread::sleep(Duration::from_micros(RandomState::new().hash_one(number) % (LONGEST * 1000)));
        victim.kill().expect("SIGKILL");
        victim.wait().expect("its end");
        crate::progress(number, count);
    }
}
