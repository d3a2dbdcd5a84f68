//! The server ends with its client, and nothing stays.

use std::{io::Write, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use super::Client;
use crate::support::{children, descendants, kennel_path, lives, until, workspace};

/// A server with a command, a shell and a background process that all run. Returns their processes, too.
fn busy() -> (Client, Vec<u32>) {
    let mut client = Client::start(&["--quiet"]);
    client.succeeds("sleep 5000 & echo");
    client.begin_call("shell", json!({"snippet": "echo > shell; sleep 5001"}));
    client.begin_call("run", json!({"command": "echo > run; trap '' TERM INT HUP; sleep 5002; sleep 5003"}));
    let (shell, run) = (client.path().join("shell"), client.path().join("run"));
    until("all run", || shell.exists() && run.exists());
    let all = descendants(client.server.id());
    assert!(all.len() > 5, "{all:?}");
    (client, all)
}

fn all_end(all: &[u32]) {
    until("nothing is left", || !all.iter().any(|pid| lives(*pid)));
}

#[test]
fn the_end_of_stdin_ends_everything() {
    let (mut client, all) = busy();
    let (status, said) = client.end();
    assert_eq!((status, said.as_str()), (Some(0), ""));
    all_end(&all);
}

#[test]
fn a_signal_ends_everything() {
    for (signal, expected) in
        [(Signal::SIGTERM, Some(143)), (Signal::SIGINT, Some(130)), (Signal::SIGKILL, None)]
    {
        let (mut client, all) = busy();
        kill(Pid::from_raw(client.server.id().cast_signed()), signal).unwrap();
        assert_eq!(client.ended().0, expected, "{signal}");
        all_end(&all);
    }
}

/// The agent then starts another one.
#[test]
fn the_server_ends_if_somebody_kills_its_sandbox() {
    let mut client = Client::start(&["--quiet"]);
    client.succeeds("true");
    for pid in children(client.server.id()) {
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    }
    // It notices at the end of a call.
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "list_dir", "arguments": {}}});
    let mut stdin = client.stdin.take().unwrap();
    until("it has ended", || {
        writeln!(stdin, "{call}").is_err() || client.server.try_wait().unwrap().is_some()
    });
    let (status, said) = client.ended();
    assert_eq!((status, said.lines().next()), (Some(125), Some("kennel: the session has ended")), "{said}");
}

#[test]
fn a_client_that_says_nothing_or_reads_nothing_can_leave() {
    let mut client = Client::without_handshake(workspace(), &["--quiet"]);
    let (status, said) = client.end();
    assert_eq!((status, said.as_str()), (Some(0), ""));
    // Nobody reads its stdout.
    let dir = workspace();
    let script = "exec 3>&1; (printf '%s\\n' \"$@\"; echo > sent; until [ -e go ]; do sleep 0.05; done) | \"$0\" mcp --no-config >&-; echo $? >&3";
    let about = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let first = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}).to_string();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(kennel_path()).arg(first).current_dir(dir.path());
    let running =
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let sent = dir.path().join("sent");
    until("it was sent", || sent.exists());
    std::fs::write(dir.path().join("go"), "").unwrap();
    let output = running.wait_with_output().unwrap();
    let status: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!([0, 125].contains(&status), "{output:?}");
}

/// A script can pipe its requests in, and gets the answers.
#[test]
fn calls_that_end_soon_are_answered_after_the_end_of_stdin() {
    let mut client = Client::start(&[]);
    let id = client.begin_call("run", json!({"command": "echo last"}));
    // The last line needs no newline.
    client.send_bytes(br#"{"jsonrpc":"2.0","id":"end","method":"ping"}"#);
    drop(client.stdin.take());
    client.wait("the answer to the last line", |message| message["id"] == "end");
    assert_eq!(client.result(id).data("stdout"), "last\n");
    assert_eq!(client.ended().0, Some(0));
}

#[test]
fn what_is_no_client_is_told_why_the_server_ends() {
    let mut client = Client::without_handshake(workspace(), &["--quiet"]);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let (status, said) = client.ended();
    assert_eq!(status, Some(125));
    assert_eq!(said.trim_end(), "kennel: speak MCP on stdin and stdout: the first message is no request");
    let mut client = Client::without_handshake(workspace(), &["--ro", "/no/such/path"]);
    let (status, said) = client.ended();
    assert!(status == Some(125) && said.starts_with("kennel: read-only grant /no/such/path: "), "{said}");
}
