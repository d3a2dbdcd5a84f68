//! Servers in sandboxes are reached by header or by name, with the token of the sandbox, every method and
//! upgrades.

use std::io::{Read, Write};

use serde_json::json;

use crate::server::{Answer, Client, Made, STREAM, Server, frame, send, wait_until};

/// A server in a sandbox that answers with what it was asked, and echoes after an upgrade.
const ECHO: &str = r#"
import socket, threading
server = socket.create_server(("127.0.0.1", 8000))
def serve(client):
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(65536)
    if b"upgrade: websocket" in head.lower():
        client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        while piece := client.recv(65536):
            client.sendall(piece.upper())
    else:
        client.sendall(b"HTTP/1.1 207 Multi\r\nx-own: yes\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
    client.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"#;

pub(crate) fn serve(server: &Client) -> Made {
    let made = server.create();
    let written =
        server.of(&made, "POST", "/files?path=echo.py", "application/octet-stream", ECHO.as_bytes());
    assert_eq!(written.status, 200);
    let body = frame(&json!({ "process": { "cmd": "python3", "args": ["echo.py"] } }));
    let mut stream = server.connect();
    let headers = [("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", STREAM)];
    send(&mut stream, "POST", "/process.Process/Start", &headers, &body);
    let mut first = [0; 100];
    let _ = stream.read(&mut first).unwrap();
    wait_until("it listens", || ask(server, &made, "GET", "/").status == 207);
    made
}

pub(crate) fn ask(server: &Client, made: &Made, method: &str, path: &str) -> Answer {
    let traffic = made.traffic.as_deref().unwrap();
    let headers =
        [("e2b-traffic-access-token", traffic), ("e2b-sandbox-id", &made.id), ("e2b-sandbox-port", "8000")];
    server.request(method, path, &headers, b"")
}

#[test]
fn a_port_is_reached_with_the_sandboxs_token_and_the_server_never_sees_it() {
    let server = Server::start("domain = 'sandboxes.test'");
    let made = serve(&server);
    let traffic = made.traffic.as_deref().unwrap();
    let host = format!("8000-{}.sandboxes.test", made.id);
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let headers =
            [("host", &*host), ("e2b-traffic-access-token", traffic), ("origin", "https://example.com")];
        let answer = server.request(method, "/some/path?q=1", &headers, b"");
        assert_eq!((answer.status, answer.header("x-own")), (207, Some("yes")), "{method}");
        let seen = answer.text().to_ascii_lowercase();
        assert!(
            seen.starts_with(&format!("{} /some/path?q=1 http/1.1", method.to_ascii_lowercase())),
            "{seen}"
        );
        assert!(
            seen.contains("host: localhost:8000") && seen.contains("origin: http://localhost:8000"),
            "{seen}"
        );
        assert!(!seen.contains(traffic) && !seen.contains("x-kennel") && !seen.contains(&made.id), "{seen}");
    }
    for headers in [
        vec![("host", &*host)],
        vec![("host", &*host), ("e2b-traffic-access-token", "x")],
        vec![("host", &*host), ("e2b-traffic-access-token", &*made.token)],
        vec![("host", &*host), ("x-access-token", &*made.token)],
    ] {
        assert_eq!(server.request("GET", "/", &headers, b"").status, 401, "{headers:?}");
    }
}

#[test]
fn both_directions_are_open_after_an_upgrade() {
    let server = Server::start("");
    let made = serve(&server);
    let mut stream = server.connect();
    let head = format!(
        "GET /ws HTTP/1.1\r\nHost: k\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 8000\r\n\
         e2b-traffic-access-token: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        made.id,
        made.traffic.as_deref().unwrap()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut echoed = vec![0; word.len()];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, word.to_ascii_uppercase().into_bytes());
    }
}

#[test]
fn a_port_that_nothing_listens_on_says_so() {
    let server = Server::start("");
    let made = server.create();
    let answer = ask(&server, &made, "GET", "/");
    assert_eq!(answer.status, 502);
    assert!(answer.message().contains("port is not open"), "{}", answer.message());
}

#[test]
fn public_ports_need_no_token() {
    let server = Server::start("[template.base]\npublic_ports = true");
    let made = server.create();
    assert!(made.traffic.is_none());
    let headers = [("e2b-sandbox-id", &*made.id), ("e2b-sandbox-port", "8000")];
    assert_eq!(server.request("GET", "/", &headers, b"").status, 502, "nothing listens");
    // Its files and commands still do.
    let headers = [("e2b-sandbox-id", &*made.id), ("e2b-sandbox-port", "49983")];
    assert_eq!(server.request("GET", "/files?path=/etc/hosts", &headers, b"").status, 401);
}
