//! Pipes, files and output caps of a command's standard descriptors.

use std::{fs::File, time::Duration};

use kennel::{Policy, Profile, Sandbox, Size, Stdio};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::sandbox;
use crate::support::{patient, workspace};

#[tokio::test]
async fn pipes_are_live_in_both_directions() {
    let dir = workspace();
    let mut command = sandbox(dir.path()).command("sh");
    command.args(["-c", "echo first; read answer; echo got $answer; cat >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().await.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "first");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"it\nrest").await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "got it");
    drop(stdin);
    let mut rest = String::new();
    child.stderr.take().unwrap().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "rest");
    assert!(child.wait().await.unwrap().status.success());
}

#[tokio::test]
async fn input_is_written_while_output_is_read() {
    let dir = workspace();
    let input = vec![b'x'; 10 << 20];
    let output = sandbox(dir.path()).command("cat").output_with_input(&input).await.unwrap();
    assert!(output.stdout == input && output.status.success());
    let output = sandbox(dir.path()).command("true").output_with_input(&input).await.unwrap();
    assert!(output.status.success(), "a command that reads nothing is no error");
    let output =
        sandbox(dir.path()).command("head").args(["-c", "3"]).output_with_input(&input).await.unwrap();
    assert_eq!(output.stdout, b"xxx");
}

#[tokio::test]
async fn input_of_output_is_empty() {
    let dir = workspace();
    let output = sandbox(dir.path()).command("cat").output().await.unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
}

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
async fn files_and_null_are_descriptors_too() {
    let dir = workspace();
    std::fs::write(dir.path().join("in"), "from file").unwrap();
    let (input, output) =
        (File::open(dir.path().join("in")).unwrap(), File::create(dir.path().join("out")).unwrap());
    let mut command = sandbox(dir.path()).command("sh");
    command.args(["-c", "cat; echo lost >&2"]).stdin(input).stdout(output).stderr(Stdio::null());
    assert!(command.status().await.unwrap().status.success());
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "from file");
}

#[tokio::test]
async fn outputs_beyond_the_cap_are_dropped_and_counted() {
    let dir = workspace();
    let mut policy = Policy::profile(Profile::RepoWrite, dir.path());
    policy.limits.output = Some(Size::from_bytes(10));
    let sandbox = Sandbox::new(&policy).unwrap();
    let output = sandbox
        .command("sh")
        .args(["-c", "head -c 1000000 /dev/zero; printf 0123456789 >&2"])
        .output()
        .await
        .unwrap();
    assert!(output.status.success() && output.truncated);
    let marker = b"\n[kennel: output truncated, 999990 bytes dropped]\n";
    assert_eq!(output.stdout, [&[0u8; 10][..], marker].concat());
    assert_eq!(output.stderr, b"0123456789");
    assert_eq!((output.stdout_bytes, output.stderr_bytes), (Some(1_000_000), Some(10)));
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
