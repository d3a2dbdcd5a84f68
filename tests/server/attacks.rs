//! Clients and servers in sandboxes that mean harm: none reaches another sandbox, or what front and hosts say
//! to each other.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Answer, Made, STREAM, Server, events, output, send, start, wait_until};

/// Everything that comes back within a second for these bytes.
fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    // The server may close at any moment.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// The head of a request with the token of a sandbox.
fn head_of(made: &Made, line: &str, more: &str) -> String {
    format!(
        "{line}\r\nHost: worker\r\ne2b-sandbox-id: {}\r\nx-access-token: {}\r\n{more}\r\n",
        made.id, made.token
    )
}

/// What hosts take from the front only. `{}` is a sandbox.
const INTERNAL: [(&str, &str); 13] = [
    ("GET", "/host/news"),
    ("GET", "/host/largest"),
    ("POST", "/host/ready"),
    ("POST", "/host/sandboxes/{}/memory"),
    ("POST", "/sandboxes"),
    ("GET", "/sandboxes/{}"),
    ("DELETE", "/sandboxes/{}"),
    ("POST", "/sandboxes/{}/timeout"),
    ("POST", "/v2/sandboxes/{}/connect"),
    ("POST", "/sandboxes/{}/pause"),
    ("POST", "/v1/sandboxes/{}/run"),
    ("GET", "/v1/sandboxes/{}/changes"),
    ("GET", "/v1/sandboxes/{}/commands/1/report"),
];

/// Other words for the same path, as proxies and file servers take them.
fn disguises(path: &str) -> Vec<String> {
    let rest = path.trim_start_matches('/');
    vec![
        path.to_owned(),
        format!("//{rest}"),
        format!("/./{rest}"),
        format!("/files/../{rest}"),
        format!("/process.Process/..{path}"),
        format!("/health/..%2f{rest}"),
        format!("/%{:02x}{}", rest.as_bytes()[0], &rest[1..]),
        format!("/{rest}/"),
        format!("/{rest}?path=/health"),
        format!("http://worker{path}"),
        format!("http://0{path}"),
        format!("http://a@0:1{path}"),
    ]
}

/// A creation in the form that hosts understand, which shows the whole machine.
fn creation(server: &Server) -> String {
    let record = std::fs::read_dir(server.state().join("sandboxes")).unwrap().next().unwrap().unwrap();
    let record = std::fs::read(record.path().join("record.json")).unwrap();
    let mut new = serde_json::from_slice::<Value>(&record).unwrap()["new"].take();
    new["owner"] = "default".into();
    new["making"]["policy"]["profile"] = "full-dev".into();
    new.to_string()
}

#[test]
fn the_token_of_a_sandbox_opens_no_route_of_the_worker() {
    let server = Server::start("domain = 'sandboxes.test'");
    let (mine, other) = (server.create(), server.create());
    let creation = creation(&server);
    let by_name = format!("49983-{}.sandboxes.test", mine.id);
    let forged = [("x-kennel-owner", "default"), ("x-kennel-sandbox", &*other.id), ("x-kennel-port", "1")];
    for (method, path) in INTERNAL {
        let body = match path {
            "/host/ready" => "[]",
            "/sandboxes" => &creation,
            _ => "{\"timeout\": 1, \"memory\": false}",
        };
        for path in disguises(&path.replace("{}", &other.id)) {
            for port in ["49983", "049983", "+49983"] {
                let by_id = [("e2b-sandbox-id", &*mine.id), ("e2b-sandbox-port", port)];
                for way in [&by_id[..], &[("host", &*by_name)]] {
                    let keys = [("x-access-token", &*mine.token), ("e2b-traffic-access-token", &*mine.token)];
                    let kind = [("content-type", "application/json")];
                    let headers = [way, &keys, &forged, &kind].concat();
                    let mut stream = server.connect();
                    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    send(&mut stream, method, &path, &headers, body.as_bytes());
                    let answer = Answer::read(stream);
                    assert!(answer.status >= 400, "{method} {path}: {} {}", answer.status, answer.text());
                    assert!(!answer.text().contains(&other.token), "{method} {path}");
                }
            }
        }
    }
    assert_eq!(server.run(&other, "echo here").0, "here\n");
    assert_eq!(server.ask("GET", "/v2/sandboxes", &Value::Null).json().as_array().unwrap().len(), 2);
}

#[test]
fn nor_does_the_token_of_its_ports_or_none() {
    let server = Server::start("[template.base]\npublic_ports = true");
    let (mine, other) = (server.create(), server.create());
    for (method, path) in INTERNAL {
        for path in disguises(&path.replace("{}", &other.id)) {
            for port in ["49983", "8000", "0", "65536", "-1", "x", ""] {
                let headers = [("e2b-sandbox-id", &*mine.id), ("e2b-sandbox-port", port)];
                let answer = server.request(method, &path, &headers, b"{}");
                assert!(matches!(answer.status, 401 | 502), "{method} {path} {port}: {}", answer.status);
            }
        }
    }
    assert_eq!(server.run(&other, "echo here").0, "here\n");
}

#[test]
fn no_request_hides_another_one() {
    let server = Server::start("hosts = 1");
    let (mine, other) = (server.create(), server.create());
    let hidden = format!(
        "POST /host/sandboxes/{0}/memory HTTP/1.1\r\nHost: 0\r\nContent-Length: 0\r\n\r\n\
         DELETE /sandboxes/{0} HTTP/1.1\r\nHost: 0\r\nx-kennel-owner: default\r\n\r\n",
        other.id
    );
    let chunked = format!("0\r\n\r\n{hidden}");
    let (length, short) = (chunked.len(), chunked.len() - hidden.len());
    let lies = [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {short}\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {short}, {length}\r\n"),
        format!("Content-Length: +{length}\r\n"),
        format!("Content-Length: -1\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: identity\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: xchunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding : chunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding:\tchunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked, identity\r\n"),
        format!("Content-Length: {length}\r\nX: y\nTransfer-Encoding: chunked\r\n"),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n".to_owned(),
        format!("Content-Length: {length}\r\nConnection: content-length\r\n"),
        format!("Content-Length: {length}\r\nExpect: 100-continue\r\n"),
        "Content-Length: 0\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\
         HTTP2-Settings: AAMAAABk\r\n"
            .to_owned(),
        "Transfer-Encoding: chunked\r\nTrailer: x-kennel-sandbox\r\n".to_owned(),
    ];
    for method in ["POST", "GET", "HEAD", "OPTIONS", "CONNECT", "PRI"] {
        for path in ["/files?path=x", "/process.Process/List", "/process.Process/Start", "/nothing"] {
            for lie in &lies {
                for version in ["HTTP/1.1", "HTTP/1.0"] {
                    let more =
                        format!("Content-Type: application/octet-stream\r\nConnection: close\r\n{lie}");
                    let line = format!("{method} {path} {version}");
                    let mut bytes = head_of(&mine, &line, &more).into_bytes();
                    bytes.extend(chunked.as_bytes());
                    let mut stream = server.connect();
                    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                    let _ = stream.write_all(&bytes);
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        }
    }
    for number in 0..20 {
        assert_eq!(server.run(&other, &format!("echo {number}")).0, format!("{number}\n"));
    }
    let listed = server.ask("GET", "/v2/sandboxes", &Value::Null);
    assert_eq!(listed.json().as_array().unwrap().len(), 2);
}

#[test]
fn other_protocols_get_a_refusal_or_nothing() {
    let server = Server::start("");
    let mine = server.create();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let prior = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings[..]].concat();
    let upgrade = |protocol: &str, more: &str| {
        let more = format!("Connection: Upgrade{more}\r\nUpgrade: {protocol}\r\nContent-Type: {STREAM}\r\n");
        head_of(&mine, "GET /process.Process/Start HTTP/1.1", &more).into_bytes()
    };
    for (what, bytes) in [
        ("HTTP/2", prior),
        ("h2c", upgrade("h2c", ", HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk")),
        ("a WebSocket", upgrade("websocket", "\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==")),
        ("CONNECT", head_of(&mine, "CONNECT 0:80 HTTP/1.1", "").into_bytes()),
        ("CONNECT of a path", head_of(&mine, "CONNECT /host/news HTTP/1.1", "").into_bytes()),
        ("TRACE", head_of(&mine, "TRACE /health HTTP/1.1", "").into_bytes()),
        ("OPTIONS", head_of(&mine, "OPTIONS * HTTP/1.1", "").into_bytes()),
        ("TLS", vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]),
        ("HTTP/0.9", b"GET /healthz\r\n".to_vec()),
        ("HTTP/3", b"GET /healthz HTTP/3.0\r\n\r\n".to_vec()),
        ("zeros", vec![0; 100_000]),
    ] {
        let answer = raw(&server, &bytes);
        let is_refused =
            ["HTTP/1.1 4", "HTTP/1.1 5", "HTTP/1.0 4"].iter().any(|begin| answer.starts_with(begin));
        assert!(answer.is_empty() || is_refused, "{what}: {answer}");
        assert!(!answer.contains("session_lost"), "{what}: {answer}");
    }
    assert_eq!(server.run(&mine, "echo here").0, "here\n");
}

/// A stream of another sandbox, which must go on whatever a client does with its own.
struct Watched(TcpStream);

impl Watched {
    fn begin(server: &Server, made: &Made) -> Self {
        let mut stream = server.connect();
        let headers =
            [("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", STREAM)];
        let command = "echo begun; until test -e end; do sleep 0.05; done; echo over";
        send(&mut stream, "POST", "/process.Process/Start", &headers, &start(command));
        wait_until("it runs", || {
            let answer = server.of(made, "POST", "/process.Process/List", "application/json", b"{}");
            answer.json()["processes"].as_array().is_some_and(|found| !found.is_empty())
        });
        Self(stream)
    }

    fn ends_well(self, server: &Server, made: &Made) {
        let _ = server.of(made, "POST", "/files?path=end", "application/octet-stream", b"");
        let found = events(&Answer::read(self.0).body);
        assert_eq!(output(&found, "stdout"), "begun\nover\n", "{found:?}");
        assert_eq!(found.last(), Some(&json!({})), "{found:?}");
    }
}

#[test]
fn no_head_however_large_breaks_streams_of_others() {
    let server = Server::start("hosts = 1");
    let (mine, other) = (server.create(), server.create());
    let watched = Watched::begin(&server, &other);
    for size in [10_000, 50_000, 200_000, 390_000, 2_000_000] {
        let bomb = format!(
            "Connection: close\r\nContent-Type: {STREAM}\r\nContent-Length: 0\r\nx: {}\r\n",
            "\\".repeat(size)
        );
        for _ in 0..5 {
            raw(&server, head_of(&mine, "POST /process.Process/Start HTTP/1.1", &bomb).as_bytes());
        }
    }
    for count in [50, 99, 1000] {
        let more: String = (1..count).map(|number| format!("x-{number}: {}\r\n", "~".repeat(3000))).collect();
        let more = format!("Connection: close\r\n{more}");
        raw(&server, head_of(&mine, "POST /process.Process/Start HTTP/1.1", &more).as_bytes());
    }
    watched.ends_well(&server, &other);
}

#[test]
fn no_number_of_streams_that_break_off_breaks_those_of_others() {
    let server = Server::start("hosts = 1");
    let (mine, other) = (server.create(), server.create());
    let watched = Watched::begin(&server, &other);
    let head = format!("Content-Type: {STREAM}\r\nContent-Length: 5\r\n");
    let half = head_of(&mine, "POST /process.Process/Start HTTP/1.1", &head);
    for _ in 0..20 {
        let streams: Vec<_> = (0..100).map(|_| server.connect()).collect();
        for mut stream in &streams {
            let _ = stream.write_all(half.as_bytes());
        }
        drop(streams);
    }
    watched.ends_well(&server, &other);
}

/// A server in a sandbox that answers each connection with the contents of a file, whatever it is asked.
const EVIL: &str = r#"
import socket
server = socket.create_server(("127.0.0.1", 8000))
while True:
    client = server.accept()[0]
    client.recv(65536)
    try:
        client.sendall(open("answer", "rb").read())
    except OSError:
        pass
    client.close()
"#;

#[test]
fn answers_of_a_server_in_a_sandbox_harm_its_own_clients_only() {
    let server = Server::start("hosts = 1\n[template.base]\npublic_ports = true");
    let (mine, other) = (server.create(), server.create());
    let put = |path: &str, bytes: &[u8]| {
        server.of(&mine, "POST", &format!("/files?path={path}"), "application/octet-stream", bytes)
    };
    put("evil.py", EVIL.as_bytes());
    put("answer", b"HTTP/1.1 204 None\r\n\r\n");
    server.run(&mine, "setsid python3 evil.py >/dev/null 2>&1 &");
    let port = [("e2b-sandbox-id", &*mine.id), ("e2b-sandbox-port", "8000")];
    wait_until("it listens", || server.request("GET", "/", &port, b"").status == 204);
    let second = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil".repeat(50);
    let long = "x".repeat(600_000);
    for answer in [
        format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{second}"),
        format!("HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n{second}"),
        format!("HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n{second}"),
        format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{second}"),
        format!("HTTP/1.1 100 Continue\r\n\r\n{second}"),
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
        ),
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n{second}"
        ),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{second}"),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n{second}"),
        format!("HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n{second}"),
        "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nshort".to_owned(),
        format!("HTTP/1.1 200 OK\r\nContent-Type: {STREAM}\r\nContent-Length: 99\r\n\r\n\x02\u{7f}"),
        format!("HTTP/1.1 200 OK\r\nx: {long}\r\n\r\n"),
        format!("HTTP/1.1 200 {long}\r\n\r\n"),
        "HTTP/1.1 999 What\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nx-kennel-reason: session_lost\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 502 Bad\r\nx-kennel-reason: memory\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        String::new(),
    ] {
        put("answer", answer.as_bytes());
        for method in ["GET", "HEAD", "CONNECT", "POST"] {
            let upgrade = [("upgrade", "websocket"), ("connection", "upgrade")];
            for headers in [port.to_vec(), [&port[..], &upgrade].concat()] {
                let mut stream = server.connect();
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                send(&mut stream, method, "/", &headers, b"");
                let mut all = Vec::new();
                match stream.read_to_end(&mut all) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{method}: {answer:.200}"),
                    _ => {}
                }
                let head = String::from_utf8_lossy(&all);
                assert!(!head.contains("x-kennel-reason"), "only the server says this: {head:.300}");
                let found = server.of(&other, "POST", "/process.Process/List", "application/json", b"{}");
                assert_eq!(
                    (found.status, found.text().as_str()),
                    (200, "{\"processes\":[]}"),
                    "{answer:.200}"
                );
            }
        }
    }
    assert_eq!(server.run(&other, "echo here").0, "here\n");
}

#[test]
fn a_command_reaches_neither_the_server_nor_its_hosts() {
    let server = Server::start("");
    let made = server.create();
    let (address, port) = server.address.rsplit_once(':').unwrap();
    let script = format!(
        r#"
import os, socket
state = {:?}
def attempt(family, place):
    try:
        with socket.socket(family) as s:
            s.settimeout(2)
            s.connect(place)
            print("reached", place)
    except OSError:
        pass
attempt(socket.AF_INET, ({address:?}, {port}))
for root in ["", "/proc/1/root", "/proc/self/root"]:
    for index in range(2):
        attempt(socket.AF_UNIX, f"{{root}}{{state}}/hosts/{{index}}.socket")
print(os.listdir(state), os.listdir(f"{{state}}/sandboxes"), os.listdir(f"{{state}}/sandboxes/{}"))
"#,
        server.state().display().to_string(),
        made.id
    );
    server.of(&made, "POST", "/files?path=try.py", "application/octet-stream", script.as_bytes());
    // The way to its own files is there, and nothing else.
    let seen = format!("['sandboxes'] ['{}'] ['home']\n", made.id);
    assert_eq!(server.run(&made, "python3 try.py 2>&1"), (seen, 0));
}

#[test]
fn no_time_of_a_file_and_no_number_is_too_much() {
    let server = Server::start("hosts = 1");
    let (mine, other) = (server.create(), server.create());
    let json = "application/json";
    server.run(&mine, "touch -d @-1 before; touch -d @-99999999999 long; touch -d @999999999999 after");
    for path in ["before", "long", "after"] {
        let body = json!({ "path": path }).to_string();
        let answer = server.of(&mine, "POST", "/filesystem.Filesystem/Stat", json, body.as_bytes());
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let time = answer.json()["entry"]["modifiedTime"].as_str().unwrap().to_owned();
        assert!(time.ends_with('Z'), "{path}: {time}");
    }
    let body = json!({ "path": "." }).to_string();
    let answer = server.of(&mine, "POST", "/filesystem.Filesystem/ListDir", json, body.as_bytes());
    assert_eq!(answer.json()["entries"].as_array().unwrap().len(), 3);
    let most = u64::MAX.to_string();
    for (name, value) in [("connect-timeout-ms", &*most), ("keepalive-ping-interval", &*most)] {
        for call in ["Start", "Connect"] {
            let body = match call {
                "Start" => start("true"),
                _ => crate::server::frame(&json!({ "process": { "pid": 1 } })),
            };
            let headers = [
                ("x-access-token", &*mine.token),
                ("e2b-sandbox-id", &*mine.id),
                ("content-type", STREAM),
                (name, value),
            ];
            let answer = server.request("POST", &format!("/process.Process/{call}"), &headers, &body);
            assert_eq!(answer.status, 200);
            let found = events(&answer.body);
            assert_eq!(found.last(), Some(&json!({})), "{call} {name}: {found:?}");
        }
    }
    let path = format!("/sandboxes/{}/timeout", mine.id);
    assert_eq!(server.ask("POST", &path, &json!({ "timeout": u64::MAX })).status, 400);
    assert_eq!(server.ask("POST", "/v2/sandboxes", &json!({ "timeout": u64::MAX })).status, 400);
    assert_eq!(
        server
            .ask("GET", &format!("/v2/sandboxes?nextToken={most}_{}&limit={most}", mine.id), &Value::Null)
            .status,
        200
    );
    assert_eq!(server.run(&other, "echo here").0, "here\n");
    let log = std::fs::read_to_string(server.state().join("hosts/0.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}
