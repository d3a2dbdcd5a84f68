//! `Upgrade` of plain HTTP: WebSockets and the like work, within the limits and with the records of every
//! connection, and nothing else comes out of the switch.

use std::{
    fs,
    io::{self, BufReader, Read, Write},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Net, Server, at, origin, upstream::Upstream};
use crate::support::patient;

/// A server that switches to what the target names, and then echoes until the client ends, and says goodbye.
struct Switching {
    server: Server,
    seen: Arc<Mutex<Vec<origin::Seen>>>,
}

impl Switching {
    fn new() -> Self {
        let seen: Arc<Mutex<Vec<origin::Seen>>> = Arc::default();
        let log = Arc::clone(&seen);
        let server = Server::start(move |stream, connection| {
            let mut reader = BufReader::new(stream);
            while let Ok(Some(request)) = origin::read(&mut reader, connection) {
                log.lock().unwrap().push(request.clone());
                let (answer, switches) = match request.target() {
                    "/no" => (origin::answer(200, b"no upgrade\n"), false),
                    "/later" => (origin::answer(426, b"not now\n"), false),
                    "/nothing" => (b"HTTP/1.1 101 Words\r\n\r\n".to_vec(), true),
                    target => {
                        let to = target.trim_start_matches('/');
                        let head = format!(
                            "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: {to}\r\n\r\nhello;"
                        );
                        (head.into_bytes(), true)
                    }
                };
                if reader.get_mut().write_all(&answer).is_err() {
                    return;
                }
                if switches {
                    return drop(echo(reader));
                }
            }
        });
        Self { server, seen }
    }

    fn to(&self) -> String {
        at("one.test", self.server.port)
    }

    fn seen(&self) -> Vec<origin::Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn echo(mut reader: BufReader<std::net::TcpStream>) -> io::Result<()> {
    let mut writer = reader.get_ref().try_clone()?;
    let mut chunk = [0; 8192];
    loop {
        match reader.read(&mut chunk)? {
            0 => return writer.write_all(b";bye"),
            count => writer.write_all(&chunk[..count])?,
        }
    }
}

/// The head of a request that offers these protocols.
fn asking(to: &str, path: &str, protocols: &str, more: &str) -> String {
    format!(
        ">GET http://{to}/{path} HTTP/1.1\\r\\nHost: {to}\\r\\nConnection: keep-alive, Upgrade\\r\\nUpgrade: {protocols}\\r\\n{more}\\r\\n"
    )
}

#[test]
fn a_connection_switches_and_both_directions_end_by_themselves() {
    let net = Net::new();
    let origin = Switching::new();
    let to = origin.to();
    let flags = net.flags(&[&to], &[]);
    let key = "Sec-WebSocket-Key: x\\r\\n";
    // The last one sends ahead of the answer.
    let ahead = asking(&to, "tcp", "tcp", "") + "early ";
    let heard = net.talk(
        &flags,
        &[
            &[
                &asking(&to, "websocket", "websocket", key),
                "<hello;",
                ">\\0\\xffone",
                "<one",
                ">two",
                "<two",
                "!",
                "<",
            ],
            &[&asking(&to, "spdy/3.1", "tcp, SPDY/3.1", ""), "<hello;", ">x", "<x", "!", "<"],
            &[&ahead, "<early ", ">late", "!", "<"],
        ],
    );
    for (heard, protocol, said) in [
        (&heard[0], "websocket", "one"),
        (&heard[1], "spdy/3.1", "hello;x;bye"),
        (&heard[2], "tcp", "hello;early late;bye"),
    ] {
        assert!(heard.starts_with("HTTP/1.1 101 UPGRADED\n"), "{heard}");
        let lower = heard.to_lowercase();
        assert!(
            lower.contains(&format!("upgrade: {protocol}\n")) && lower.contains("connection: upgrade\n"),
            "{heard}"
        );
        assert!(heard.contains(said) && heard.ends_with(";bye\n[end]\n"), "{heard}");
    }
    let seen = origin.seen();
    let websocket = seen.iter().find(|seen| seen.target() == "/websocket").unwrap();
    assert_eq!(
        (websocket.header("sec-websocket-key").as_str(), websocket.header("connection").as_str()),
        ("x", "Upgrade")
    );
    assert_eq!(websocket.header("host"), to);
}

/// As `docker exec` does.
#[test]
fn the_content_of_the_request_is_sent_before_the_switch() {
    let net = Net::new();
    let origin = Switching::new();
    let to = origin.to();
    let post = |more: &str| asking(&to, "tcp", "tcp", more).replacen("GET", "POST", 1);
    let heard = net.talk(
        &net.flags(&[&to], &[]),
        &[
            &[&(post("Content-Length: 4\\r\\n") + "body"), "<hello;", ">x", "!", "<"],
            &[
                &(post("Transfer-Encoding: chunked\\r\\n") + "4\\r\\nbody\\r\\n0\\r\\n\\r\\n"),
                "<hello;",
                ">x",
                "!",
                "<",
            ],
        ],
    );
    assert!(heard.iter().all(|heard| heard.ends_with("hello;x;bye\n[end]\n")), "{heard:?}");
    assert!(origin.seen().iter().all(|seen| seen.body == b"body"), "{:?}", origin.seen());
}

#[test]
fn a_switch_that_was_not_asked_for_is_refused() {
    let net = Net::new();
    let origin = Switching::new();
    let to = origin.to();
    let plain = |path: &str| {
        format!(">GET http://{to}/{path} HTTP/1.1\\r\\nHost: {to}\\r\\nConnection: close\\r\\n\\r\\n")
    };
    let old = asking(&to, "tcp", "tcp", "Connection: close\\r\\n").replacen("HTTP/1.1", "HTTP/1.0", 1);
    let requests = [
        asking(&to, "h2c", "websocket", "Connection: close\\r\\n"),
        asking(&to, "tcp, h2c", "tcp", "Connection: close\\r\\n").replacen("/tcp, h2c", "/tcp,h2c", 1),
        asking(&to, "nothing", "tcp", "Connection: close\\r\\n"),
        // No offer, or none that is passed on.
        plain("tcp"),
        asking(&to, "h2c", "h2c", "Connection: HTTP2-Settings, close\\r\\nHTTP2-Settings: AAMA\\r\\n"),
        asking(&to, "HTTP/2.0", "HTTP/2.0", "Connection: close\\r\\n"),
        old,
    ];
    let steps: Vec<[&str; 2]> = requests.iter().map(|request| [request.as_str(), "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 2]>::as_slice).collect();
    let heard = net.talk(&net.flags(&[&to], &[]), &steps);
    for (request, heard) in requests.iter().zip(&heard) {
        assert!(heard.contains(" 502 ") && !heard.contains("hello"), "{request}: {heard}");
        assert!(heard.contains("x-kennel-error: unreachable"), "{request}: {heard}");
    }
    for seen in origin.seen() {
        let is_offered = ["websocket", "tcp", ""].contains(&seen.header("upgrade").as_str());
        assert!(is_offered && seen.header("http2-settings").is_empty(), "{seen:?}");
    }
}

#[test]
fn without_a_switch_the_next_request_is_decided_by_itself() {
    let net = Net::new();
    let (origin, bad) = (Switching::new(), origin::Origin::named("bad"));
    let (to, evil) = (origin.to(), at("bad.test", bad.port()));
    let get = |to: &str, more: &str| format!("GET http://{to}/no HTTP/1.1\\r\\nHost: {to}\\r\\n{more}\\r\\n");
    for path in ["no", "later"] {
        let ahead = asking(&to, path, "tcp", "") + &get(&evil, "") + &get(&to, "Connection: close\\r\\n");
        let heard = net.talk(&net.flags(&[&to], &[]), &[&[&ahead, "<"]]).remove(0);
        let statuses: Vec<&str> = heard.split("HTTP/1.1 ").skip(1).map(|part| &part[..3]).collect();
        assert_eq!(statuses[1..], ["403", "200"], "{heard}");
        assert!(!heard.to_lowercase().contains("upgrade:"), "{heard}");
    }
    assert!(bad.is_untouched());
}

#[test]
fn an_upstream_proxy_is_no_party_of_the_switch() {
    let net = Net::new();
    let origin = Switching::new();
    let upstream = Upstream::to(origin.server.port);
    let flags = net.strict(&["one.test:80"], &["--upstream", &upstream.url()]);
    let heard =
        net.talk(&flags, &[&[&asking("one.test", "tcp", "tcp", ""), "<hello;", ">x", "!", "<"]]).remove(0);
    assert!(heard.ends_with("hello;x;bye\n[end]\n"), "{heard}");
    assert_eq!(upstream.lines(), ["CONNECT one.test:80 HTTP/1.1"]);
    assert_eq!(origin.seen().iter().map(|seen| seen.line.clone()).collect::<Vec<_>>(), ["GET /tcp HTTP/1.1"]);
}

#[test]
fn limits_and_records_hold_after_the_switch() {
    let net = Net::new();
    let origin = Switching::new();
    let to = origin.to();
    let file = net.path().join("limits.toml");
    let log = format!("{}.audit", net.path().display());
    let flags = |limits: &str| {
        fs::write(&file, format!("[network.limits]\n{limits}\n")).unwrap();
        net.flags(&[&to], &["--policy", file.to_str().unwrap(), "--audit", &log])
    };
    let head = asking(&to, "tcp", "tcp", "");
    let heard = net.talk(&flags("bytes = \"100K\""), &[&[&head, "<hello;", "#300000", "!", "<"]]).remove(0);
    assert!(heard.starts_with("HTTP/1.1 101 ") && !heard.contains(";bye"), "cut off: {} bytes", heard.len());
    let begun = Instant::now();
    let heard = net.talk(&flags("idle_time = \"1s\""), &[&[&head, "<hello;", "<"]]).remove(0);
    assert!(
        heard.ends_with("[ECONNRESET]\n") && begun.elapsed() < patient(Duration::from_secs(12)),
        "{heard}"
    );
    let heard = net.talk(&flags(""), &[&[&head, "<hello;", "#5000", "!", "<"]]).remove(0);
    assert!(heard.contains(";bye"), "{heard}");
    let text = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let egress: Vec<Value> = lines.filter(|line| line["event"] == "egress").collect();
    assert_eq!(egress.len(), 3, "{text}");
    let last = &egress[2];
    let (up, down) = (last["bytes_up"].as_u64().unwrap(), last["bytes_down"].as_u64().unwrap());
    // Each byte once: the request and its echo, and the two heads.
    assert!((5000..5400).contains(&up) && (5010..5400).contains(&down), "{last}");
    assert_eq!((&last["decision"], &last["address"]), (&"allowed".into(), &"127.0.0.1".into()));
}
