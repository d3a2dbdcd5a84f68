//! Standard descriptors of a command of a sandbox; `embed::doors` has what holds in sessions too.

use std::time::Duration;

use kennel::Stdio;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::sandbox;
use crate::support::{patient, workspace};

#[tokio::test]
async fn wait_closes_the_input() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().await.unwrap();
    let outcome =
        tokio::time::timeout(patient(Duration::from_secs(10)), child.wait()).await.unwrap().unwrap();
    assert!(outcome.status.success());
}

#[tokio::test]
async fn terminal_is_a_terminal() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    let mut child =
        command.args(["-c", "stty size; read line; echo got $line"]).terminal(11, 22).spawn().await.unwrap();
    let mut terminal = child.terminal.clone().unwrap();
    let mut writer = terminal.clone();
    writer.write_all(b"typed\n").await.unwrap();
    let mut seen = String::new();
    terminal.read_to_string(&mut seen).await.unwrap();
    assert!(seen.contains("11 22\r\n") && seen.ends_with("got typed\r\n"), "{seen:?}");
    assert!(child.wait().await.unwrap().status.success());
    let child = sandbox(dir.path()).command("true").spawn().await.unwrap();
    assert!(child.terminal.is_none());
}

/// Processor time that this thread has used.
fn used() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds().try_into().unwrap())
}

#[tokio::test]
async fn terminal_is_read_on_after_it_was_closed_and_opened_again() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    let script =
        "exec </dev/null >/dev/null 2>&1; sleep 0.5; exec </dev/tty >/dev/tty; sleep 2; echo again; sleep 1";
    let mut child = command.args(["-c", script]).terminal(11, 22).spawn().await.unwrap();
    let mut terminal = child.terminal.clone().unwrap();
    let (mut said, before) = (Vec::new(), used());
    while !said.ends_with(b"\n") {
        // Init has it open too, so that is not its end.
        assert!(terminal.read_buf(&mut said).await.unwrap() > 0, "{said:?}");
    }
    assert_eq!(said, b"again\r\n");
    let spent = used() - before;
    assert!(spent < patient(Duration::from_millis(500)), "it waits without using the processor: {spent:?}");
    assert!(child.wait().await.unwrap().status.success());
}
