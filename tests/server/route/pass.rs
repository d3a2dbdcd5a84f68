//! What is passed on as it is: streams with back-pressure, uploads, ports and upgrades, over every kind of
//! connection.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ports;
use crate::route::{Router, worker};
use crate::server::{Answer, Made, events, output, start};
use crate::streams::open;

#[test]
fn a_slow_reader_makes_the_command_wait_and_loses_nothing() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let made = router.create();
    let stream = open(&router, &made, "Start", &start("seq 1 3000000; touch done"), &[]);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(router.run(&made, "test -e done").1, 1, "it waits for its reader");
    let found = events(&Answer::read(stream).body);
    let text = output(&found, "stdout");
    assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=3_000_000));
    assert_eq!(found.last(), Some(&json!({})));
}

#[test]
fn a_client_that_goes_away_is_gone_for_the_worker_too() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let headers = [("x-api-key", "key-of-me")];
    let mut stream = router.connect();
    let body = br#"{"argv": ["sleep", "60"], "timeout": 90}"#;
    crate::server::send(&mut stream, "POST", "/v1/run", &headers, body);
    let running = || router.ask("GET", "/v2/sandboxes", &Value::Null).json().as_array().unwrap().len();
    crate::server::wait_until("it runs", || running() == 1);
    drop(stream);
    crate::server::wait_until("it is over", || running() == 0);
}

#[test]
fn a_large_file_is_streamed() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let made = router.create();
    let large: Vec<u8> = (0..48_u32 << 20).map(|place| (place % 251) as u8).collect();
    let written = router.of(&made, "POST", "/files?path=large", "application/octet-stream", &large);
    assert_eq!(written.status, 200, "{}", written.text());
    assert!(router.of(&made, "GET", "/files?path=large", "text/plain", b"").body == large);
    assert!(router.memory() < 48 << 10, "{} KiB: it does not hold the file", router.memory());
}

#[test]
fn ports_are_reached_by_header_and_by_name_with_upgrades() {
    let (one, two) = (worker("one", "domain = 'k.test'"), worker("two", "domain = 'k.test'"));
    let router = Router::before(&[&one, &two]);
    let made = ports::serve(&router);
    let traffic = made.traffic.as_deref().unwrap();
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let answer = ports::ask(&router, &made, method, "/some/path?q=1");
        assert_eq!((answer.status, answer.header("x-own")), (207, Some("yes")), "{method}");
        assert!(answer.text().starts_with(&format!("{method} /some/path?q=1 HTTP/1.1")), "{}", answer.text());
    }
    let host = format!("8000-{}.k.test", made.id);
    let headers = [("host", &*host), ("e2b-traffic-access-token", traffic)];
    assert_eq!(router.request("GET", "/", &headers, b"").status, 207);
    assert_eq!(router.request("GET", "/", &headers[..1], b"").status, 401);
    let closed = [("host", &*format!("8001-{}.k.test", made.id)), ("e2b-traffic-access-token", traffic)];
    assert!(router.request("GET", "/", &closed, b"").message().contains("port is not open"));
    websocket(&router, &made);
}

/// Speaks in both directions after an upgrade.
fn websocket(router: &Router, made: &Made) {
    let mut stream = router.connect();
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
fn a_worker_may_be_at_a_socket() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("worker");
    let mut one = worker("one", "");
    one.kill();
    let mut process = Command::new(env!("CARGO_BIN_EXE_kennel-server"))
        .args(["serve", "--config"])
        .arg(one.place.path().join("serve.toml"))
        .arg("--state")
        .arg(one.state())
        .arg("--listen")
        .arg(format!("unix:{}", socket.display()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::server::wait_until("it listens", || socket.exists());
    let router = Router::start(&format!("unix:{}", socket.display()), None, &[]);
    let made = router.create();
    assert_eq!(router.run(&made, "echo here").0, "here\n");
    process.kill().unwrap();
    process.wait().unwrap();
    one.start_again();
}

#[test]
fn workers_and_routers_may_speak_tls() {
    let place = tempfile::tempdir().unwrap();
    let [certificate, key] =
        ["certificate.pem", "key.pem"].map(|name| place.path().join(name).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let one = worker("one", &format!("tls = {{ certificate = '{certificate}', key = '{key}' }}"));
    let port = one.address.rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}");
    let flags = ["--certificate", &*certificate, "--key", &*key];
    let stranger = Router::start(&url, None, &flags);
    assert!(stranger.workers_over_tls(&certificate)[0]["reason"].as_str().unwrap().contains("certificate"));
    let router = Router::trusting(&certificate, &url, &flags);
    let seen = router.workers_over_tls(&certificate);
    assert_eq!(seen[0]["state"], "alive", "{seen:?}");
}

#[test]
fn an_open_address_needs_tls_or_insecure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
    let output =
        command.args(["route", "--workers", "http://a:1", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("keys would pass in the clear"), "{words}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel-server"));
    let output = command.args(["route", "--workers", "a:1"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("--workers: \"a:1\": http://HOST:PORT, "), "{words}");
}

#[test]
fn a_sandbox_may_be_named_twice_as_by_some_clients() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let made = router.create();
    let headers = [("x-api-key", "key-of-me"), ("e2b-sandbox-id", &*made.id)];
    let path = format!("/sandboxes/{}", made.id);
    assert_eq!(router.request("GET", &path, &headers, b"").status, 200);
}
