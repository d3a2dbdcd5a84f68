//! Cancellation and deadlines: an ended call leaves no process.

use std::{path::Path, time::Duration};

use entelix_core::{
    Error,
    cancellation::CancellationToken,
    context::ExecutionContext,
    sandbox::{CodeSpec, CommandSpec, SandboxLanguage},
};
use tokio::time::Instant;

use super::{Shared, sandbox, says, script};
use crate::{
    fluers::quiet,
    support::{HEARTBEAT, beats, workspace},
};

/// A heartbeat that is hard to stop.
fn heart() -> String {
    format!("trap '' TERM HUP INT; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}")
}

async fn beating(workspace: &Path) {
    while beats(workspace) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The ways to run a command.
async fn beat(sandbox: &Shared, as_code: bool, context: &ExecutionContext) -> Error {
    let ended = if as_code {
        sandbox.run_code(CodeSpec::new(SandboxLanguage::Bash, heart()), context).await
    } else {
        sandbox.run_command(script(&heart()), context).await
    };
    ended.expect_err("it runs on")
}

#[tokio::test]
async fn token_ends_the_call_and_everything_of_it() {
    for as_code in [false, true] {
        let dir = workspace();
        let sandbox = sandbox(dir.path()).await;
        let token = CancellationToken::new();
        let context = ExecutionContext::with_cancellation(token.clone());
        let cancel = async {
            beating(dir.path()).await;
            token.cancel();
        };
        let (error, ()) = tokio::join!(beat(&sandbox, as_code, &context), cancel);
        assert!(matches!(error, Error::Cancelled), "{error}");
        quiet(dir.path()).await;
        assert_eq!(says(&sandbox, "echo still here").await, "still here");
    }
}

#[tokio::test]
async fn deadline_ends_the_call_and_everything_of_it() {
    for as_code in [false, true] {
        let dir = workspace();
        let sandbox = sandbox(dir.path()).await;
        let context = ExecutionContext::new().with_deadline(Instant::now() + Duration::from_millis(700));
        let error = beat(&sandbox, as_code, &context).await;
        assert!(matches!(error, Error::DeadlineExceeded), "{error}");
        assert!(beats(dir.path()) > 2, "it ran");
        quiet(dir.path()).await;
    }
}

#[tokio::test]
async fn dropped_call_leaves_nothing() {
    for as_code in [false, true] {
        let dir = workspace();
        let sandbox = sandbox(dir.path()).await;
        let context = ExecutionContext::new();
        tokio::select! {
            error = beat(&sandbox, as_code, &context) => panic!("{error}"),
            () = beating(dir.path()) => {}
        }
        quiet(dir.path()).await;
    }
}

#[tokio::test]
async fn call_dropped_at_any_moment_leaves_nothing() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    for delay in 0..40u64 {
        let context =
            ExecutionContext::new().with_deadline(Instant::now() + Duration::from_micros(delay * 150));
        let _ = sandbox.run_command(script(&heart()), &context).await.expect_err("it runs on");
    }
    quiet(dir.path()).await;
    assert_eq!(says(&sandbox, "echo still here").await, "still here");
}

#[tokio::test]
async fn ended_context_starts_nothing() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let token = CancellationToken::new();
    token.cancel();
    let cancelled = ExecutionContext::with_cancellation(token);
    let late = ExecutionContext::new().with_deadline(Instant::now() - Duration::from_secs(1));
    std::fs::write(dir.path().join("old"), "old").unwrap();
    for context in [cancelled, late] {
        let spec = CodeSpec::new(SandboxLanguage::Bash, "touch new");
        let errors = [
            sandbox.run_command(CommandSpec::new(vec!["touch".into(), "new".into()]), &context).await.err(),
            sandbox.run_code(spec, &context).await.err(),
            sandbox.read_file("old", &context).await.err(),
            sandbox.write_file("new", b"x", &context).await.err(),
            sandbox.list_dir(".", &context).await.err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(Error::Cancelled | Error::DeadlineExceeded)), "{error:?}");
        }
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[tokio::test]
async fn timeout_of_the_call_is_not_the_deadline() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let context = ExecutionContext::new().with_deadline(Instant::now() + Duration::from_secs(60));
    let timeout = Some(Duration::from_millis(200));
    let code = CodeSpec { timeout, ..CodeSpec::new(SandboxLanguage::Bash, heart()) };
    assert_eq!(sandbox.run_code(code, &context).await.unwrap().exit_code, 124);
    quiet(dir.path()).await;
}
