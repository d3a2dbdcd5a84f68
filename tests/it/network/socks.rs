//! SOCKS5.

use super::{ClosedPort, Net, Origin, PROXY, Server, at, stderr};
use crate::support::{has, require};

#[test]
fn names_and_addresses_are_reached() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let (by_name, by_address) = (at("one.test", origin.port()), at("127.0.0.1", origin.port()));
    let flags = net.flags(&[&by_name, &by_address], &[]);
    let script = format!(
        "curl -sS --noproxy '' --socks5-hostname {PROXY} http://{by_name}/name && \
         curl -sS --noproxy '' --socks5 {PROXY} http://{by_address}/address && \
         curl -sS --noproxy '' -x socks5h://{PROXY} http://{by_name}/url"
    );
    assert_eq!(net.says(&flags, &script), "one: /name\none: /address\none: /url");
}

#[test]
fn a_client_that_looks_names_up_itself_reaches_them() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let script = format!("curl -sS --socks5 {PROXY} http://{to}/");
    assert_eq!(net.says(&net.flags(&["one.test:*"], &[]), &script), "one: /");
    // Only at that port could another command of the session be in the place of the name's address.
    let output = net.shell(&net.flags(&[&to], &[]), &script);
    assert_eq!(output.status.code(), Some(97), "{output:?}");
    assert!(
        stderr(&output).contains("one.test: allowed, but only through the proxy variables"),
        "{output:?}"
    );
}

#[test]
fn denied_requests_get_the_closest_reply_code() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let flags = net.flags(&["other.test:1"], &[]);
    let output = net.shell(&flags, &format!("curl -sS --socks5-hostname {PROXY} http://{to}/"));
    assert_eq!(output.status.code(), Some(97), "{output:?}");
    assert!(stderr(&output).contains(&format!("denied: {to}: ")), "{output:?}");
    assert!(origin.is_untouched() && net.names.asked().is_empty());
}

/// `\x05\x01\x00`, and a request with this command, address and port.
fn request(command: u8, address: &str, port: u16) -> String {
    format!(">\\x05\\x{command:02x}\\0{address}\\x{:02x}\\x{:02x}", port >> 8, port & 0xff)
}

const HELLO: &str = ">\\x05\\x01\\0";

/// The bytes of the second answer: version, reply, and the rest.
fn reply(heard: &str) -> u8 {
    let bytes = heard.as_bytes();
    assert!(bytes.starts_with(b"\x05\x00\x05"), "{heard:?}");
    bytes[3]
}

#[test]
fn replies_say_what_happened() {
    let net = Net::new();
    let echo = Server::echo();
    let closed = ClosedPort::new();
    let (to, nobody) = (at("echo.test", echo.port), at("closed.test", closed.port));
    let domain = |name: &str| format!("\\x03\\x{:02x}{name}", name.len());
    let v4 = "\\x01\\x7f\\0\\0\\x01";
    let v6_mapped = "\\x04\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\xff\\xff\\x7f\\0\\0\\x01";
    let cases = [
        (request(1, &domain("echo.test"), echo.port), 0),
        (request(1, &domain("ECHO.test."), echo.port), 0),
        (request(1, &domain("bad.test"), echo.port), 2),
        (request(1, v4, echo.port), 2),
        (request(1, v6_mapped, echo.port), 2),
        (request(1, &domain("127.0.0.1"), echo.port), 2),
        (request(1, &domain("echo.test"), 0), 1),
        (request(1, "\\x03\\x07e\\0.test", echo.port), 1),
        (request(1, &domain("closed.test"), closed.port), 4),
        (request(2, &domain("echo.test"), echo.port), 7),
        (request(3, &domain("echo.test"), echo.port), 7),
    ];
    let steps: Vec<[&str; 4]> =
        cases.iter().map(|(request, _)| [HELLO, "<\\x05\\0", request, "<\\x01\\0\\0\\0\\0\\0\\0"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 4]>::as_slice).collect();
    let heard = net.talk(&net.flags(&[&to, &nobody], &[]), &steps);
    for ((request, expected), heard) in cases.iter().zip(&heard) {
        assert_eq!(reply(heard), *expected, "{request}");
    }
    assert_eq!(echo.accepted(), 2);
}

#[test]
fn a_method_with_credentials_is_not_taken() {
    let net = Net::new();
    let heard = net.talk(&net.flags(&[], &[]), &[&[">\\x05\\x01\\x02", "<"]]);
    assert!(heard[0].contains('\u{fffd}') && heard[0].ends_with("[end]\n"), "{heard:?}");
}
