//! CONNECT, byte by byte.

use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::mpsc,
    time::Duration,
};

use super::{Net, PROXY, Server, at};

use crate::support::patient;

/// The steps that open a tunnel.
fn connect(to: &str) -> String {
    format!(">CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n")
}

const YES: &str = "HTTP/1.1 200 Connection established";

#[test]
fn bytes_go_both_ways_and_the_answer_is_plain() {
    let net = Net::new();
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let heard = net.talk(
        &net.flags(&[&to], &[]),
        &[&[&connect(&to), "<\\r\\n\\r\\n", ">one", "<one", ">two", "<two", "!", "<"]],
    );
    let heard = &heard[0];
    assert!(
        heard.starts_with(&format!("{YES}\r\n").replace("\r\n", "\n")) || heard.starts_with(YES),
        "{heard}"
    );
    assert!(heard.ends_with("onetwo\n[end]\n"), "{heard}");
    // RFC 9110, 9.3.6: neither a length nor an encoding.
    let lower = heard.to_lowercase();
    assert!(!lower.contains("content-length") && !lower.contains("transfer-encoding"), "{heard}");
}

#[test]
fn bytes_sent_with_the_request_are_passed_on() {
    let net = Net::new();
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let request = format!("{}early", connect(&to));
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&request, "!", "<"]]);
    assert!(heard[0].starts_with(YES) && heard[0].ends_with("early\n[end]\n"), "{heard:?}");
}

/// Bytes after it would count as content, and be missing in the tunnel.
#[test]
fn a_connect_with_content_is_refused() {
    let net = Net::new();
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let with = |header: &str| format!(">CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n{header}\\r\\n\\r\\n");
    let requests = ["Content-Length: 3", "Transfer-Encoding: chunked", "Content-Length: 0"].map(with);
    let talks = requests.each_ref().map(|request| [request, "<\\r\\n\\r\\n", ">one", "!", "<"]);
    let heard = net.talk(&net.flags(&[&to], &[]), &talks.each_ref().map(|steps| &steps[..]));
    for refused in &heard[..2] {
        assert!(
            refused.starts_with("HTTP/1.1 400 ")
                && refused.contains("a CONNECT request must not have content"),
            "{refused}"
        );
    }
    assert!(heard[2].starts_with(YES) && heard[2].ends_with("one\n[end]\n"), "{heard:?}");
}

#[test]
fn http_1_0_and_odd_hosts_are_served() {
    let net = Net::new();
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let old = format!(">CONNECT {to} HTTP/1.0\\r\\n\\r\\n");
    let without_host = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
    let other_host = format!(">CONNECT {to} HTTP/1.1\\r\\nHost: other.test:1\\r\\n\\r\\n");
    let steps = |request| [request, "<\\r\\n\\r\\n", ">x", "!", "<"];
    let heard =
        net.talk(&net.flags(&[&to], &[]), &[&steps(&old), &steps(&without_host), &steps(&other_host)]);
    for heard in &heard {
        assert!(heard.contains(" 200 Connection established") && heard.ends_with("x\n[end]\n"), "{heard}");
    }
    assert_eq!(echo.accepted(), 3);
    assert_eq!(net.names.asked().into_iter().filter(|name| name != "echo.test").count(), 0);
}

#[test]
fn the_end_of_a_client_is_passed_on_and_the_answer_still_comes() {
    let net = Net::new();
    let server = Server::start(|mut stream, _| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        std::thread::sleep(Duration::from_millis(100));
        let _ = write!(stream, "{} bytes", all.len());
    });
    let to = at("late.test", server.port);
    let steps = [&connect(&to), "<\\r\\n\\r\\n", "#100000", "!", "<"];
    let heard = net.talk(&net.flags(&[&to], &[]), &[&steps]);
    assert!(heard[0].ends_with("100000 bytes\n[end]\n"), "{heard:?}");
}

#[test]
fn the_end_of_a_server_is_passed_on_and_the_client_can_still_send() {
    let net = Net::new();
    let (said, hears) = mpsc::channel();
    let server = Server::start(move |mut stream, _| {
        let _ = stream.write_all(b"bye");
        let _ = stream.shutdown(Shutdown::Write);
        let mut all = Vec::new();
        let read = stream.read_to_end(&mut all);
        let _ = said.send(read.map(|_| all).map_err(|error| error.kind()));
    });
    let to = at("half.test", server.port);
    let steps = [&connect(&to), "<\\r\\n\\r\\n", "<", ">late", "~100", ">r", "!", "~300"];
    let heard = net.talk(&net.flags(&[&to], &[]), &[&steps]);
    assert!(heard[0].ends_with("bye\n[end]\n"), "{heard:?}");
    assert_eq!(hears.recv_timeout(patient(Duration::from_secs(5))).unwrap(), Ok(b"later".to_vec()));
}

#[test]
fn a_server_that_sends_first_is_heard() {
    let net = Net::new();
    let server = Server::start(|mut stream, _| drop(stream.write_all(b"220 hello\r\n")));
    let to = at("mail.test", server.port);
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&connect(&to), "<220 hello"]]);
    assert!(heard[0].starts_with(YES), "{heard:?}");
}

#[test]
fn a_second_request_inside_a_tunnel_goes_to_the_peer() {
    let net = Net::new();
    let (peer, other) = (Server::echo(), Server::echo());
    let (to, elsewhere) = (at("peer.test", peer.port), at("other.test", other.port));
    let inner = connect(&elsewhere);
    let both = format!("{}{}", connect(&to), &inner[1..]);
    let heard = net.talk(
        &net.flags(&[&to, &elsewhere], &[]),
        &[&[&connect(&to), "<\\r\\n\\r\\n", &inner, "!", "<"], &[&both, "!", "<"]],
    );
    for heard in heard {
        assert!(heard.contains(&format!("CONNECT {elsewhere} HTTP/1.1")), "echoed, not obeyed: {heard}");
        assert_eq!(heard.matches(" 200 ").count(), 1, "{heard}");
    }
    assert_eq!((peer.accepted(), other.accepted()), (2, 0));
}

#[test]
fn a_peer_that_is_the_proxy_itself_is_not_reached() {
    let net = Net::new();
    // 127.0.0.1 means the host's loopback, where nobody listens on that port; not the sandbox's.
    let free = std::net::TcpListener::bind(PROXY).is_ok();
    crate::support::require!(free, "port 3128 of the host, unused");
    let heard = net.talk(&net.flags(&[PROXY], &[]), &[&[&connect(PROXY), "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 502 "), "{heard:?}");
}
