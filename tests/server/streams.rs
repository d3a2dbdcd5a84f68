//! Events of commands: all of them, in order, whoever reads, and however slowly.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::server::{Answer, Client, Made, STREAM, Server, events, frame, output, send, start, wait_until};

pub(crate) fn open(
    server: &Client,
    made: &Made,
    call: &str,
    body: &[u8],
    more: &[(&str, &str)],
) -> TcpStream {
    let mut stream = server.connect();
    let mut headers =
        vec![("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", STREAM)];
    headers.extend(more);
    send(&mut stream, "POST", &format!("/process.Process/{call}"), &headers, body);
    stream
}

#[test]
fn a_slow_reader_makes_the_command_wait_and_loses_nothing() {
    let server = Server::start("");
    let made = server.create();
    let stream = open(&server, &made, "Start", &start("seq 1 3000000; touch done"), &[]);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.run(&made, "test -e done").1, 1, "it waits for its reader");
    let found = events(&Answer::read(stream).body);
    let text = output(&found, "stdout");
    assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=3_000_000));
    assert_eq!(found.last(), Some(&json!({})));
}

#[test]
fn a_command_without_a_reader_goes_on_and_its_last_mebibyte_is_kept() {
    let server = Server::start("");
    let made = server.create();
    let mut stream = open(&server, &made, "Start", &start("sleep 0.3; seq 1 1000000; touch done"), &[]);
    let mut first = [0; 200];
    let _ = stream.read(&mut first).unwrap();
    drop(stream);
    wait_until("it goes on alone", || server.run(&made, "test -e done").1 == 0);
    let again = open(&server, &made, "Connect", &frame(&json!({ "process": { "pid": 1 } })), &[]);
    let found = events(&Answer::read(again).body);
    let text = output(&found, "stdout");
    assert!(text.ends_with("999999\n1000000\n"));
    assert!(((1 << 20) - 70_000..(1 << 20) + 70_000).contains(&text.len()), "{}", text.len());
    let end = &found[found.len() - 2]["event"]["end"];
    assert_eq!((&end["exitCode"], &end["exited"]), (&json!(0), &json!(true)));
}

#[test]
fn a_silent_stream_says_that_it_lives() {
    let server = Server::start("");
    let made = server.create();
    let stream = open(&server, &made, "Start", &start("sleep 2.5"), &[("keepalive-ping-interval", "1")]);
    let found = events(&Answer::read(stream).body);
    let alive = found.iter().filter(|event| event["event"]["keepalive"].is_object()).count();
    assert_eq!(alive, 2, "{found:?}");
}

#[test]
fn a_timeout_is_an_error_and_no_end() {
    let server = Server::start("");
    let made = server.create();
    let stream =
        open(&server, &made, "Start", &start("echo begun; sleep 60"), &[("connect-timeout-ms", "500")]);
    let found = events(&Answer::read(stream).body);
    assert!(!found.iter().any(|event| event["event"]["end"].is_object()), "{found:?}");
    assert_eq!(found.last().unwrap()["error"]["code"], "deadline_exceeded");
    assert_eq!(output(&found, "stdout"), "begun\n");
    // The time of another stream is its own: the command goes on.
    let handle = open(&server, &made, "Start", &start("sleep 1.5; echo late"), &[]);
    let short = frame(&json!({ "process": { "pid": 2 } }));
    wait_until("it runs", || {
        let found = open(&server, &made, "Connect", &short, &[("connect-timeout-ms", "100")]);
        events(&Answer::read(found).body).last().unwrap()["error"]["code"] == "deadline_exceeded"
    });
    assert_eq!(output(&events(&Answer::read(handle).body), "stdout"), "late\n");
}

#[test]
fn a_command_of_a_dead_host_ends_with_an_error_in_the_words_of_the_protocol() {
    let server = Server::start("hosts = 1");
    let made = server.create();
    kill_host_during_a_command(&server, &server, &made);
}

/// Kills the hosts of a server while a client of it, or of a router, reads a stream.
pub(crate) fn kill_host_during_a_command(server: &Server, client: &Client, made: &Made) {
    let mut stream = open(client, made, "Start", &start("echo begun; sleep 60"), &[]);
    let mut all = Vec::new();
    while !all.windows(8).any(|bytes| bytes == b"\"stdout\"") {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        all.extend_from_slice(&piece[..count]);
    }
    for pid in hosts(server) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    stream.read_to_end(&mut all).unwrap();
    let found = events(&Answer::parse(&all).body);
    assert_eq!(found.last().unwrap()["error"]["code"], "unavailable", "{found:?}");
    assert!(!found.iter().any(|event| event["event"]["end"].is_object()));
}

/// The processes in which its sandboxes live.
pub(crate) fn hosts(server: &Server) -> Vec<i32> {
    let state = server.state().display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let is_host = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        words.contains("serve-host") && words.contains(&state)
    };
    pids.filter(is_host).collect()
}
