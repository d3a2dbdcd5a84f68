//! A rule for the host's loopback reaches every client inside, and nothing but its port.

use std::{
    io::Write,
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    time::Duration,
};

use kennel::{Network, NetworkMode, Policy, Profile, Session};
use tokio::time::timeout;

use super::{ClosedPort, Net, Origin, Server, at, stderr, stdout, upstream::Upstream};
use crate::support::{has, only_as_root, patient, payload_path, require};

/// A server that greets each client and ends, as the servers of databases begin to speak.
fn greeter(at: &str, text: &'static str) -> Server {
    let greet = move |mut stream: TcpStream, _| drop(stream.write_all(text.as_bytes()));
    Server::on(at, greet).unwrap()
}

/// `--allow` for each rule, and a time limit.
fn allow(rules: &[&str]) -> Vec<String> {
    let longest = super::longest();
    let rules = rules.iter().flat_map(|&rule| ["--allow", rule]);
    ["--timeout", &longest].into_iter().chain(rules).map(str::to_owned).collect()
}

/// What each address says, to a program that knows no proxy.
fn hear(net: &Net, flags: &[String], addresses: &[String]) -> Vec<String> {
    let words: Vec<&str> =
        addresses.iter().flat_map(|address| ["+", address, "?9000", "<"]).skip(1).collect();
    net.attempt(flags, "talk", &words).lines().map(str::to_owned).collect()
}

#[test]
fn every_spelling_of_loopback_leads_to_the_host_at_the_port_of_the_rule() {
    let net = Net::new();
    let server = greeter("127.0.0.1:0", "host\n");
    for rule in ["localhost", "127.0.0.1", "127.0.0.0/8", "0.0.0.0"] {
        let flags = allow(&[&at(rule, server.port)]);
        let asked = ["127.0.0.1", "[::1]", "0.0.0.0", "[::]"].map(|host| at(host, server.port));
        assert_eq!(hear(&net, &flags, &asked), ["host", "[end]"].repeat(4), "{rule}");
    }
    assert_eq!(server.accepted(), 16);
}

#[test]
fn a_server_of_the_host_that_listens_with_ipv6_only_is_reached() {
    let net = Net::new();
    let server = greeter("[::1]:0", "six\n");
    for rule in ["[::1]", "localhost"] {
        let flags = allow(&[&at(rule, server.port)]);
        let asked = ["127.0.0.1", "[::1]"].map(|host| at(host, server.port));
        assert_eq!(hear(&net, &flags, &asked), ["six", "[end]"].repeat(2), "{rule}");
    }
}

#[test]
fn programs_with_and_without_proxy_support_reach_it_and_servers_of_their_own() {
    require!(has("curl") && has("python3"), "curl and python3");
    let net = Net::new();
    let host = Origin::named("host");
    let to = at("localhost", host.port());
    let flags = allow(&[&to]);
    assert_eq!(
        net.says(
            &flags,
            &format!("curl -sS http://{to}/; curl -sS -x http://127.0.0.1:3128 --noproxy '' http://{to}/")
        ),
        "host: /\nhost: /"
    );
    let python = format!(
        "import socket; s = socket.create_connection(('localhost', {})); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); s.shutdown(1); \
         print(b''.join(iter(lambda: s.recv(999), b'')).decode().split()[-1])",
        host.port()
    );
    let output = net.command(&flags, &["python3", "-c", &python]).output().unwrap();
    assert_eq!(stdout(&output), "/", "{output:?}");
    let own = "python3 -c 'import http.server as h, socket\n\
        class S(h.HTTPServer): address_family = socket.AF_INET6\n\
        class H(h.BaseHTTPRequestHandler):\n\
        \x20   def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(b\"own\\n\")\n\
        \x20   def log_message(s, *a): pass\n\
        t = S((\"::\", 7777), H); open(\"up\", \"w\"); t.serve_forever()' & until [ -e up ]; do sleep 0.1; done\n\
        for host in localhost 127.0.0.1 '[::1]' 0.0.0.0 '[::]' kennel app.localhost; do curl -sS -g http://$host:7777/; done; kill $!";
    assert_eq!(net.says(&flags, own), ["own"; 7].join("\n"));
    assert_eq!(host.seen().len(), 3);
}

#[test]
fn java_reaches_it_and_keeps_the_options_of_the_caller() {
    require!(has("java"), "java");
    let net = Net::new();
    let host = Origin::named("host");
    let source = "public class J { public static void main(String[] a) throws Exception {\n\
        System.out.print(new String(new java.net.URL(a[0]).openStream().readAllBytes()) + System.getProperty(\"mine\")); } }";
    std::fs::write(net.path().join("J.java"), source).unwrap();
    let to = at("localhost", host.port());
    let flags = [&allow(&[&to])[..], &["--pass-env".to_owned(), "JAVA_TOOL_OPTIONS".to_owned()]].concat();
    let mut command = net.command(&flags, &["java", "J.java", &format!("http://{to}/")]);
    let output = command.env("JAVA_TOOL_OPTIONS", "-Dmine=kept -Dhttp.proxyHost=192.0.2.1").output().unwrap();
    assert_eq!(stdout(&output), "host: /\nkept", "{output:?}");
}

#[test]
fn nothing_else_of_the_hosts_loopback_is_reached() {
    let net = Net::new();
    let [server, other] = [greeter("127.0.0.1:0", "host\n"), greeter("127.0.0.1:0", "other\n")];
    let everywhere = greeter("0.0.0.0:0", "every address\n");
    let flags = allow(&[&at("localhost", server.port), &at("127.0.0.1", everywhere.port)]);
    let asked = [
        at("127.0.0.1", other.port),
        at("[::1]", other.port),
        at("127.0.0.2", server.port),
        at("127.1.0.1", server.port),
        at("127.0.0.2", everywhere.port),
        at("127.0.0.1", everywhere.port),
    ];
    let refused = ["[ECONNREFUSED]", "[ECONNREFUSED]", "[ECONNRESET]", "[ECONNRESET]", "[ECONNRESET]"];
    assert_eq!(hear(&net, &flags, &asked), [&refused[..], &["every address", "[end]"]].concat());
    assert_eq!([server.accepted(), other.accepted(), everywhere.accepted()], [0, 0, 1]);
}

#[test]
fn a_rule_that_denies_wins() {
    let net = Net::new();
    let server = greeter("127.0.0.1:0", "host\n");
    let to = at("localhost", server.port);
    for deny in [&*to, "localhost:*"] {
        let flags = [&allow(&[&to])[..], &["--deny".to_owned(), deny.to_owned()]].concat();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{} && cat <&3", server.port);
        let output = net.command(&flags, &["bash", "-c", &script]).output().unwrap();
        assert!(!output.status.success() && stdout(&output).is_empty(), "{output:?}");
        assert!(stderr(&output).contains(&format!("denied: {to}: ")), "{output:?}");
    }
    assert_eq!(server.accepted(), 0);
}

#[test]
fn no_command_can_take_the_port() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let server = greeter("127.0.0.1:0", "host\n");
    let script = format!(
        "import socket, errno\n\
         for family, address in [(2, '127.0.0.1'), (2, '0.0.0.0'), (2, '127.0.0.9'), (10, '::1'), (10, '::')]:\n\
         \x20   s = socket.socket(family)\n\
         \x20   for option in socket.SO_REUSEADDR, socket.SO_REUSEPORT: s.setsockopt(socket.SOL_SOCKET, option, 1)\n\
         \x20   try: s.bind((address, {})); s.listen(); print('ok')\n\
         \x20   except OSError as e: print(errno.errorcode[e.errno])\n",
        server.port
    );
    let output =
        net.command(&allow(&[&at("localhost", server.port)]), &["python3", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), ["EADDRINUSE"; 5].join("\n"), "{output:?}");
}

#[test]
fn a_privileged_port_is_served_too() {
    only_as_root!();
    let net = Net::new();
    let low = (600..1000).find_map(|port| {
        Server::on(&at("127.0.0.1", port), |mut stream, _| drop(stream.write_all(b"low\n"))).ok()
    });
    let server = low.unwrap();
    let flags = allow(&[&at("localhost", server.port)]);
    assert_eq!(hear(&net, &flags, &[at("127.0.0.1", server.port)]), ["low", "[end]"]);
}

#[test]
fn it_needs_no_transparent_mode_and_no_upstream_proxy() {
    let net = Net::new();
    let server = greeter("127.0.0.1:0", "host\n");
    let upstream = Upstream::to(1);
    let (rule, url) = (at("localhost", server.port), upstream.url());
    let more = ["--no-transparent", "--upstream", &url].map(str::to_owned);
    let flags = [&allow(&[&rule])[..], &more].concat();
    assert_eq!(hear(&net, &flags, &[at("127.0.0.1", server.port)]), ["host", "[end]"]);
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn a_rule_without_a_port_is_for_programs_that_use_the_proxy() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("host");
    let to = at("localhost", origin.port());
    let output = net.shell(&allow(&["localhost:*"]), &format!("curl -sS http://{to}/"));
    assert_eq!(stdout(&output), "host: /");
    let note =
        "kennel: note: localhost:*: only programs that use the proxy reach it, because it names no port";
    assert!(stderr(&output).contains(note), "{output:?}");
    assert_eq!(hear(&net, &allow(&["localhost:*"]), &[at("127.0.0.1", origin.port())]), ["[ECONNREFUSED]"]);
}

#[test]
fn the_port_of_the_proxy_and_too_many_ports_are_noted() {
    let net = Net::new();
    let rules: Vec<String> = (20_000..20_040).map(|port| at("localhost", port)).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).chain(["localhost:3128"]).collect();
    let output = net.shell(&allow(&rules), "true");
    let said = stderr(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("note: localhost:3128: "), "{said}");
    assert!(said.contains("note: localhost:20039: ") && !said.contains("note: localhost:20000: "), "{said}");
}

/// The connections that clients hold open count against the limit, and end with the command.
#[test]
fn held_connections_are_limited_and_end_with_the_command() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let echo = Server::echo();
    let file = net.path().join("limits.toml");
    std::fs::write(&file, "[network.limits]\nconnections = 2\n").unwrap();
    let script = format!(
        "import socket\n\
         def ask():\n\
         \x20   s = socket.create_connection(('127.0.0.1', {})); s.settimeout(1); s.sendall(b'x')\n\
         \x20   return s\n\
         def answer(s):\n\
         \x20   try: return s.recv(9).decode()\n\
         \x20   except TimeoutError: return 'waits'\n\
         a, b, c = ask(), ask(), ask(); print(answer(a), answer(b), answer(c)); a.close(); print(answer(c))\n\
         rest = [ask() for _ in range(50)]\n",
        echo.port
    );
    let policy = ["--policy".to_owned(), file.to_str().unwrap().to_owned()];
    let flags = [&allow(&[&at("localhost", echo.port)])[..], &policy].concat();
    let output = net.command(&flags, &["python3", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "x x waits\nx", "{output:?}");
}

#[tokio::test]
async fn commands_of_a_session_reach_it_unless_they_go_without_network() {
    let net = Net::new();
    let server = greeter("127.0.0.1:0", "host\n");
    let mut policy = Policy::profile(Profile::RepoWrite, net.path())
        .mount(kennel::Mount::ReadOnly { source: payload_path(), target: Some("/payload".into()) });
    policy.network = Network {
        mode: Some(NetworkMode::Proxy),
        allow: vec![at("localhost", server.port)],
        ..Network::default()
    };
    let session = Session::prepare(&policy).await.unwrap();
    for (alone, expected) in [(false, "host\n[end]\n"), (false, "host\n[end]\n"), (true, "[ECONNREFUSED]\n")]
    {
        let mut command = session.command("/payload");
        command.args(["talk", &at("127.0.0.1", server.port), "<"]);
        if alone {
            command.no_network();
        }
        let output = timeout(patient(Duration::from_secs(20)), command.output()).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    }
}

#[test]
fn a_server_that_is_not_there_resets_the_connection() {
    let net = Net::new();
    let closed = ClosedPort::new();
    let port = closed.port;
    assert_eq!(hear(&net, &allow(&[&at("localhost", port)]), &[at("127.0.0.1", port)]), ["[ECONNRESET]"]);
}

/// A client needs to see the socket, and no network.
#[test]
fn a_granted_unix_socket_of_the_host_is_reached() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let beside = crate::support::workspace();
    let path = beside.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"host\n");
        }
    });
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\n\
         try: s.connect({:?}); print(s.recv(9).decode())\n\
         except OSError as e: print(e.errno)\n",
        text(&path)
    );
    for (flags, expected) in [
        (vec!["--rw".to_owned(), text(&path)], "host"),
        (vec!["--rw".to_owned(), text(beside.path())], "host"),
        (vec![], "2"),
    ] {
        let output = net.command(&flags, &["python3", "-c", &script]).output().unwrap();
        assert_eq!(stdout(&output), expected, "{flags:?}: {output:?}");
    }
}
