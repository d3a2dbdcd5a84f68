//! Much at once, and clients that take their time: others are served, and what is promised holds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::server::{Answer, Made, STREAM, Server, events, number, output, send, start, wait_until};
use crate::streams::hosts;

fn open(server: &Server, made: &Made, command: &str) -> TcpStream {
    let mut stream = server.connect();
    let headers = [("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", STREAM)];
    send(&mut stream, "POST", "/process.Process/Start", &headers, &start(command));
    stream
}

#[test]
fn readers_of_a_few_bytes_a_second_disturb_nobody_and_lose_nothing() {
    let server = Server::start("hosts = 1");
    let (slow, other) = (server.create(), server.create());
    let streams: Vec<_> = (0..20).map(|_| open(&server, &slow, "seq 1 200000")).collect();
    let end = Instant::now() + Duration::from_secs(3);
    let (mut read, mut longest) = (vec![Vec::new(); streams.len()], Duration::ZERO);
    while Instant::now() < end {
        for (mut stream, read) in streams.iter().zip(&mut read) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            read.push(byte[0]);
        }
        for made in [&slow, &other] {
            let begun = Instant::now();
            assert_eq!(server.run(made, "seq 1 20000 | tail -1").0, "20000\n");
            longest = longest.max(begun.elapsed());
        }
        sleep(Duration::from_millis(200));
    }
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    for (mut stream, mut all) in streams.into_iter().zip(read) {
        stream.read_to_end(&mut all).unwrap();
        let found = events(&Answer::parse(&all).body);
        assert!(output(&found, "stdout").lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=200_000));
        assert_eq!(found.last(), Some(&json!({})));
    }
}

#[test]
fn clients_that_stop_halfway_disturb_nobody_and_leave_nothing() {
    let server = Server::start("hosts = 1");
    let (mine, other) = (server.create(), server.create());
    let head = |path: &str, kind: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: k\r\nx-api-key: {}\r\ne2b-sandbox-id: {}\r\nx-access-token: {}\r\n\
             Content-Type: {kind}\r\n{more}\r\n",
            server.key, mine.id, mine.token
        )
    };
    let (octets, json) = ("application/octet-stream", "application/json");
    let mut endless = head("/process.Process/Start", STREAM, "Transfer-Encoding: chunked\r\n").into_bytes();
    let body = start("yes & yes");
    endless.extend(format!("{:x}\r\n", body.len()).as_bytes());
    endless.extend([&body[..], b"\r\n0\r\n\r\n"].concat());
    let halves = [
        b"GET /health HTTP/1.1\r\nHost: k\r\nx".to_vec(),
        head("/v2/sandboxes", json, "Content-Length: 9\r\n").into_bytes(),
        [head("/files?path=half", octets, "Content-Length: 99\r\n").as_bytes(), b"half"].concat(),
        [head("/files?path=half", octets, "Transfer-Encoding: chunked\r\n").as_bytes(), b"ff\r\nhalf"]
            .concat(),
        [head("/process.Process/Start", STREAM, "Content-Length: 99\r\n").as_bytes(), b"\0\0\0\0"].concat(),
        [head("/process.Process/StreamInput", STREAM, "Content-Length: 99\r\n").as_bytes(), b"\0\0\0"]
            .concat(),
        [head("/filesystem.Filesystem/Stat", json, "Content-Length: 99\r\n").as_bytes(), b"{"].concat(),
        endless,
    ];
    let mut open = Vec::new();
    for _ in 0..40 {
        for half in &halves {
            let mut stream = server.connect();
            stream.write_all(half).unwrap();
            open.push(stream);
        }
    }
    for number in 0..20 {
        let begun = Instant::now();
        assert_eq!(server.run(&other, &format!("echo {number}")).0, format!("{number}\n"));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    drop(open);
    wait_until("nothing is left of half an upload", || server.run(&mine, "ls -A").0.is_empty());
    server.ask("DELETE", &format!("/sandboxes/{}", mine.id), &Value::Null);
    wait_until("its commands are gone", || {
        std::fs::read_dir(server.state().join("sandboxes")).unwrap().count() == 1
    });
    assert_eq!(server.run(&other, "echo here").0, "here\n");
}

#[test]
fn a_drain_under_load_cuts_nothing_off_and_takes_nothing_new() {
    let mut server = Server::start("admit_wait = '5s'\nsandboxes = 12");
    let drains = |server: &Server| server.request("GET", "/readyz", &[], b"").status == 503;
    thread::scope(|scope| {
        let server = &server;
        let loads: Vec<_> = (0..8).map(|_| scope.spawn(move || load(server))).collect();
        // Those that wait for room when the drain begins are refused, too.
        sleep(Duration::from_millis(1200));
        server.signal(Signal::SIGTERM);
        wait_until("it says so", || drains(server));
        for _ in 0..5 {
            let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")), "{}", answer.text());
        }
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    assert!(server.ends());
    wait_until("the hosts have ended", || hosts(&server).is_empty());
    assert_eq!(std::fs::read_dir(server.state().join("sandboxes")).unwrap().count(), 0);
}

/// Runs a long command, and makes sandboxes beside it until that is refused.
fn load(server: &Server) {
    let made = server.create();
    let stream = open(server, &made, "for i in $(seq 1 25); do seq 1 1000; sleep 0.1; done; exit 7");
    loop {
        let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
        match answer.status {
            201 => {
                let one = Made::of(&answer);
                assert_eq!(server.run(&one, "echo one").0, "one\n");
                let path = format!("/sandboxes/{}", one.id);
                assert_eq!(server.ask("DELETE", &path, &Value::Null).status, 204);
            }
            503 if answer.message().contains("the worker is ending") => break,
            status => assert_eq!(status, 503, "{}", answer.text()),
        }
    }
    let found = events(&Answer::read(stream).body);
    assert_eq!(output(&found, "stdout").lines().count(), 25_000);
    assert_eq!(found[found.len() - 2]["event"]["end"]["exitCode"], 7, "{:?}", found.last());
    assert_eq!(server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null).status, 204);
}

/// How many sandboxes are renewed in the moment of their end. KENNEL_RENEWALS=1000 makes it long.
const RENEWALS: usize = 64;

/// How many at once.
const AT_ONCE: usize = 16;

#[test]
fn a_renewal_comes_before_the_end_or_too_late() {
    let server = Server::start("");
    let (mut renewed, mut ended) = (0, 0);
    let wanted = number("KENNEL_RENEWALS", RENEWALS);
    for first in (0..10 * wanted).step_by(AT_ONCE) {
        if first >= wanted && renewed > 0 && ended > 0 {
            break;
        }
        thread::scope(|scope| {
            let server = &server;
            let all: Vec<_> =
                (first..first + AT_ONCE).map(|place| scope.spawn(move || renew(server, place))).collect();
            for one in all {
                if one.join().unwrap() { renewed += 1 } else { ended += 1 }
            }
        });
    }
    assert!(renewed > 0 && ended > 0, "no race: {renewed} were renewed, {ended} ended");
    let listed = server.ask("GET", "/v2/sandboxes", &Value::Null);
    assert_eq!(listed.json(), json!([]), "none lives on");
}

/// Renews one within 4 ms around its deadline. Returns whether that was in time.
fn renew(server: &Server, place: usize) -> bool {
    let made = server.create_from(&json!({ "timeout": 1 }));
    let path = format!("/sandboxes/{}", made.id);
    let detail = server.ask("GET", &path, &Value::Null).json();
    // On a busy machine it may have ended already.
    let Some(deadline) = detail["endAt"].as_str() else { return false };
    let deadline = humantime::parse_rfc3339(deadline).unwrap();
    let moment = deadline - Duration::from_millis(4)
        + Duration::from_micros(500) * u32::try_from(place % AT_ONCE).unwrap();
    sleep(moment.duration_since(SystemTime::now()).unwrap_or_default());
    let answer = server.ask("POST", &format!("{path}/timeout"), &json!({ "timeout": 60 }));
    assert!(matches!(answer.status, 204 | 404), "{}", answer.text());
    let is_renewed = answer.status == 204;
    sleep(Duration::from_millis(300));
    let answer = server.ask("GET", &path, &Value::Null);
    let health = [("e2b-sandbox-id", &*made.id)];
    let health = server.request("GET", "/health", &health, b"").status;
    if is_renewed {
        assert_eq!((answer.status, health), (200, 204), "it was renewed");
        assert_eq!(server.run(&made, "echo here").0, "here\n");
        assert_eq!(server.ask("DELETE", &path, &Value::Null).status, 204);
    } else {
        assert_eq!((answer.status, health), (404, 502), "it was refused");
        assert_eq!(answer.header("x-kennel-reason"), Some("expired"));
    }
    is_renewed
}

#[test]
fn a_full_disk_refuses_what_is_new_and_harms_nothing() {
    let server = Server::on_disk_of("4m");
    let (made, other) = (server.create(), server.create());
    let octets = "application/octet-stream";
    let put = |path: &str, size: usize| {
        server.of(&made, "POST", &format!("/files?path={path}"), octets, &vec![b'x'; size])
    };
    assert_eq!(put("kept", 100_000).status, 200);
    let answer = put("kept", 8 << 20);
    assert_eq!(answer.status, 507, "{}", answer.text());
    assert!(answer.message().contains("/home/user/kept: No space left on device"), "{}", answer.message());
    assert_eq!(server.run(&made, "wc -c < kept; ls -A").0, "100000\nkept\n", "it is as it was");
    server.run(&other, "head -c 8M /dev/zero > ballast");

    let path = format!("/sandboxes/{}", made.id);
    let told = "the server's state directory: No space left on device (os error 28)";
    for (path, body) in [
        ("/v2/sandboxes".to_owned(), json!({})),
        (format!("{path}/timeout"), json!({ "timeout": 3600 })),
        (format!("{path}/pause"), json!({ "memory": false })),
    ] {
        for _ in 0..3 {
            let answer = server.ask("POST", &path, &body);
            assert_eq!((answer.status, answer.message().as_str()), (507, told), "{path}");
        }
    }
    let listed = server.ask("GET", "/v2/sandboxes", &Value::Null);
    assert_eq!(listed.json().as_array().unwrap().len(), 2);
    assert_eq!(server.run(&made, "cat kept | wc -c").0, "100000\n");
    assert_eq!(server.directories(), 2, "nothing is left of those that were refused");

    server.run(&other, "rm ballast");
    assert_eq!(server.ask("POST", &format!("{path}/timeout"), &json!({ "timeout": 3600 })).status, 204);
    assert_eq!(server.ask("POST", &format!("{path}/pause"), &json!({ "memory": false })).status, 204);
    assert_eq!(server.ask("POST", &format!("{path}/connect"), &json!({})).status, 201);
    assert_eq!(server.run(&made, "cat kept | wc -c").0, "100000\n");
    assert_eq!(server.run(&server.create(), "echo new").0, "new\n");
}
