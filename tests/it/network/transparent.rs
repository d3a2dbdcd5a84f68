//! Programs without support for proxies: a name server inside, and listeners on common ports.
//!
//! The upstream proxy of these tests leads any port of any name to a port of the host on which an ordinary
//! user can listen.

use std::collections::HashSet;

use super::{Net, Origin, Server, at, stderr, stdout, upstream::Upstream};
use crate::support::{has, only_as_root, require};

/// Asks the name server inside once for each name.
fn ask(net: &Net, flags: &[String], names: &[&str]) -> Vec<String> {
    let questions: Vec<String> = names.iter().map(|name| format!("127.0.0.1:53/{name}")).collect();
    let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
    net.attempt(flags, "query", &questions).lines().map(str::to_owned).collect()
}

#[test]
fn allowed_names_have_an_address_of_ours_and_keep_it() {
    let net = Net::new();
    let flags = net.flags(&["one.test:80", "*.two.test:*", "three.test:9"], &[]);
    let names = ["one.test", "ONE.test", "a.two.test", "b.a.two.test", "three.test", "one.test", "localhost"];
    let answers = ask(&net, &flags, &names);
    assert_eq!(
        answers,
        ["127.1.0.1", "127.1.0.1", "127.1.0.2", "127.1.0.3", "127.1.0.4", "127.1.0.1", "127.0.0.1"]
    );
    assert!(net.names.asked().is_empty(), "nobody outside is asked: {:?}", net.names.asked());
}

#[test]
fn other_names_do_not_resolve() {
    let net = Net::new();
    let flags = net.flags(&["one.test:80", "*.two.test:80", "127.0.0.1:80"], &[]);
    let names = [
        "two.test",
        "nottwo.test",
        "one.test.evil.test",
        "evil.one.test",
        "one",
        "127.0.0.1",
        "1.0.0.127.in-addr.arpa",
    ];
    assert_eq!(ask(&net, &flags, &names), ["code 3"; 7]);
    assert!(net.names.asked().is_empty());
    let output = net.shell(&flags, "getent hosts two.test");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("denied: two.test: "), "{output:?}");
}

#[test]
fn a_partly_denied_name_is_reached_only_where_allowed() {
    let net = Net::new();
    let upstream = Upstream::to(1);
    let flags = net.strict(&["*.two.test:80"], &["--deny", "no.two.test:*", "--upstream", &upstream.url()]);
    let heard = net.attempt(&flags, "query", &["127.0.0.1:53/yes.two.test"]);
    assert_eq!(heard, "127.1.0.1");
    let script = "curl -sS --noproxy '*' http://no.two.test/";
    require!(has("curl"), "curl");
    let output = net.shell(&flags, script);
    // The name does not resolve, or the connection is reset, maybe before curl has noticed that it was
    // connected: it reaches nothing.
    assert!(matches!(output.status.code(), Some(6 | 7 | 56)), "{output:?}");
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn many_names_have_addresses_of_their_own() {
    let net = Net::new();
    let flags = net.flags(&["*.test:80"], &[]);
    let names: Vec<String> = (0..600).map(|n| format!("n{n}.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let answers = ask(&net, &flags, &names);
    assert_eq!(answers.iter().collect::<HashSet<_>>().len(), 600);
    assert!(
        answers.iter().all(|answer| answer.starts_with("127.1.") && !answer.ends_with(".0")),
        "{answers:?}"
    );
}

#[test]
fn names_without_end_are_not_remembered() {
    let net = Net::new();
    let flags = net.flags(&["*.test:80", "kept.other:80"], &[]);
    let names: Vec<String> = (0..4200).map(|n| format!("n{n}.test")).collect();
    let names: Vec<&str> =
        names.iter().map(String::as_str).chain(["n0.test", "kept.other", "no.other"]).collect();
    let answers = ask(&net, &flags, &names);
    assert_eq!(answers[4095], "127.1.16.32");
    assert!(answers[4096..4200].iter().all(|answer| answer == "code 2"), "SERVFAIL");
    assert_eq!(answers[4200..], ["127.1.0.1", "code 2", "code 3"]);
}

/// The answer of an allowed name behind an upstream proxy, over `CONNECT`.
fn served(net: &Net) -> (Origin, Upstream, Vec<String>) {
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let flags = net.strict(&["one.test:80", "*.two.test:443"], &["--upstream", &upstream.url()]);
    (origin, upstream, flags)
}

/// A shell without any variable that leads to the proxy.
const BARE: &str = "env -i PATH=$PATH HOME=$HOME";

#[test]
fn a_program_that_knows_no_proxy_reaches_what_is_allowed() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let (origin, upstream, flags) = served(&net);
    let script =
        format!("{BARE} curl -sS http://one.test/plain && {BARE} curl -sS http://a.two.test:443/other");
    assert_eq!(net.says(&flags, &script), "one: /plain\none: /other");
    assert_eq!(upstream.lines(), ["CONNECT one.test:80 HTTP/1.1", "CONNECT a.two.test:443 HTTP/1.1"]);
    assert_eq!(origin.seen()[0].header("host"), "one.test");
}

#[test]
fn another_port_of_an_allowed_name_is_reset_and_denied() {
    let net = Net::new();
    let (_origin, upstream, flags) = served(&net);
    let script = format!("{BARE} curl -sS http://one.test:443/");
    let output = net.shell(&flags, &script);
    // The reset may come before curl has noticed that it was connected.
    assert!(matches!(output.status.code(), Some(7 | 56)), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("kennel: denied: one.test:443: not on the list"), "{said}");
    assert!(said.contains("--allow one.test:443 would allow it"), "{said}");
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn an_address_that_was_never_given_out_is_reset() {
    let net = Net::new();
    let (_origin, upstream, flags) = served(&net);
    let nobody = ["127.1.0.1:80", "127.1.200.7:443", "127.0.0.1:80", "127.0.0.53:443", "127.2.0.1:80"];
    let words: Vec<&str> =
        nobody.iter().flat_map(|&to| ["+", to, ">GET / HTTP/1.0\\r\\n\\r\\n", "<"]).skip(1).collect();
    assert_eq!(net.attempt(&flags, "talk", &words), ["[ECONNRESET]"; 5].join("\n"));
    // And a port that nobody serves.
    let refused =
        net.attempt(&flags, "connect", &["127.1.0.1:81", "127.0.0.1:3129", "[::1]:3128", "[::1]:80"]);
    assert_eq!(refused, ["ECONNREFUSED"; 4].join("\n"));
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn without_transparent_mode_there_is_only_the_proxy() {
    let net = Net::new();
    let flags = net.flags(&["one.test:80", "git.test:22"], &["--no-transparent"]);
    let ports =
        ["127.0.0.1:53", "127.0.0.1:80", "127.0.0.1:443", "127.0.0.1:22", "127.1.0.1:80", super::PROXY];
    let said = net.attempt(&flags, "connect", &ports);
    assert_eq!(said.lines().collect::<Vec<_>>(), [&["ECONNREFUSED"; 5][..], &["ok"]].concat());
    assert_eq!(net.attempt(&flags, "query", &["127.0.0.1:53/one.test"]), "ECONNREFUSED");
    let resolver = stdout(&net.shell(&flags, "cat /etc/resolv.conf"));
    assert!(!resolver.contains("name server of this sandbox"), "{resolver}");
    let output = net.shell(&flags, "getent hosts one.test");
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
    assert!(net.names.asked().is_empty());
}

fn resolver_is_ours(profile: &str) {
    let net = Net::new();
    let flags = net.flags(&["one.test:80"], &["--profile", profile]);
    let said = net.says(&flags, "grep -v '^#' /etc/resolv.conf; getent hosts one.test || true");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "nameserver 127.0.0.1", "{profile}: {said}");
    assert!(lines.len() == 2 && lines[1].starts_with("127.1.0.1 "), "{profile}: {said}");
}

#[test]
fn resolv_conf_names_the_name_server_inside() {
    resolver_is_ours("repo-write");
    if crate::support::runs("ci-only") {
        resolver_is_ours("ci-only");
    }
}

#[test]
fn resolv_conf_of_full_dev_names_the_name_server_inside() {
    resolver_is_ours("full-dev");
}

#[test]
fn lookups_for_configured_families_work() {
    let net = Net::new();
    let said = net.says(&net.flags(&["one.test:80"], &[]), "getent ahostsv4 one.test || true");
    assert!(said.starts_with("127.1.0.1 "), "{said}");
}

#[test]
fn a_low_port_of_a_rule_is_served_and_others_are_not() {
    let net = Net::new();
    let server = Server::start(|mut stream, _| {
        use std::io::Write;
        let _ = stream.write_all(b"SSH-2.0-test\r\n");
    });
    let upstream = Upstream::to(server.port);
    let flags = net.strict(&["git.test:22", "*.test:465"], &["--upstream", &upstream.url()]);
    let script = "import socket\n\
                  s = socket.create_connection(('git.test', 22)); print(s.recv(99).decode().strip(), s.getpeername()[0])\n\
                  s = socket.create_connection(('mail.test', 465)); print(s.recv(99).decode().strip())\n\
                  try: socket.create_connection(('git.test', 23))\n\
                  except ConnectionRefusedError: print('refused')\n";
    require!(has("python3"), "python3");
    let output = net.command(&flags, &["python3", "-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "SSH-2.0-test 127.1.0.1\nSSH-2.0-test\nrefused", "{output:?}");
    assert_eq!(upstream.lines(), ["CONNECT git.test:22 HTTP/1.1", "CONNECT mail.test:465 HTTP/1.1"]);
}

#[test]
fn a_server_on_a_low_port_is_reached_directly() {
    // An ordinary user cannot listen there. That user's tests go through an upstream proxy.
    only_as_root!();
    let net = Net::new();
    let low = (600..1000).find_map(|port| {
        Origin::on(&format!("127.0.0.1:{port}"), |seen| super::answer(200, seen.target().as_bytes())).ok()
    });
    let origin = low.unwrap();
    let to = at("one.test", origin.port());
    let script = format!("{BARE} curl -sS http://{to}/direct");
    assert_eq!(net.says(&net.flags(&[&to], &[]), &script), "/direct");
    let output = net.shell(&net.strict(&[&to], &[]), &script);
    assert!(matches!(output.status.code(), Some(7 | 56)), "{output:?}");
    assert!(stderr(&output).contains("--allow-address 127.0.0.1 would allow it"), "{output:?}");
    assert_eq!(origin.server.accepted(), 1);
}

#[test]
fn ports_of_the_listeners_cannot_be_taken() {
    let net = Net::new();
    let flags = net.flags(&["one.test:80", "git.test:22"], &[]);
    let script = "import socket,errno\n\
        def bind(kind, at):\n\
        \x20   s = socket.socket(socket.AF_INET, kind)\n\
        \x20   s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n\
        \x20   try: s.bind(at); s.listen() if kind == socket.SOCK_STREAM else None; print('ok')\n\
        \x20   except OSError as e: print(errno.errorcode[e.errno])\n\
        T, U = socket.SOCK_STREAM, socket.SOCK_DGRAM\n\
        for kind, at in [(T, ('127.0.0.1', 3128)), (T, ('0.0.0.0', 3128)), (T, ('127.1.0.1', 80)), (T, ('0.0.0.0', 443)),\n\
        \x20   (T, ('127.1.0.1', 22)), (U, ('127.0.0.1', 53)), (U, ('0.0.0.0', 53)), (T, ('127.0.0.1', 25)), (T, ('127.0.0.1', 8080))]: bind(kind, at)\n";
    require!(has("python3"), "python3");
    let output = net.command(&flags, &["python3", "-c", script]).output().unwrap();
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 9, "{output:?}");
    for (line, taken) in lines.iter().zip([true, true, true, true, true, true, true, true, false]) {
        assert_eq!(matches!(*line, "EADDRINUSE" | "EACCES"), taken, "{said}");
    }
}
