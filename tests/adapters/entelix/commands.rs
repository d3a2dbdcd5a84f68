//! Commands: what goes in, what comes out.

use std::time::Duration;

use entelix_core::{Error, context::ExecutionContext, sandbox::CommandSpec};
use kennel::{Limits, Policy, Profile, Size};

use super::{run, sandbox, says, script, spec, with_policy};
use crate::support::workspace;

#[tokio::test]
async fn output_and_status_are_the_commands() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    assert_eq!(sandbox.backend(), "kennel");
    let output = run(&sandbox, script("echo out; echo err >&2; exit 7")).await.unwrap();
    assert_eq!((output.exit_code, &*output.stdout, &*output.stderr), (7, &b"out\n"[..], &b"err\n"[..]));
    let output = run(&sandbox, script("printf '\\000\\377\\n'")).await.unwrap();
    assert_eq!((output.succeeded(), &*output.stdout), (true, &b"\0\xff\n"[..]));
    assert_eq!(run(&sandbox, script("kill -TERM $$")).await.unwrap().exit_code, 128 + 15);
    let output = run(&sandbox, script("sleep 0.2")).await.unwrap();
    assert!((200..10_000).contains(&output.duration_ms), "{}", output.duration_ms);
    assert_eq!(says(&sandbox, "tr -d '\\0' < /proc/1/cmdline").await, "kennel", "it runs inside");
    assert_eq!(says(&sandbox, "pwd").await, dir.path().to_str().unwrap());
}

#[tokio::test]
async fn input_variables_and_directory_are_the_callers() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let input = vec![0xfe; 300_000];
    let output = run(&sandbox, CommandSpec { stdin: Some(input.clone()), ..spec(&["cat"]) }).await.unwrap();
    assert!(output.stdout == input);
    assert_eq!(run(&sandbox, spec(&["cat"])).await.unwrap().stdout, b"", "nothing is nothing to read");
    let env = [("A".to_owned(), "b c".to_owned())].into();
    let output = run(&sandbox, CommandSpec { env, ..script("echo $A; echo $HOME") }).await.unwrap();
    assert!(output.stdout_lossy().starts_with("b c\n/"), "{output:?}");
    for place in ["sub", dir.path().join("sub").to_str().unwrap()] {
        let output =
            run(&sandbox, CommandSpec { working_dir: Some(place.into()), ..spec(&["pwd"]) }).await.unwrap();
        assert_eq!(output.stdout_lossy().trim_end(), dir.path().join("sub").to_str().unwrap());
    }
}

#[tokio::test]
async fn commands_that_cannot_run_are_named() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    std::fs::write(dir.path().join("plain"), "x").unwrap();
    let place = |place: &str| CommandSpec { working_dir: Some(place.into()), ..script("echo ran") };
    let env = [("A=B".to_owned(), String::new())].into();
    for (spec, words) in [
        (spec(&[]), "argv is empty"),
        (spec(&[""]), "is empty"),
        (spec(&["kennel-no-such-program"]), "kennel-no-such-program"),
        (spec(&["./plain"]), "./plain"),
        (spec(&["echo", "a\0b"]), "NUL"),
        (place("/srv/none"), "/srv/none"),
        (place("plain"), "plain"),
        (CommandSpec { env, ..script("echo ran") }, "A=B"),
    ] {
        match run(&sandbox, spec).await {
            Err(Error::InvalidRequest(said)) => assert!(said.contains(words), "{words}: {said}"),
            other => panic!("{words}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn timeout_is_124_with_a_message() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let timeout = Some(Duration::from_secs(1));
    let output =
        run(&sandbox, CommandSpec { timeout, ..script("echo begun; printf x >&2; sleep 20") }).await.unwrap();
    assert_eq!((output.exit_code, &*output.stdout), (124, &b"begun\n"[..]));
    assert_eq!(output.stderr_lossy(), "x\ncommand timed out after 1000ms\n");
    // The timeout of the policy is an upper bound.
    let policy = Policy::profile(Profile::RepoWrite, dir.path()).timeout(Duration::from_millis(200));
    let sandbox = with_policy(&policy).await;
    for timeout in [None, Some(Duration::from_secs(20))] {
        let output = run(&sandbox, CommandSpec { timeout, ..script("sleep 20") }).await.unwrap();
        assert_eq!(output.stderr_lossy(), "command timed out after 200ms\n");
    }
}

#[tokio::test]
async fn output_is_capped_and_dropped_bytes_are_counted() {
    let dir = workspace();
    let plain = sandbox(dir.path()).await;
    let output = run(&plain, script("head -c 20000000 /dev/zero")).await.unwrap();
    assert_eq!(output.exit_code, 0);
    let tail = String::from_utf8_lossy(&output.stdout[16 << 20..]).into_owned();
    assert!(tail.contains(&format!("{} bytes dropped", 20_000_000 - (16 << 20))), "{tail}");
    for limit in [1000, 17_000_000] {
        let limits = Limits { output: Some(Size::from_bytes(limit)), ..Limits::default() };
        let policy = Policy::profile(Profile::RepoWrite, dir.path()).limits(limits);
        let output = run(&with_policy(&policy).await, script("head -c 20000000 /dev/zero")).await.unwrap();
        let kept = output.stdout.iter().take_while(|byte| **byte == 0).count();
        assert_eq!(kept, usize::try_from(limit).unwrap());
    }
}

#[tokio::test]
async fn sessions_that_have_ended_say_so() {
    let dir = workspace();
    let session = kennel::Session::prepare(&Policy::profile(Profile::RepoWrite, dir.path())).await.unwrap();
    let sandbox: super::Shared =
        std::sync::Arc::new(kennel_adapters::entelix::KennelSandbox::new(session.clone()));
    session.shutdown().await;
    let context = ExecutionContext::new();
    let said = run(&sandbox, spec(&["true"])).await.expect_err("ended").to_string();
    assert!(said.contains("the session has ended") && said.contains("hint:"), "{said}");
    let said = sandbox.read_file("x", &context).await.expect_err("ended").to_string();
    assert!(said.contains("the session has ended"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tools_share_one_sandbox() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let tasks: Vec<_> = (0..30)
        .map(|at| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { says(&sandbox, &format!("echo {at}")).await })
        })
        .collect();
    for (at, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), at.to_string());
    }
}
