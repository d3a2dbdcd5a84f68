//! Messages that no good client sends. The server refuses them one by one, and goes on.

use serde_json::{Value, json};

use super::Client;
use crate::support::descendants;

#[test]
fn what_is_no_message_changes_nothing() {
    let mut client = Client::start(&[]);
    let deep = format!("{}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    let deep_params = format!(
        r#"{{"jsonrpc":"2.0","id":7000,"method":"tools/call","params":{{"name":"run","arguments":{}}}}}"#,
        "{\"a\":".repeat(5000) + "1" + &"}".repeat(5000)
    );
    let lines: [&[u8]; 18] = [
        b"\n",
        b"   \n",
        b"not json\n",
        b"{\n",
        b"\xff\xfe\x00\n",
        b"null\n",
        b"1\n",
        b"[]\n",
        b"{}\n",
        b"[{\"jsonrpc\":\"2.0\",\"id\":7001,\"method\":\"ping\"}]\n",
        b"{\"jsonrpc\":\"1.0\",\"id\":7002,\"method\":\"ping\"}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":7003,\"result\":{}}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":7004,\"error\":{\"code\":1,\"message\":\"x\"}}\n",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/nonsense\"}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":7005,\"method\":\"tools/call\"}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":7006,\"method\":\"tools/call\",\"params\":{\"name\":[]}}\n",
        deep.as_bytes(),
    ];
    for line in lines {
        client.send_bytes(line);
        assert!(
            client.request("ping", json!({}))["result"].is_object(),
            "{:?}",
            String::from_utf8_lossy(line)
        );
    }
    client.send_bytes(format!("{deep_params}\n").as_bytes());
    assert!(client.request("ping", json!({}))["result"].is_object());
    // A request with an id gets an answer, whatever its shape.
    client.send_bytes(b"{\"jsonrpc\":\"2.0\",\"id\":7007,\"method\":\"tools/call\",\"params\":5}\n");
    let answer = client.wait("an answer to a wrong shape", |message| message["id"] == 7007);
    assert!(answer["error"].is_object(), "{answer}");
    for method in ["no/such", "", "resources/list", "tools/call/x", "shutdown"] {
        let answer = client.request(method, json!({}));
        assert!(answer["error"].is_object() || answer["result"].is_object(), "{answer}");
    }
    assert_eq!(client.succeeds("echo fine"), "fine\n");
}

#[test]
fn wrong_names_and_arguments_are_refused_in_words() {
    let mut client = Client::start(&[]);
    for name in ["nope", "", "RUN", "run ", "../run", &"x".repeat(100_000)] {
        let answer = client.request("tools/call", json!({"name": name, "arguments": {}}));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer.to_string().len() < 1000, "{answer}");
    }
    let cases: [(&str, Value, &str); 17] = [
        ("run", json!({}), "either `argv` or `command`"),
        ("run", json!({"argv": ["true"], "command": "true"}), "either `argv` or `command`"),
        ("run", json!({"argv": []}), "name a program"),
        ("run", json!({"argv": [""]}), ""),
        ("run", json!({"argv": "true"}), "invalid type"),
        ("run", json!({"argv": [1]}), "invalid type"),
        ("run", json!({"argv": ["true", "a\0b"]}), "NUL"),
        ("run", json!({"command": "true\0"}), "NUL"),
        ("run", json!({"argv": ["true"], "cwd": "a\0"}), "NUL"),
        ("run", json!({"argv": ["true"], "cwd": "/proc/1/root"}), "working directory"),
        ("run", json!({"argv": ["true"], "env": {"A": "b\0"}}), "NUL"),
        ("run", json!({"argv": ["true"], "env": {"A=B": "c"}}), ""),
        ("run", json!({"argv": ["true"], "timeout_ms": -1}), "invalid value"),
        ("run", json!({"argv": ["true"], "timeout_ms": 1.5}), "invalid type"),
        ("run", json!({"argv": ["true"], "isolation": "none"}), "unknown field"),
        ("shell", json!({"snippet": "a\0b"}), "NUL"),
        ("read_file", json!({"path": ["x"]}), "invalid type"),
    ];
    for (tool, arguments, words) in cases {
        let answer = client.call(tool, arguments.clone());
        assert!(answer.refusal().contains(words), "{arguments}: {}", answer.0);
        assert!(answer.text().len() < 1500, "{arguments}");
    }
    for flag in ["ro", "rw", "allow", "policy", "profile", "net", "user"] {
        assert!(client.call("run", json!({"argv": ["true"], flag: "/"})).refusal().contains("unknown field"));
    }
    // More than the kernel takes.
    assert!(client.call("run", json!({"argv": ["true", "x".repeat(200_000)]})).is_error());
    assert!(
        client
            .call("run", json!({"argv": vec!["true"; 100_000], "env": {"A": "x".repeat(2 << 20)}}))
            .is_error()
    );
    assert_eq!(client.succeeds("echo fine"), "fine\n");
}

#[test]
fn many_calls_at_once_are_bounded_and_all_answered() {
    let mut client = Client::start(&[]);
    client.succeeds("true");
    let waits = json!({"command": "until [ -e go ]; do sleep 0.2; done; echo done"});
    let ids: Vec<u64> = (0..1500).map(|_| client.begin_call("run", waits.clone())).collect();
    // Refusals come while the others wait.
    let refused = ids.iter().rev().take(400).map(|id| client.result(*id));
    assert!(refused.into_iter().all(|answer| answer.refusal().contains("1000 calls already")));
    let running = descendants(client.server.id()).len();
    assert!(running < 250, "32 commands with their helpers, not {running} processes");
    assert!(client.request("ping", json!({}))["result"].is_object());
    std::fs::write(client.path().join("go"), "").unwrap();
    let rest = &ids[..1100];
    let done = rest.iter().map(|id| client.result(*id)).filter(|answer| !answer.is_error()).count();
    assert_eq!(done, 1000);
    assert_eq!(client.succeeds("echo fine"), "fine\n");
}

#[test]
fn shells_are_bounded() {
    let mut client = Client::start(&[]);
    for number in 0..16 {
        client.call("shell", json!({"snippet": ":", "id": format!("s{number}")}));
    }
    assert!(
        client
            .call("shell", json!({"snippet": ":", "id": "another"}))
            .refusal()
            .contains("there are 16 shells")
    );
    assert!(!client.call("shell", json!({"snippet": ":", "id": "s3"})).is_error());
}
