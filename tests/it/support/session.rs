//! Commands of a session.

use std::time::Duration;

use kennel::{Command, Session};

use super::patient;

/// Longer than anything in a session takes, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for `what`, and fails if it takes too long.
pub async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(patient(PATIENCE), what).await.expect("it hangs")
}

/// Runs a script in a session. It must succeed. Returns its stdout.
pub async fn shell(session: &Session, script: &str) -> String {
    said(session.command("sh").args(["-c", script])).await
}

/// Runs a command of a session that must succeed. Returns its stdout.
pub async fn said(command: &mut Command) -> String {
    let out = in_time(command.output()).await.expect("a command");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.outcome.status.success(), "{command:?}: {} {text} {errors}", out.outcome.status);
    text
}
