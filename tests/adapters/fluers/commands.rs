//! The harness's own ways to run a command.

use std::{path::Path, sync::Arc, time::Duration};

use fluers_runtime::SandboxProfile::{NoNetwork, ReadOnly, RepoWrite};
use kennel::Policy;
use kennel_adapters::fluers::KennelSandbox;

use super::{harness, says, shell};
use crate::support::{HEARTBEAT, beats, is_silent, until, workspace};

#[tokio::test]
async fn output_and_status_are_the_commands() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    let result = shell(&env, "echo out; echo err >&2; exit 7").await;
    assert_eq!((result.exit_code, &*result.stdout, &*result.stderr), (7, "out\n", "err\n"));
    assert_eq!(shell(&env, "kill -TERM $$").await.exit_code, 128 + 15);
    assert_eq!(shell(&env, "no-such-program").await.exit_code, 127);
    assert_eq!(says(&env, "tr -d '\\0' < /proc/1/cmdline").await, "kennel", "it runs inside");
    assert_eq!(says(&env, "head -c 3000000 /dev/zero | tr '\\0' x").await.len(), 3_000_000);
}

#[tokio::test]
async fn what_it_writes_is_in_the_workspace() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    env.write_file(Path::new("sub/a"), "of the harness").await.unwrap();
    assert_eq!(says(&env, "cat sub/a; echo of the command > sub/b").await, "of the harness");
    assert_eq!(std::fs::read_to_string(dir.path().join("sub/b")).unwrap(), "of the command\n");
    let result = env.exec("pwd", Path::new("sub"), None, &Default::default()).await.unwrap();
    let sub = dir.path().join("sub");
    assert_eq!(result.stdout.trim_end(), sub.to_str().unwrap());
}

#[tokio::test]
async fn grep_looks_inside() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), ReadOnly, &[]).await;
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/file"), "hay\nneedle\nhay\n").unwrap();
    assert_eq!(env.grep("needle", &[], 10).await.unwrap(), ["sub/file:2:needle"]);
    assert_eq!(env.grep("needle", &["sub"], 10).await.unwrap(), ["sub/file:2:needle"]);
    assert_eq!(env.grep("hay", &[], 1).await.unwrap().len(), 1);
    assert_eq!(env.grep("it's $(none)", &[], 10).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn timeout_is_124_and_nothing_lives_on() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), NoNetwork, &[]).await;
    let script = format!("trap '' TERM HUP; ({HEARTBEAT}) & {HEARTBEAT}");
    let result = env.exec(&script, Path::new("."), Some(300), &Default::default()).await.unwrap();
    assert_eq!((result.exit_code, &*result.stderr), (124, "command timed out after 300ms"));
    assert!(beats(dir.path()) > 2, "it ran");
    quiet(dir.path()).await;
    assert_eq!(says(&env, "echo still here").await, "still here");
}

#[tokio::test]
async fn timeout_of_the_policy_is_124_too() {
    let policy = Policy::default().timeout(Duration::from_millis(200));
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::with_policy(policy)));
    let env = harness(&kennel, dir.path(), NoNetwork, &[]).await;
    let result = shell(&env, "sleep 20").await;
    assert_eq!(result.exit_code, 124, "{result:?}");
    assert_eq!(result.stderr.trim_end(), "kennel: command timed out after 200ms");
}

#[tokio::test]
async fn cancelled_command_is_gone() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    let cancel = Default::default();
    let exec = env.exec(HEARTBEAT, Path::new("."), None, &cancel);
    let cancelled = async {
        while beats(dir.path()) < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(exec, cancelled);
    result.expect_err("cancelled");
    quiet(dir.path()).await;
}

#[tokio::test]
async fn dropped_call_is_gone() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    let cancel = Default::default();
    let exec = env.exec(HEARTBEAT, Path::new("."), None, &cancel);
    tokio::time::timeout(Duration::from_millis(300), exec).await.expect_err("it runs on");
    assert!(beats(dir.path()) > 2, "it ran");
    quiet(dir.path()).await;
}

#[tokio::test]
async fn two_hundred_commands_of_one_session() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    for turn in 0..20 {
        let run = |at: usize| {
            let env = &env;
            async move { says(env, &format!("echo {turn} {at}; : > file-{turn}-{at}")).await }
        };
        let all =
            tokio::join!(run(0), run(1), run(2), run(3), run(4), run(5), run(6), run(7), run(8), run(9));
        assert_eq!(all.0, format!("{turn} 0"));
        assert_eq!(all.9, format!("{turn} 9"));
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_can_run_commands() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    let tasks: Vec<_> = (0..20)
        .map(|at| {
            let env = Arc::clone(&env);
            tokio::spawn(async move { says(&env, &format!("echo {at}")).await })
        })
        .collect();
    for (at, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), at.to_string());
    }
}

/// Waits until the heartbeat stops. The runtime works meanwhile.
pub async fn quiet(workspace: &Path) {
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if is_silent(workspace) {
            return;
        }
    }
    until("the heart stands still", || is_silent(workspace));
}
