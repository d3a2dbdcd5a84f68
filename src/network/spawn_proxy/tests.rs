//! Clients over loopback and over a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::network::proxy::Proxy;
use crate::network::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers each connection with what it reads until the end of it.
async fn echo() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("its number");
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.into_split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    (at, task)
}

/// An address where nobody listens.
fn closed() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

/// Where the clients of a proxy connect.
enum Door {
    Tcp(SocketAddr),
    Unix(tempfile::TempDir),
}

impl Door {
    /// One of each kind.
    fn both() -> [Self; 2] {
        [Self::Tcp(closed()), Self::Unix(tempfile::tempdir().expect("a directory"))]
    }

    fn open(&self, proxy: &SpawnProxy) {
        match self {
            Self::Tcp(at) => proxy.serve(std::net::TcpListener::bind(at).expect("free")),
            Self::Unix(dir) => proxy.serve(UnixListener::bind(dir.path().join("s")).expect("free")),
        }
        .expect("served");
    }

    async fn client(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(at) => Stream::Tcp(TcpStream::connect(at).await?),
            Self::Unix(dir) => Stream::Unix(UnixStream::connect(dir.path().join("s")).await?),
        })
    }

    /// Sends these bytes and reads until the end.
    async fn says(&self, bytes: &str) -> String {
        let mut client = self.client().await.expect("a connection");
        client.write_all(bytes.as_bytes()).await.expect("sent");
        rest(&mut client).await
    }
}

/// What comes until the end, which may be a reset.
async fn rest(client: &mut Stream) -> String {
    let mut text = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut text)).await.expect("in time");
    String::from_utf8(text).expect("text")
}

/// Reads exactly this.
async fn expect(client: &mut Stream, text: &str) {
    let mut bytes = vec![0; text.len()];
    timeout(PATIENCE, client.read_exact(&mut bytes)).await.expect("in time").expect("enough");
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

const ESTABLISHED: &str = "HTTP/1.1 200 Connection established\r\n";

/// Opens a tunnel.
async fn tunnel(door: &Door, to: SocketAddr) -> Stream {
    let mut client = door.client().await.expect("a connection");
    client.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await.expect("sent");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(client.read_u8().await.expect("a head")));
    }
    assert!(head.starts_with(ESTABLISHED), "{head}");
    client
}

fn proxy(hosts: &[SocketAddr]) -> SpawnProxy {
    SpawnProxy::new(HostPolicy::new(hosts.iter().map(ToString::to_string)).expect("hosts"), "test")
}

#[tokio::test]
async fn each_request_has_the_status_of_the_contract() {
    let ((echo, _task), nobody) = (echo().await, closed());
    for door in Door::both() {
        let proxy = proxy(&[echo, nobody]).connect_only();
        door.open(&proxy);
        let open = format!("CONNECT {echo} HTTP/1.1\r\nHost: x\r\n\r\n");
        for (request, status, header, body) in [
            (&*open, "200 Connection established", "", ""),
            (
                "CONNECT other.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
                "403",
                "x-kennel-deny: not-allowed",
                "manifest",
            ),
            (
                "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
                "403",
                "x-kennel-deny: not-allowed",
                "manifest",
            ),
            (
                "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n",
                "403",
                "x-kennel-deny: not-allowed",
                "list is",
            ),
            (
                "CONNECT 127.0.0.1 HTTP/1.1\r\nHost: x\r\n\r\n",
                "400",
                "x-kennel-deny: malformed",
                "port is missing",
            ),
            ("CONNECT 0x7f.1:80 HTTP/1.1\r\nHost: x\r\n\r\n", "400", "x-kennel-deny: malformed", "name"),
            (
                &format!("CONNECT {nobody} HTTP/1.1\r\nHost: x\r\n\r\n"),
                "502",
                "x-kennel-error: unreachable",
                "refused",
            ),
            (
                &format!("GET http://{echo}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
                "405",
                "x-kennel-deny: method",
                "CONNECT",
            ),
            (
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
                "405",
                "allow: CONNECT\r\n",
                "only CONNECT",
            ),
        ] {
            let request = request.replacen("Host: x\r\n", "Host: x\r\nConnection: close\r\n", 1);
            let mut client = door.client().await.expect("a connection");
            client.write_all(request.as_bytes()).await.expect("sent");
            client.end();
            let answer = rest(&mut client).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            assert!(answer.contains(header) && answer.contains(body), "{request}: {answer}");
            assert!(!answer.contains("--allow") && !answer.contains("network.allow"), "{answer}");
        }
        let answer = door.says("\u{5}\u{1}\0").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "SOCKS is not served: {answer}");
        proxy.close().await;
    }
}

#[tokio::test]
async fn bytes_pass_both_ways_also_those_that_came_with_the_head() {
    let (echo, _task) = echo().await;
    for door in Door::both() {
        let proxy = proxy(&[echo]);
        door.open(&proxy);
        let mut client = door.client().await.expect("a connection");
        client.write_all(format!("CONNECT {echo} HTTP/1.1\r\n\r\nearly").as_bytes()).await.expect("sent");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(client.read_u8().await.expect("a head")));
        }
        expect(&mut client, "early").await;
        client.write_all(b"more").await.expect("sent");
        expect(&mut client, "more").await;
        client.write_all(b"last").await.expect("sent");
        client.end();
        assert_eq!(rest(&mut client).await, "last", "the other direction goes on to its end");
        proxy.close().await;
    }
}

#[tokio::test]
async fn other_methods_are_forwarded_unless_only_connect_is_asked_for() {
    let origin = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = origin.local_addr().expect("its number");
    let door = Door::Tcp(closed());
    let proxy = proxy(&[at]);
    door.open(&proxy);
    let served = async {
        let (mut stream, _) = origin.accept().await.expect("the proxy");
        let mut head = [0; 1024];
        let count = stream.read(&mut head).await.expect("a request");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("sent");
        String::from_utf8_lossy(&head[..count]).into_owned()
    };
    let request = format!("GET http://{at}/x HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    let (seen, answer) = tokio::join!(served, door.says(&request));
    assert!(seen.starts_with("GET /x HTTP/1.1\r\n") && answer.ends_with("ok"), "{seen}{answer}");
}

#[tokio::test]
async fn closing_lets_what_is_open_end_and_accepts_nothing_new() {
    let (echo, _task) = echo().await;
    for door in Door::both() {
        let proxy = proxy(&[echo]);
        door.open(&proxy);
        let mut client = tunnel(&door, echo).await;
        // A client that keeps its connection for a next request holds nothing up.
        let mut kept = door.client().await.expect("a connection");
        kept.write_all(b"GET http://other.example/ HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
        expect(&mut kept, "HTTP/1.1 403 Forbidden\r\n").await;
        let closing = tokio::spawn(proxy.close());
        rest(&mut kept).await;
        client.write_all(b"still").await.expect("sent");
        expect(&mut client, "still").await;
        assert!(!closing.is_finished());
        // Where the kernel still accepts, nobody answers.
        if let Ok(mut late) = door.client().await {
            let _ = late.write_all(format!("CONNECT {echo} HTTP/1.1\r\n\r\n").as_bytes()).await;
            assert_eq!(rest(&mut late).await, "");
        }
        client.write_all(b"end").await.expect("sent");
        client.end();
        assert_eq!(rest(&mut client).await, "end");
        timeout(PATIENCE, closing).await.expect("in time").expect("closed");
    }
}

#[tokio::test]
async fn closing_within_a_limit_and_dropping_end_what_is_open() {
    let (echo, _task) = echo().await;
    for door in Door::both() {
        let limited = proxy(&[echo]);
        door.open(&limited);
        let mut client = tunnel(&door, echo).await;
        timeout(Duration::from_millis(50), limited.close()).await.expect_err("a tunnel is open");
        assert_eq!(rest(&mut client).await, "");
        if let Door::Unix(dir) = &door {
            std::fs::remove_file(dir.path().join("s")).expect("left");
        }
        let dropped = proxy(&[echo]);
        door.open(&dropped);
        let mut client = tunnel(&door, echo).await;
        drop(dropped);
        assert_eq!(rest(&mut client).await, "");
        assert!(door.client().await.is_err());
    }
}

/// The test runs itself again in a process that may open few descriptors.
#[tokio::test]
async fn clients_leave_the_program_most_of_its_descriptors() {
    const FEW: &str = "KENNEL_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(FEW).is_some() {
        let own = Arc::new(Gate::direct(proxy(&[]).settings));
        let slots = Proxy::new(&own, &Trail::new(None, Origin::default())).slots;
        return assert_eq!(slots.available_permits(), 64);
    }
    let name = std::thread::current().name().expect("that of the test").to_owned();
    let mut again = std::process::Command::new("/bin/sh");
    again.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("a path"));
    let output = again.args(["--exact", &name]).env(FEW, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn one_connection_more_than_the_limit_waits() {
    let (echo, _task) = echo().await;
    let limits = NetworkLimits { connections: Some(1), ..NetworkLimits::default() };
    let none = NetworkLimits { connections: Some(0), ..NetworkLimits::default() };
    for door in Door::both() {
        proxy(&[echo]).limits(&none).expect_err("no connection at all");
        let proxy = proxy(&[echo]).limits(&limits).expect("a limit");
        door.open(&proxy);
        let first = tunnel(&door, echo).await;
        let mut second = Box::pin(tunnel(&door, echo));
        assert!(timeout(Duration::from_millis(50), &mut second).await.is_err(), "the first is open");
        drop(first);
        timeout(PATIENCE, second).await.expect("a free slot");
    }
}

#[tokio::test]
async fn hostile_requests_are_answered_and_end() {
    let (echo, _task) = echo().await;
    let huge = format!("CONNECT {echo} HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("CONNECT {echo} HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    for door in Door::both() {
        let proxy = proxy(&[echo]);
        door.open(&proxy);
        for (request, statuses) in [
            ("\u{16}\u{3}\u{1}\u{2}\0 not TLS either\r\n\r\n", &["400"][..]),
            ("CONNECT\r\n\r\n", &["400"]),
            (
                "CONNECT a.example:1 HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                &["400"],
            ),
            ("CONNECT a.example:1 HTTP/9.9\r\n\r\n", &["400", "505"]),
            (&*huge, &["431", ""]),
            (&*many, &["431", ""]),
        ] {
            let mut client = door.client().await.expect("a connection");
            // The proxy may close before it has read everything.
            let _ = client.write_all(request.as_bytes()).await;
            client.end();
            let answer = rest(&mut client).await;
            let is_expected = |status: &&str| match *status {
                "" => answer.is_empty(),
                status => answer.starts_with(&format!("HTTP/1.1 {status}")),
            };
            assert!(statuses.iter().any(is_expected), "{:.40}: {answer}", request);
        }
        // And others are served.
        tunnel(&door, echo).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_ends() {
    for door in Door::both() {
        let proxy = proxy(&[]);
        door.open(&proxy);
        for part in ["", "CONNECT a.exam", "CONNECT a.example:443 HTTP/1.1\r\nHost: x"] {
            let mut client = door.client().await.expect("a connection");
            client.write_all(part.as_bytes()).await.expect("sent");
            let mut text = Vec::new();
            let _ = client.read_to_end(&mut text).await;
            let text = String::from_utf8_lossy(&text);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{part}: {text}");
        }
    }
}

#[tokio::test]
async fn lines_of_the_log_name_the_connector() {
    let (echo, _task) = echo().await;
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let door = Door::Tcp(closed());
    let proxy = proxy(&[echo]).audit(Audit::new(&log)).expect("a log");
    door.open(&proxy);
    door.says("CONNECT other.example:443 HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    tunnel(&door, echo).await.end();
    proxy.close().await;
    let text = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |key: &str| lines.iter().map(|line| line[key].as_str().unwrap_or("-")).collect::<Vec<_>>();
    assert_eq!(of("event"), ["egress", "egress"]);
    assert_eq!(of("decision"), ["denied", "allowed"]);
    assert_eq!(of("connector"), ["test", "test"]);
}

#[tokio::test]
async fn each_refusal_is_a_line_of_the_log_whoever_answers() {
    let long = format!("CONNECT a.example:1 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let requests: [(&[u8], bool); 9] = [
        (b"\x05\x01\x00", true),
        (b"\x05\x01\x02", false),
        (b"\x05\x01\x00\x05\x07\x00\x01\x7f\x00\x00\x01\x00\x50", false),
        (b"CONNECT\r\n\r\n", true),
        (b"CONNECT a.example:1 HTTP/1.1\r\nno header\r\n\r\n", true),
        (b"CONNECT evil%00.example:443 HTTP/1.1\r\n\r\n", true),
        (b"CONNECT \xff.example:443 HTTP/1.1\r\n\r\n", true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
        (long.as_bytes(), true),
    ];
    for (request, connect_only) in requests {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let mut proxy = proxy(&[]).audit(Audit::new(&log)).expect("a log");
        if connect_only {
            proxy = proxy.connect_only();
        }
        let door = Door::Unix(tempfile::tempdir().expect("a directory"));
        door.open(&proxy);
        let mut client = door.client().await.expect("a connection");
        // The proxy may close before it has read everything.
        let _ = client.write_all(request).await;
        let _ = client.read_to_end(&mut Vec::new()).await;
        // A client that is gone has asked for nothing.
        drop(door.client().await.expect("a connection"));
        proxy.close().await;
        let text = std::fs::read_to_string(&log).expect("a log");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let [line] = &lines[..] else {
            panic!("{}: {text}", request[..20.min(request.len())].escape_ascii())
        };
        assert_eq!([&line["decision"], &line["reason"]], ["denied", "malformed"]);
    }
}
