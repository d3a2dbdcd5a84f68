//! Each kind of failure of a request has its status, its header and its message.

use std::time::{Duration, Instant};

use super::{
    ClosedPort, Net, Origin, at,
    names::{NameServer, Reply},
};
use crate::support::{only_once, patient};

/// A request in absolute form, and CONNECT, for the same destination.
fn both(to: &str) -> [String; 2] {
    [
        format!(">GET http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n"),
        format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n"),
    ]
}

/// Has both conversations and checks both answers.
fn both_hear(net: &Net, flags: &[String], to: &str, status: &str, word: &str, body: &[&str]) {
    let [get, connect] = both(to);
    let heard = net.talk(flags, &[&[&get, "!", "<"], &[&connect, "!", "<"]]);
    for heard in heard {
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{to}: {heard}");
        let text = heard.replace('\r', "");
        assert!(text.contains(&format!("\n{word}\n")), "{to}: {heard}");
        let (_, said) = text.split_once("\n\n").unwrap();
        assert_eq!(said, [body, &["[end]\n"]].concat().join("\n"), "{to}");
    }
}

#[test]
fn not_on_the_list() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let lines = |list: &str| {
        [
            format!("kennel: {to}: not on the list of what is allowed"),
            format!("kennel: the allow list is: {list}"),
            format!("kennel: to allow it, run the sandbox with: --allow {to}"),
        ]
    };
    let word = "x-kennel-deny: not-allowed";
    for (allow, list) in [
        (&[][..], "nothing"),
        (&["other.test:443", "*.test:443"], "other.test:443, *.test:443"),
        (
            &["one.test:1", "sub.one.test:*", "10.0.0.0/8:80", "[fd00::/8]:*"],
            "one.test:1, sub.one.test:*, 10.0.0.0/8:80, [fd00::/8]:*",
        ),
    ] {
        let lines = lines(list);
        let body: Vec<&str> = lines.iter().map(String::as_str).collect();
        both_hear(&net, &net.flags(allow, &[]), &to, "403 Forbidden", word, &body);
    }
    assert!(origin.is_untouched() && net.names.asked().is_empty());
    // The advice works.
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&both(&to)[0], "!", "<"]]);
    assert!(heard[0].ends_with("one: /\n[end]\n"), "{heard:?}");
}

#[test]
fn denied_although_allowed() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    for rule in
        [to.clone(), "*.test:*".into(), "one.test:*".into(), format!("*:{}", origin.port()), "*:*".into()]
    {
        let line = format!("kennel: {to}: rule {rule} of the deny list refuses it");
        let flags = net.flags(&[&to, "*:*"], &["--deny", &rule]);
        both_hear(&net, &flags, &to, "403 Forbidden", "x-kennel-deny: denied", &[&line]);
    }
    assert!(net.names.asked().is_empty(), "denied by name, before it is looked up");
    // By its address, which appears only then.
    let line = format!("kennel: {to}: rule 127.0.0.0/8:* of the deny list refuses it");
    let flags = net.flags(&[&to], &["--deny", "127.0.0.0/8:*"]);
    both_hear(&net, &flags, &to, "403 Forbidden", "x-kennel-deny: denied", &[&line]);
    assert!(origin.is_untouched());
    // Another port is decided separately.
    let flags = net.flags(&[&to], &["--deny", "one.test:1", "--deny", "two.test:*"]);
    let heard = net.talk(&flags, &[&[&both(&to)[0], "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 200 "), "{heard:?}");
}

#[test]
fn leads_to_an_address_that_is_not_public() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let lines = [
        format!("kennel: {to}: resolves to 127.0.0.1, which is not a public address (loopback)"),
        "kennel: to allow it, run the sandbox with: --allow-address 127.0.0.1".to_owned(),
    ];
    let flags = net.strict(&[&to], &[]);
    both_hear(&net, &flags, &to, "403 Forbidden", "x-kennel-deny: address-blocked", &[&lines[0], &lines[1]]);
    assert!(origin.is_untouched());
    let flags = net.strict(&[&to], &["--allow-address", "127.0.0.1"]);
    let heard = net.talk(&flags, &[&[&both(&to)[0], "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 200 "), "{heard:?}");
}

#[test]
fn an_address_as_destination_needs_its_own_rule() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("127.0.0.1", origin.port());
    let lines = [
        format!("kennel: {to}: resolves to 127.0.0.1, which is not a public address (loopback)"),
        format!("kennel: to allow it, run the sandbox with: --allow {to}"),
    ];
    let flags = net.strict(&["*:*"], &[]);
    both_hear(&net, &flags, &to, "403 Forbidden", "x-kennel-deny: address-blocked", &[&lines[0], &lines[1]]);
    assert!(origin.is_untouched());
    let heard = net.talk(&net.strict(&[&to], &[]), &[&[&both(&to)[0], "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 200 "), "{heard:?}");
}

#[test]
fn ipv6_and_the_hosts_file() {
    let net = Net::new();
    let hello = |seen: &super::origin::Seen| super::answer(200, seen.header("host").as_bytes());
    let six = Origin::on("[::1]:0", hello);
    crate::support::require!(six.is_ok(), "an IPv6 loopback");
    let (six, four) = (six.unwrap(), Origin::answering(hello));
    let (to, local) = (at("[::1]", six.port()), at("localhost", four.port()));
    let flags = net.strict(&[&to, &local], &["--allow-address", "127.0.0.1", "--allow-address", "::1"]);
    let heard = net.talk(&flags, &[&[&both(&to)[0], "!", "<"], &[&both(&local)[0], "!", "<"]]);
    assert!(heard[0].ends_with(&format!("{to}\n[end]\n")), "{heard:?}");
    assert!(heard[1].ends_with(&format!("{local}\n[end]\n")), "{heard:?}");
    assert!(net.names.asked().is_empty());
    for (host, rule) in [("[::1]", "[::2]:*"), ("[0:0:0:0:0:0:0:1]", "127.0.0.1:*")] {
        let request = format!(">CONNECT {host}:{} HTTP/1.1\\r\\n\\r\\n", six.port());
        let heard = net.talk(&net.strict(&[rule], &[]), &[&[&request, "!", "<"]]);
        assert!(heard[0].contains(&format!("kennel: {to}: not on the list")), "{heard:?}");
    }
}

#[test]
fn a_method_that_is_not_served() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let trace = format!(">TRACE http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n");
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&trace, "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 405 Method Not Allowed"), "{heard:?}");
    assert!(
        heard[0].contains("x-kennel-deny: method") && heard[0].contains("allow: CONNECT, GET"),
        "{heard:?}"
    );
    assert!(origin.is_untouched());
}

#[test]
fn requests_that_are_not_for_a_proxy() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let requests = [
        ">GET / HTTP/1.1\\r\\nHost: one.test\\r\\n\\r\\n".to_owned(),
        format!(">GET https://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n"),
        format!(">GET ftp://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n"),
        ">CONNECT one.test HTTP/1.1\\r\\n\\r\\n".to_owned(),
        ">CONNECT one.test:0 HTTP/1.1\\r\\n\\r\\n".to_owned(),
        ">CONNECT one.test:99999 HTTP/1.1\\r\\n\\r\\n".to_owned(),
        format!(">CONNECT user@{to} HTTP/1.1\\r\\n\\r\\n"),
        format!(">GET http://user:word@{to}/ HTTP/1.1\\r\\n\\r\\n"),
        ">OPTIONS * HTTP/1.1\\r\\nHost: one.test\\r\\n\\r\\n".to_owned(),
        ">\\x16\\x03\\x01\\x02\\0\\x01\\0\\x01\\xfc\\x03\\x03".to_owned(),
        ">hello\\r\\n\\r\\n".to_owned(),
    ];
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    let heard = net.talk(&net.flags(&[&to, "one.test:*"], &[]), &steps);
    for (request, heard) in requests.iter().zip(heard) {
        assert!(heard.starts_with("HTTP/1.1 400 Bad Request"), "{request}: {heard}");
    }
    assert!(origin.is_untouched() && net.names.asked().is_empty());
}

#[test]
fn a_connect_to_a_url_is_malformed() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let request = format!(">CONNECT http://{to}/ HTTP/1.1\\r\\n\\r\\n");
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&request, "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 400 Bad Request"), "{heard:?}");
    assert!(origin.is_untouched());
}

#[test]
fn nobody_is_there() {
    let net = Net::new();
    let closed = ClosedPort::new();
    let to = at("one.test", closed.port);
    let line = format!("kennel: {to}: it cannot be reached: Connection refused");
    both_hear(&net, &net.flags(&[&to], &[]), &to, "502 Bad Gateway", "x-kennel-error: unreachable", &[&line]);
}

#[test]
fn a_name_that_nobody_knows() {
    let net = Net::with(NameServer::answering(|name, _| match name {
        "none.test" => Reply::NoSuchName,
        "empty.test" => Reply::Addresses(Vec::new()),
        _ => Reply::Failure,
    }));
    let flags = net.flags(&["*.test:80"], &[]);
    for (to, words) in [
        ("none.test:80", "its name does not resolve: it has no address"),
        ("empty.test:80", "its name does not resolve: it has no address"),
    ] {
        let line = format!("kennel: {to}: it cannot be reached: {words}");
        both_hear(&net, &flags, to, "502 Bad Gateway", "x-kennel-error: unreachable", &[&line]);
    }
    let [get, _] = both("broken.test:80");
    let heard = net.talk(&flags, &[&[&get, "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 502 Bad Gateway"), "{heard:?}");
    assert!(heard[0].contains("resolving its name"), "{heard:?}");
}

/// A listener with a full queue: connecting to it takes for ever.
struct Crowded {
    port: u16,
    _listener: std::net::TcpListener,
    _queue: Vec<std::net::TcpStream>,
}

impl Crowded {
    fn new() -> Self {
        use nix::sys::socket::{Backlog, listen};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let at = listener.local_addr().unwrap();
        let connect = || std::net::TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok();
        let queue: Vec<_> = std::iter::from_fn(connect).take(16).collect();
        assert!(queue.len() < 16, "the queue has an end");
        Self { port: at.port(), _listener: listener, _queue: queue }
    }
}

#[test]
fn timeouts() {
    only_once!();
    let net = Net::with(NameServer::answering(|name, _| match name {
        "silent.test" => Reply::Silence,
        _ => [127, 0, 0, 1].into(),
    }));
    let crowded = Crowded::new();
    let to = at("crowded.test", crowded.port);
    let flags = net.flags(&["silent.test:80", &to], &[]);
    // All at once, each in a process of its own.
    let asks = ["silent.test:80", &to].map(both).concat();
    let script = "for ask; do /payload talk 127.0.0.1:3128 \"$ask\" ! '<' & done; wait";
    let grant = format!("{}:/payload", crate::support::payload_path().display());
    let flags: Vec<String> = flags.into_iter().chain(["--ro".to_owned(), grant]).collect();
    let mut command = vec!["sh", "-c", script, "sh"];
    command.extend(asks.iter().map(String::as_str));
    let begun = Instant::now();
    let output = net.command(&flags, &command).output().unwrap();
    let (took, said) = (begun.elapsed(), super::stdout(&output));
    assert!(took >= Duration::from_secs(9) && took < patient(Duration::from_secs(20)), "{took:?}: {said}");
    assert_eq!(
        said.matches("HTTP/1.1 504 Gateway Timeout\r\nx-kennel-error: timeout\r\n").count(),
        4,
        "{said}"
    );
    assert_eq!(
        said.matches("kennel: silent.test:80: resolving its name took too long\n").count(),
        2,
        "{said}"
    );
    assert_eq!(said.matches(&format!("kennel: {to}: connecting took too long\n")).count(), 2, "{said}");
    assert_eq!(super::stderr(&output), "", "no denial");
}
