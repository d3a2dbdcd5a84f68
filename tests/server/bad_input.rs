//! Bodies, headers and connections that nobody should send: a clear answer, and no harm to others.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Answer, STREAM, Server, events, frame, start};

#[test]
fn bodies_that_are_no_request_are_named() {
    let server = Server::start("");
    let headers = [("x-api-key", &*server.key), ("content-type", "application/json")];
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        "",
        "[]",
        "null",
        "{",
        "\u{0}",
        "{\"timeout\": -1}",
        "{\"timeout\": \"x\"}",
        "{\"metadata\": [1]}",
        &deep,
    ] {
        let answer = server.request("POST", "/v2/sandboxes", &headers, body.as_bytes());
        assert_eq!(answer.status, 400, "{:.40}", body);
        assert!(answer.message().starts_with("the body: "), "{}", answer.message());
    }
    let long = format!("{{\"metadata\": {{\"a\": \"{}\"}}}}", "x".repeat(2 << 20));
    assert_eq!(server.request("POST", "/v2/sandboxes", &headers, long.as_bytes()).status, 413);
    assert_eq!(server.ask("GET", "/v2/sandboxes?limit=x", &Value::Null).status, 400);
    for page in ["x", "1", "1_x", "x_kennel-aaaaaaaaaaaaaaaa"] {
        let path = format!("/v2/sandboxes?nextToken={page}");
        assert_eq!(server.ask("GET", &path, &Value::Null).status, 400, "{page}");
    }
    // Keys that are not known are ignored: clients add some.
    server.create_from(&json!({ "templateID": "base", "newInTheNextVersion": { "a": 1 } }));
}

#[test]
fn what_kennel_does_not_do_is_refused_in_words() {
    let server = Server::start("");
    for body in [
        json!({ "mcp": { "a": 1 } }),
        json!({ "volumeMounts": [{ "name": "a", "path": "/a" }] }),
        json!({ "autoPause": true }),
        json!({ "network": { "egressProxy": {} } }),
    ] {
        assert_eq!(server.ask("POST", "/v2/sandboxes", &body).status, 501, "{body}");
    }
    for path in ["/", "/v3/sandboxes", "/templates", "/nothing"] {
        assert_eq!(server.ask("GET", path, &Value::Null).status, 501, "{path}");
    }
}

#[test]
fn sandboxes_that_never_were_are_not_there() {
    let server = Server::start("");
    for id in [
        "kennel-aaaaaaaaaaaaaaaa",
        "other-aaaaaaaaaaaaaaaa",
        "kennel-9aaaaaaaaaaaaaaa",
        "x",
        "..%2f..%2fseed",
        "kennel-AAAAAAAAAAAAAAAA",
    ] {
        for (method, path) in [("GET", format!("/sandboxes/{id}")), ("DELETE", format!("/sandboxes/{id}"))] {
            assert_eq!(server.ask(method, &path, &Value::Null).status, 404, "{path}");
        }
        let headers = [("e2b-sandbox-id", id), ("x-access-token", "x")];
        let answer = server.request("GET", "/health", &headers, b"");
        assert_eq!((answer.status, answer.message().contains("was not found")), (502, true), "{id}");
    }
}

#[test]
fn only_json_is_read_by_calls() {
    let server = Server::start("");
    let made = server.create();
    for (path, kind) in [
        ("/process.Process/Start", "application/connect+proto"),
        ("/process.Process/Start", "application/json"),
        ("/process.Process/List", "application/proto"),
        ("/filesystem.Filesystem/Stat", "text/plain"),
        ("/files?path=x", "text/plain"),
        ("/files?path=x", "application/x-www-form-urlencoded"),
    ] {
        let answer = server.of(&made, "POST", path, kind, b"{}");
        assert_eq!(answer.status, 415, "{path} {kind}");
        assert!(answer.message().contains(kind), "{}", answer.message());
    }
}

#[test]
fn frames_that_are_none_end_the_stream_with_an_error() {
    let server = Server::start("");
    let made = server.create();
    let mut compressed = start("true");
    compressed[0] = 1;
    let mut long = start("true");
    long[1] = 0x7f;
    let bodies = [
        Vec::new(),
        vec![0],
        vec![0, 0, 0, 0, 9, b'{'],
        b"{}".to_vec(),
        compressed,
        long,
        frame(&json!([])),
        frame(&json!({ "process": { "cmd": "" } })),
        frame(&json!({ "process": { "cmd": "true" }, "pty": { "size": { "cols": 70000, "rows": 1 } } })),
        frame(&json!({ "process": { "cmd": "a\u{0}b" } })),
    ];
    for body in bodies {
        let answer = server.of(&made, "POST", "/process.Process/Start", STREAM, &body);
        let found = events(&answer.body);
        assert_eq!((answer.status, found.len()), (200, 1), "{body:?} {found:?}");
        assert!(found[0]["error"]["message"].is_string(), "{found:?}");
    }
    assert_eq!(server.run(&made, "echo well").0, "well\n");
}

#[test]
fn selectors_of_nothing_are_not_found() {
    let server = Server::start("");
    let made = server.create();
    for (call, body, status) in [
        ("SendSignal", json!({ "process": { "pid": 99 }, "signal": "SIGNAL_SIGKILL" }), 404),
        ("SendSignal", json!({ "process": { "tag": "x" }, "signal": "SIGNAL_SIGKILL" }), 404),
        ("SendSignal", json!({ "signal": "SIGNAL_SIGKILL" }), 400),
        ("SendSignal", json!({ "process": { "pid": 1 }, "signal": "SIGNAL_SIGSTOP" }), 400),
        ("SendInput", json!({ "process": { "pid": 99 }, "input": { "stdin": "" } }), 404),
        ("CloseStdin", json!({ "process": { "pid": 99 } }), 404),
        ("Update", json!({ "process": { "pid": 99 } }), 404),
    ] {
        let path = format!("/process.Process/{call}");
        let answer = server.of(&made, "POST", &path, "application/json", body.to_string().as_bytes());
        assert_eq!(answer.status, status, "{call} {body}");
        assert!(answer.json()["code"].is_string(), "an error of the Connect protocol");
    }
}

#[test]
fn uploads_appear_whole_or_not_at_all() {
    let server = Server::start("");
    let made = server.create();
    let mut stream = server.connect();
    let head = format!(
        "POST /files?path=half HTTP/1.1\r\nHost: k\r\nx-access-token: {}\r\ne2b-sandbox-id: {}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n",
        made.token, made.id
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b'x'; 500_000]).unwrap();
    drop(stream);
    let boundary = "multipart/form-data; boundary=b";
    let cut = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"half\"\r\n\r\nxxx";
    assert_eq!(server.of(&made, "POST", "/files", boundary, cut).status, 400);
    let none = b"--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nxxx\r\n--b--\r\n";
    assert_eq!(server.of(&made, "POST", "/files", boundary, none).status, 400);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.run(&made, "ls -A").0, "", "nothing is left of it");
    for path in ["", "a%00b"] {
        let answer =
            server.of(&made, "POST", &format!("/files?path={path}"), "application/octet-stream", b"x");
        assert_eq!(answer.status, 400, "{path}");
    }
}

#[test]
fn a_full_disk_is_told() {
    // Files of /tmp count for the memory of private places.
    let server = Server::start("[template.base.limits]\ntmp_size = '1M'\n");
    let made = server.create();
    let large = vec![b'x'; 4 << 20];
    let answer = server.of(&made, "POST", "/files?path=/tmp/d/large", "application/octet-stream", &large);
    assert_eq!(answer.status, 507, "{}", answer.text());
    assert!(answer.message().contains("/tmp/d/large"), "{}", answer.message());
    assert_eq!(server.run(&made, "ls -A /tmp/d").0, "");
}

#[test]
fn an_upload_that_is_refused_is_told_why_however_large() {
    let server = Server::start("[template.base]\nlimits.tmp_size = '1M'");
    let (made, gone) = (server.create(), server.create());
    server.ask("DELETE", &format!("/sandboxes/{}", gone.id), &Value::Null);
    let large = vec![b'x'; 24 << 20];
    let octets = "application/octet-stream";
    let boundary = "multipart/form-data; boundary=b";
    let mut multipart =
        b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/usr/x\"\r\n\r\n".to_vec();
    multipart.extend(&large);
    multipart.extend(b"\r\n--b--\r\n");
    for _ in 0..3 {
        assert_eq!(
            server.request("POST", "/files?path=x", &[("e2b-sandbox-id", &made.id)], &large).status,
            401
        );
        assert_eq!(server.of(&gone, "POST", "/files?path=x", octets, &large).status, 502);
        assert_eq!(server.of(&made, "POST", "/files?path=/usr/x", octets, &large).status, 403);
        assert_eq!(server.of(&made, "POST", "/files?path=/tmp/d/x", octets, &large).status, 507);
        assert_eq!(server.of(&made, "POST", "/files", boundary, &multipart).status, 403);
        assert_eq!(server.of(&made, "POST", "/files?path=x", "text/plain", &large).status, 415);
        assert_eq!(
            server.request("POST", "/v2/sandboxes", &[("x-api-key", &server.key)], &large).status,
            413
        );
    }
    assert_eq!(server.run(&made, "echo well").0, "well\n");
}

#[test]
fn a_slow_head_is_not_waited_for() {
    let server = Server::start("");
    let mut stream = server.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: k\r\n").unwrap();
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!((8..14).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut stream = server.connect();
    let _ = stream.write_all(long.as_bytes());
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() || Answer::parse(&rest).status == 431, "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn connections_beyond_the_limit_are_closed_and_others_go_on() {
    let server = Server::start("connections = 20");
    let made = server.create();
    let silent: Vec<_> = (0..19).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_millis(100));
    let mut one = server.connect();
    crate::server::send(&mut one, "GET", "/healthz", &[], b"");
    assert_eq!(Answer::read(one).status, 200, "the twentieth is served");
    let _last = server.connect();
    std::thread::sleep(Duration::from_millis(100));
    let mut refused = server.connect();
    let mut bytes = Vec::new();
    let _ = refused.read_to_end(&mut bytes);
    assert!(bytes.is_empty(), "closed at once");
    drop(silent);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.run(&made, "echo well").0, "well\n");
}

#[test]
fn what_a_sandbox_says_about_itself_has_a_size() {
    let server = Server::start("");
    let many: serde_json::Map<_, _> = (0..2000).map(|number| (number.to_string(), "".into())).collect();
    for key in ["metadata", "envVars"] {
        let long = serde_json::json!({ key: { "name": "x".repeat(300_000) } });
        let answer = server.ask("POST", "/v2/sandboxes", &long);
        assert_eq!(answer.status, 400);
        assert!(answer.message().starts_with(key), "{}", answer.message());
    }
    let answer = server.ask("POST", "/v2/sandboxes", &serde_json::json!({ "metadata": many }));
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[cfg(not(feature = "nats"))]
#[test]
fn a_queue_without_the_feature_is_refused_by_its_name() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kennel-server"));
    let output = command.args(["serve", "--nats", "nats://127.0.0.1:4222"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{words}");
    assert!(words.contains("--nats: this kennel-server was built without the feature `nats`"), "{words}");
}
