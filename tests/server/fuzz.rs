//! Damage at random: valid requests of every route, whose bytes are changed. The server answers or closes,
//! never panics, and goes on. PROPTEST_CASES=100000 makes it long.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use crate::server::{Made, STREAM, Server, frame, start};
use crate::streams::hosts;

/// Requests that are served, with everything that their routes read.
fn corpus(key: &str, made: &Made, victim: &Made) -> Vec<Vec<u8>> {
    let (json, octets) = ("application/json", "application/octet-stream");
    let text = |value: Value| value.to_string().into_bytes();
    let input =
        |value: Value| [frame(&json!({ "start": { "process": { "pid": 1 } } })), frame(&value)].concat();
    let creation = json!({
        "templateID": "base", "timeout": 5, "metadata": { "a": "b" }, "envVars": { "C": "d" }, "autoPause": false,
        "allowInternetAccess": false, "network": { "allowOut": [], "denyOut": ["0.0.0.0/0"] }, "mcp": null,
    });
    let pty = json!({
        "process": { "cmd": "true", "args": ["x"], "envs": { "A": "b" }, "cwd": "/tmp" }, "tag": "t",
        "pty": { "size": { "cols": 80, "rows": 24 } }, "stdin": true,
    });
    let file = |name: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\nx\r\n")
    };
    let files = format!("{}{}--b--\r\n", file("one"), file("/tmp/two"));
    let (one, other) = (format!("/sandboxes/{}", made.id), format!("/sandboxes/{}", victim.id));
    [
        ("GET", "/healthz", json, vec![]),
        ("GET", "/health", json, vec![]),
        ("GET", "/metrics", json, vec![]),
        ("POST", "/v2/sandboxes", json, text(creation)),
        (
            "GET",
            "/v2/sandboxes?metadata=a%3Db&state=running,paused&limit=9&nextToken=0_kennel-aaaaaaaaaaaaaaaa&order=asc",
            json,
            vec![],
        ),
        ("GET", &one, json, vec![]),
        ("POST", &format!("{one}/timeout"), json, text(json!({ "timeout": 300 }))),
        ("POST", &format!("{one}/connect"), json, text(json!({ "timeout": 300 }))),
        ("GET", &format!("{one}/metrics"), json, vec![]),
        ("POST", &format!("{other}/pause"), json, text(json!({ "memory": false }))),
        ("DELETE", &other, json, vec![]),
        ("POST", "/process.Process/Start", STREAM, start("echo out; echo err >&2; exit 3")),
        ("POST", "/process.Process/Start", STREAM, frame(&pty)),
        ("POST", "/process.Process/Connect", STREAM, frame(&json!({ "process": { "pid": 1 } }))),
        ("POST", "/process.Process/List", json, text(json!({}))),
        (
            "POST",
            "/process.Process/SendInput",
            json,
            text(json!({ "process": { "pid": 1 }, "input": { "stdin": "eA==" } })),
        ),
        (
            "POST",
            "/process.Process/StreamInput",
            STREAM,
            input(json!({ "data": { "input": { "stdin": "eA==" } } })),
        ),
        ("POST", "/process.Process/StreamInput", STREAM, input(json!({ "keepalive": {} }))),
        ("POST", "/process.Process/CloseStdin", json, text(json!({ "process": { "tag": "t" } }))),
        (
            "POST",
            "/process.Process/SendSignal",
            json,
            text(json!({ "process": { "pid": 1 }, "signal": "SIGNAL_SIGTERM" })),
        ),
        (
            "POST",
            "/process.Process/Update",
            json,
            text(json!({ "process": { "pid": 2 }, "pty": { "size": { "cols": 1, "rows": 2 } } })),
        ),
        ("POST", "/filesystem.Filesystem/Stat", json, text(json!({ "path": "/etc/hosts" }))),
        ("POST", "/filesystem.Filesystem/ListDir", json, text(json!({ "path": ".", "depth": 2 }))),
        ("POST", "/filesystem.Filesystem/MakeDir", json, text(json!({ "path": "a/b" }))),
        (
            "POST",
            "/filesystem.Filesystem/Move",
            json,
            text(json!({ "source": "one", "destination": "a/b/c" })),
        ),
        ("POST", "/filesystem.Filesystem/Remove", json, text(json!({ "path": "a" }))),
        ("GET", "/files?path=one&username=user&signature=v1_x&signature_expiration=9", json, vec![]),
        ("POST", "/files?path=%2Ftmp%2Fx", octets, b"contents".to_vec()),
        ("POST", "/files", "multipart/form-data; boundary=b", files.into_bytes()),
    ]
    .into_iter()
    .flat_map(|(method, path, kind, body)| {
        let (id, token) = (&made.id, &made.token);
        let named = format!(
            "Host: 49983-{id}.sandboxes.test\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n\
             X-Access-Token: {token}\r\nAuthorization: Basic dXNlcjo=\r\n"
        );
        let is_of_worker =
            ["/healthz", "/metrics", "/v2/", "/sandboxes/"].iter().any(|begin| path.starts_with(begin));
        let named = if is_of_worker { "Host: worker\r\n" } else { &named };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{named}X-API-KEY: {key}\r\nContent-Type: {kind}\r\n\
             Connect-Timeout-Ms: 2000\r\nKeepalive-Ping-Interval: 1\r\nConnection: close\r\n"
        );
        let whole = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        let pieces = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
        let whole = [whole.as_bytes(), &body[..]].concat();
        [whole, [pieces.as_bytes(), &body[..], b"\r\n0\r\n\r\n"].concat()]
    })
    .collect()
}

/// One change of a request.
#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Cut(Index),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        let at = |index: &Index| index.index(bytes.len().max(1)).min(bytes.len());
        match self {
            Self::Byte(index, new) => {
                let at = at(index);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = *new);
            }
            Self::Insert(index, new) => {
                let at = at(index);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(index, count) => {
                let at = at(index);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Self::Repeat(index, count, times) => {
                let at = at(index);
                let piece = bytes[at..(at + count).min(bytes.len())].repeat(*times);
                bytes.splice(at..at, piece);
            }
            Self::Cut(index) => bytes.truncate(at(index)),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let words = prop::sample::select(vec![
        "\r\n",
        "\r\n\r\n",
        "\0",
        "%00",
        "%2f..",
        "../",
        "-1",
        "18446744073709551616",
        "1e999",
        "null",
        "[",
        "{\"a\":",
        "\"",
        "\\ud800",
        "\u{fffd}",
        "Content-Length: 1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Upgrade: websocket\r\n",
        "Expect: 100-continue\r\n",
        "x-kennel-sandbox: x\r\n",
        "ffffffffffffffff\r\n",
    ]);
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        2 => (any::<Index>(), words).prop_map(|(at, word)| Change::Insert(at, word.as_bytes().to_vec())),
        2 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, new)| Change::Insert(at, new)),
        2 => (any::<Index>(), 1_usize..40).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (any::<Index>(), 1_usize..40, 1_usize..200).prop_map(|(at, count, times)| Change::Repeat(at, count, times)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

/// How long one that may lack its end is waited for. Then it is told that no more comes.
const PATIENCE: Duration = Duration::from_millis(60);

/// Sends it. There is an answer, which begins with its status, or the connection is closed once no more
/// comes.
fn tried(server: &Server, bytes: &[u8], patience: Duration) -> Result<String, TestCaseError> {
    let mut stream = server.connect();
    // The server may answer before it has read all of it.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    for wait in [patience, Duration::from_secs(20)] {
        stream.set_read_timeout(Some(wait)).unwrap();
        match stream.read_to_end(&mut all) {
            // It may be closed already.
            Err(error) if error.kind() == ErrorKind::WouldBlock => drop(stream.shutdown(Shutdown::Write)),
            _ => {
                let answer = String::from_utf8_lossy(&all).into_owned();
                prop_assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{}", answer);
                return Ok(answer);
            }
        }
    }
    Err(TestCaseError::fail(format!("no answer: {}", String::from_utf8_lossy(bytes))))
}

#[test]
fn damaged_requests_are_answered_and_nothing_breaks() {
    let config =
        "domain = 'sandboxes.test'\nsandboxes = 40\nadmit_wait = '1ms'\n[template.base]\nlife = '10m'";
    let server = Server::start(config);
    let (made, victim, watched) = (server.create(), server.create(), server.create());
    let corpus = corpus(&server.key, &made, &victim);
    for request in &corpus {
        let status = tried(&server, request, Duration::from_secs(20)).unwrap();
        assert!(status.starts_with("HTTP/1.1 2") || status.starts_with("HTTP/1.1 4"), "{status}");
        assert!(!["400", "413", "415"].contains(&&status[9..12]), "{}", String::from_utf8_lossy(request));
    }
    let before = hosts(&server);
    let cases = (prop::sample::select(corpus), prop::collection::vec(change(), 0..6));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let done = runner.run(&cases, |(mut request, changes)| {
        changes.iter().for_each(|change| change.make(&mut request));
        tried(&server, &request, PATIENCE).map(drop)
    });
    done.unwrap();

    assert_eq!(hosts(&server), before, "no host has died");
    assert_eq!(server.request("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(server.run(&watched, "echo here").0, "here\n");
    let path = format!("/sandboxes/{}", watched.id);
    assert_eq!(server.ask("DELETE", &path, &Value::Null).status, 204);
    // Others that damaged requests have made end in five seconds.
    crate::server::wait_until("there is room", || {
        server.ask("POST", "/v2/sandboxes", &json!({})).status == 201
    });
    let logs = ["0", "1"].map(|host| server.state().join(format!("hosts/{host}.log")));
    for log in logs.into_iter().chain([server.place.path().join("errors")]) {
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains("panicked"), "{}: {text}", log.display());
    }
}
