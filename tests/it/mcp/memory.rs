//! The memory of messages is bounded, whatever a client sends and however little it reads.

use std::{
    fs,
    io::Write,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::Client;
use crate::support::{descendants, patient, until};

/// The most memory that the server has had, in bytes.
fn peak(client: &Client) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", client.server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn a_long_message_is_served_and_a_longer_one_is_answered_with_the_reason() {
    let mut client = Client::start(&[]);
    // Text, not values: to make megabytes of JSON takes a debug build seconds.
    let write = |path: &str, size: usize| {
        let content = "x".repeat(size);
        format!(r#"{{"name":"write_file","arguments":{{"path":"{path}","content":"{content}"}}}}"#)
    };
    let run = |arguments: &str| format!(r#"{{"name":"run","arguments":{{{arguments}}}}}"#);
    let written = client.begin_with("tools/call", &write("large", 10 << 20));
    assert_eq!(client.result(written).data("bytes"), 10 << 20);
    let stdin = format!(r#""argv":["wc","-c"],"stdin":"{}""#, "x".repeat(10 << 20));
    let stdin = client.begin_with("tools/call", &run(&stdin));
    assert_eq!(client.result(stdin).data("stdout"), "10485760\n");
    let long = client.begin_with("tools/call", &write("larger", 17 << 20));
    assert!(client.protocol_error(long).contains("the message is too large: it may have 16 MiB"));
    // The id may come last, and may be text.
    let params = write("larger", 17 << 20);
    client.send_bytes(
        format!("{{\"params\":{params},\"method\":\"tools/call\",\"jsonrpc\":\"2.0\",\"id\":\"last\"}}\n")
            .as_bytes(),
    );
    let answer = client.wait("the refusal", |message| message["id"] == "last");
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    // Small values take more memory than their text.
    let many = format!(r#""argv":["true"{}]"#, r#","true""#.repeat(299_999));
    let many = client.begin_with("tools/call", &run(&many));
    assert!(client.protocol_error(many).contains("128 bytes more for each value"));
    let nested = format!(r#""argv":[{{}}{}]"#, ",{}".repeat(4_999_999));
    let nested = client.begin_with("tools/call", &run(&nested));
    assert!(client.protocol_error(nested).contains("too large"));
    client.send_bytes(format!("{{\"id\":\"{}\"}}\n", "x".repeat(1 << 20)).as_bytes());
    client.send_bytes(format!("{}\n", "[".repeat(17 << 20)).as_bytes());
    assert_eq!(client.succeeds("ls"), "large\n");
    assert!(peak(&client) < 300 << 20, "{} MiB", peak(&client) >> 20);
    let (status, said) = client.end();
    assert_eq!(status, Some(0));
    assert_eq!(
        said.matches("skipped a message without an id: the message is too large").count(),
        2,
        "{said}"
    );
}

#[test]
fn calls_hold_a_bounded_memory_while_they_run() {
    let mut client = Client::start(&[]);
    let text = "x".repeat(15 << 20);
    let waits = json!({"command": "until [ -e go ]; do sleep 0.2; done; wc -c", "stdin": text});
    let waits = json!({"name": "run", "arguments": waits}).to_string();
    // All of them together are more than the server may hold.
    let ids: Vec<u64> = (0..16).map(|_| client.begin_with("tools/call", &waits)).collect();
    let (first, others) = ids.split_at(4);
    for id in others {
        assert!(client.protocol_error(*id).contains("not answered yet hold 64 MiB: wait"));
    }
    assert!(peak(&client) < 200 << 20, "{} MiB", peak(&client) >> 20);
    // Smaller ones are served meanwhile, and a cancelled one gives its share back.
    assert!(client.request("ping", json!({}))["result"].is_object());
    assert_eq!(client.succeeds("echo fine"), "fine\n");
    client.send(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first[0]}}),
    );
    let again = json!({"name": "run", "arguments": {"argv": ["wc", "-c"], "stdin": text}}).to_string();
    until("there is room again", || {
        let id = client.begin_with("tools/call", &again);
        let answer = client.answer(id);
        let stdout = &answer["result"]["structuredContent"]["stdout"];
        assert!(answer["error"].is_object() || stdout == "15728640\n", "{answer}");
        stdout.is_string()
    });
    fs::write(client.path().join("go"), "").unwrap();
    for id in &first[1..] {
        assert_eq!(client.result(*id).data("stdout"), "15728640\n");
    }
    let all = client.begin_with("tools/call", &again);
    assert_eq!(client.result(all).data("exit_code"), 0);
}

/// The server then reads and does nothing more, until the client reads again.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    let mut client = Client::start(&[]);
    client.succeeds("true");
    client.pause();
    let (calls, mut stdin) = (100, client.stdin.take().unwrap());
    let sender = thread::spawn(move || {
        for number in 0..calls {
            let command = format!("head -c 1000000 /dev/zero | tr '\\0' x; echo > done-{number}");
            let arguments = json!({"command": command, "max_output_bytes": 1 << 20});
            let call = json!({"jsonrpc": "2.0", "id": format!("c{number}"), "method": "tools/call",
                "params": {"name": "run", "arguments": arguments}});
            writeln!(stdin, "{call}").unwrap();
        }
        stdin
    });
    let done = |client: &Client| fs::read_dir(client.path()).unwrap().count();
    let runs = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        ["sh", "head", "tr"].contains(&name.trim())
    };
    let running = |client: &Client| descendants(client.server.id()).iter().filter(|pid| runs(pid)).count();
    // Until some have run, and no more begin. However slow the machine is, one ends after the other.
    let (mut count, mut ended, mut busy) = (0, Instant::now(), Instant::now());
    while count < 16 || busy.elapsed() < Duration::from_millis(500) {
        thread::sleep(Duration::from_millis(20));
        let now = done(&client);
        if now != count {
            (count, ended) = (now, Instant::now());
        }
        if ended.elapsed() < Duration::from_millis(20) || running(&client) > 0 {
            busy = Instant::now();
        }
        assert!(ended.elapsed() < patient(Duration::from_secs(30)), "nothing ends after {count}");
    }
    assert!(count < 75, "{count} of {calls} have run");
    assert!(peak(&client) < 250 << 20, "{} MiB", peak(&client) >> 20);
    client.resume();
    for number in 0..calls {
        let answer = client.wait("an answer", |message: &Value| message["id"] == format!("c{number}"));
        assert_eq!(answer["result"]["structuredContent"]["stdout"].as_str().unwrap().len(), 1_000_000);
    }
    client.stdin = Some(sender.join().unwrap());
    assert_eq!(client.succeeds("echo fine"), "fine\n");
}
