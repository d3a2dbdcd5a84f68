//! The proxy judges a destination by its meaning, however it is spelled.

use super::{
    Net, Server, at,
    names::{NameServer, Reply},
};

/// Asks for each by CONNECT and in absolute form. Returns the first line and the reason, which must be equal
/// for both.
fn asked(net: &Net, flags: &[String], destinations: &[String]) -> Vec<String> {
    let requests: Vec<[String; 2]> = destinations
        .iter()
        .map(|to| {
            [format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n"), format!(">GET http://{to}/ HTTP/1.0\\r\\n\\r\\n")]
        })
        .collect();
    let steps: Vec<[&str; 3]> =
        requests.iter().flatten().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    let heard: Vec<String> = net.talk(flags, &steps).iter().map(|heard| brief(heard)).collect();
    for (pair, to) in heard.chunks(2).zip(destinations) {
        assert_eq!(pair[0], pair[1], "{to:?}");
    }
    heard.into_iter().step_by(2).collect()
}

/// `403 not-allowed`
fn brief(heard: &str) -> String {
    let status = heard.split(' ').nth(1).unwrap_or_default();
    let reason = heard.lines().find_map(|line| line.strip_prefix("x-kennel-deny: ")).unwrap_or_default();
    format!("{status} {reason}").trim().to_owned()
}

/// A server on the host that echoes requests.
fn target() -> Server {
    Server::start(|mut stream, _| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nreached\n");
    })
}

#[test]
fn names_are_compared_in_one_form() {
    let net = Net::new();
    let server = target();
    let port = server.port;
    let flags =
        net.flags(&[&at("one.test", port), &at("*.example.test", port), &at("bücher.test", port)], &[]);
    let cases = [
        ("one.test", "200"),
        ("ONE.TEST", "200"),
        ("one.test.", "200"),
        ("oNe.TeSt.", "200"),
        ("a.example.test", "200"),
        ("a.b.EXAMPLE.test.", "200"),
        ("xn--bcher-kva.test", "200"),
        ("XN--BCHER-KVA.test", "200"),
        ("a_b.example.test", "200"),
        ("-a.example.test", "200"),
        ("example.test", "403 not-allowed"),
        ("notexample.test", "403 not-allowed"),
        ("example.test.evil.test", "403 not-allowed"),
        ("one.test.evil.test", "403 not-allowed"),
        ("evil-one.test", "403 not-allowed"),
        ("one", "403 not-allowed"),
        ("one.test..", "400 malformed"),
        (".one.test", "400 malformed"),
        ("a..example.test", "400 malformed"),
        (".example.test", "400 malformed"),
    ];
    let destinations: Vec<String> = cases.iter().map(|(host, _)| at(host, port)).collect();
    let found = asked(&net, &flags, &destinations);
    // Some are no URI for the HTTP library. They are malformed too.
    for ((host, wanted), found) in cases.iter().zip(found) {
        let found = if found == "400" { "400 malformed".to_owned() } else { found };
        assert_eq!(&found, wanted, "{host}");
    }
    assert_eq!(server.accepted(), 20);
    assert!(net.names.asked().iter().all(|name| !name.contains("evil") && name != "example.test"));
}

#[test]
fn addresses_are_never_names() {
    let net = Net::new();
    let server = target();
    let port = server.port;
    // Every name is allowed and may lead to the loopback. No address is allowed.
    let flags = net.strict(&["*:*"], &["--allow-address", "198.51.100.0/24"]);
    let cases = [
        ("127.0.0.1", "403 address-blocked"),
        ("127.1", "400 malformed"),
        ("127.0.1", "400 malformed"),
        ("2130706433", "400 malformed"),
        ("0x7f000001", "400 malformed"),
        ("0x7f.1", "400 malformed"),
        ("0177.0.0.1", "400 malformed"),
        ("017700000001", "400 malformed"),
        ("127.0.0.1.", "400 malformed"),
        ("127.0.0.01", "400 malformed"),
        ("1.2.3.4.5", "400 malformed"),
        ("0", "400 malformed"),
        ("0.0.0.0", "403 address-blocked"),
        ("[::]", "403 address-blocked"),
        ("[::1]", "403 address-blocked"),
        ("[::ffff:127.0.0.1]", "403 address-blocked"),
        ("[::ffff:7f00:1]", "403 address-blocked"),
        ("[::127.0.0.1]", "403 address-blocked"),
        ("[64:ff9b::127.0.0.1]", "403 address-blocked"),
        ("[2002:7f00:1::]", "403 address-blocked"),
        ("[fe80::1%25lo]", "400 malformed"),
        ("[fe80::1]", "403 address-blocked"),
        ("[fd00:ec2::254]", "403 address-blocked"),
        ("169.254.169.254", "403 address-blocked"),
        ("10.0.0.1", "403 address-blocked"),
        ("100.64.0.1", "403 address-blocked"),
        ("224.0.0.1", "403 address-blocked"),
        ("255.255.255.255", "403 address-blocked"),
        ("168.63.129.16", "403 address-blocked"),
    ];
    let destinations: Vec<String> = cases.iter().map(|(host, _)| at(host, port)).collect();
    for ((host, wanted), found) in cases.iter().zip(asked(&net, &flags, &destinations)) {
        let found = if found == "400" { "400 malformed".to_owned() } else { found };
        assert_eq!(&found, wanted, "{host}");
    }
    assert_eq!(server.accepted(), 0);
    assert!(net.names.asked().is_empty(), "{:?}", net.names.asked());
}

#[test]
fn forms_that_other_programs_read_differently_are_malformed() {
    let net = Net::new();
    let server = target();
    let port = server.port;
    let flags = net.flags(&["*:*"], &[]);
    let cases = [
        "user@one.test",
        "user:word@one.test",
        "one.test@evil.test",
        "one.test\\0.evil.test",
        "one.test%00",
        "one.test%2eevil",
        "one.test#",
        "one.test\\\\evil.test",
        "one test",
        "one.test\\x09",
        "one.test;evil",
        "one,test",
        "\\x7f.test",
        "\\xff.test",
        "one.test\\x0b",
        "{one}.test",
        "",
        "[::1",
        "::1",
        "[one.test]",
    ];
    for host in cases {
        let to = at(host, port);
        let steps = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
        let heard = net.talk(&flags, &[&[&steps, "!", "<"]]);
        assert!(heard[0].starts_with("HTTP/1.1 400 "), "{host:?}: {heard:?}");
    }
    assert_eq!(server.accepted(), 0);
    assert!(net.names.asked().is_empty(), "{:?}", net.names.asked());
}

#[test]
fn lines_within_a_request_are_not_smuggled_into_another() {
    let net = Net::new();
    let origin = super::Origin::named("one");
    let to = at("one.test", origin.port());
    let flags = net.flags(&[&to], &[]);
    let requests = [
        format!(">CONNECT {to}\\r\\nX: y HTTP/1.1\\r\\n\\r\\n"),
        format!(">GET http://{to}/a\\r\\nX: y HTTP/1.1\\r\\n\\r\\n"),
        format!(">GET http://{to}/a\\nb HTTP/1.1\\r\\n\\r\\n"),
        format!(">GET http://{to}/a\\0b HTTP/1.1\\r\\n\\r\\n"),
        format!(">GET http://{to}/ HTTP/1.1\\r\\nX: a\\0b\\r\\n\\r\\n"),
        format!(">GET http://{to}/ HTTP/1.1\\r\\nX: a\\rY: b\\r\\n\\r\\n"),
    ];
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    for (request, heard) in requests.iter().zip(net.talk(&flags, &steps)) {
        assert!(heard.starts_with("HTTP/1.1 400 "), "{request}: {heard}");
    }
    assert!(origin.is_untouched());
}

#[test]
fn a_name_that_leads_inwards_is_blocked_by_each_of_its_addresses() {
    // As nip.io does: the name contains the address.
    let net = Net::with(NameServer::answering(|name, _| {
        let digits: Vec<u8> = name.split('.').take(4).filter_map(|label| label.parse().ok()).collect();
        <[u8; 4]>::try_from(digits).map_or(Reply::NoSuchName, Reply::from)
    }));
    let server = target();
    let flags = net.strict(&["*.nip.test:*"], &[]);
    let cases = [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("10.0.0.1", "private"),
        ("172.16.5.4", "private"),
        ("192.168.1.1", "private"),
        ("169.254.169.254", "cloud metadata"),
        ("169.254.1.1", "link-local"),
        ("100.64.0.1", "shared (CGNAT)"),
        ("0.0.0.0", "unspecified"),
        ("192.0.2.1", "documentation"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
    ];
    let requests: Vec<String> = cases
        .iter()
        .map(|(ip, _)| format!(">CONNECT {ip}.nip.test:{} HTTP/1.1\\r\\n\\r\\n", server.port))
        .collect();
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    for ((ip, range), heard) in cases.iter().zip(net.talk(&flags, &steps)) {
        assert_eq!(brief(&heard), "403 address-blocked", "{ip}: {heard}");
        assert!(
            heard.contains(&format!("resolves to {ip}, which is not a public address ({range})")),
            "{heard}"
        );
    }
    assert_eq!((server.accepted(), net.names.asked().len()), (0, cases.len()));
}

#[test]
fn an_address_among_others_is_left_out() {
    // The first is not allowed and would answer. Nobody has the second.
    let net = Net::with(NameServer::answering(|_, _| {
        Reply::Addresses(vec![[127, 0, 0, 1].into(), [127, 66, 0, 1].into()])
    }));
    let server = target();
    let to = at("both.test", server.port);
    let flags = net.strict(&[&to], &["--allow-address", "127.66.0.0/16"]);
    let heard = net.talk(&flags, &[&[&format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n"), "!", "<"]]);
    assert_eq!((brief(&heard[0]), server.accepted()), ("502".to_owned(), 0), "{heard:?}");
}

#[test]
fn what_was_checked_is_what_is_dialled() {
    // The first answer is an allowed address where nobody listens. Every later answer is the loopback, where
    // a listener waits.
    let net = Net::with(NameServer::answering(|_, count| {
        if count == 0 { [127, 66, 0, 1].into() } else { [127, 0, 0, 1].into() }
    }));
    let server = target();
    let to = at("rebind.test", server.port);
    let flags = net.strict(&[&to], &["--allow-address", "127.66.0.0/16"]);
    let connect = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
    let get = format!(">GET http://{to}/ HTTP/1.0\\r\\n\\r\\n");
    let heard = net.talk(&flags, &[&[&connect, "!", "<"], &[&connect, "!", "<"], &[&get, "!", "<"]]);
    let brief: Vec<String> = heard.iter().map(|heard| brief(heard)).collect();
    // One question for each connection. The proxy uses no answer longer than its time to live.
    assert_eq!(brief, ["502", "403 address-blocked", "403 address-blocked"], "{heard:?}");
    assert_eq!((server.accepted(), net.names.asked().len()), (0, 3));
}
