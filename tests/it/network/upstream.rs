//! Through another proxy, such as a company has.

use std::{
    io::{self, BufReader, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex},
};

use super::{ClosedPort, Net, Origin, Server, answer, at, names, origin, stderr, stdout};
use crate::support::{has, kennel, refused, require, workspace};

/// An HTTP proxy of the test. It leads where the test says and records its requests.
pub struct Upstream {
    pub server: Server,
    seen: Arc<Mutex<Vec<origin::Seen>>>,
}

impl Upstream {
    /// `route` turns the host and port of a CONNECT into a port of the host's loopback, or into an answer
    /// that refuses. The proxy answers requests in absolute form by itself.
    pub fn leading(route: impl Fn(&str) -> Result<u16, &'static str> + Send + Sync + 'static) -> Self {
        let seen: Arc<Mutex<Vec<origin::Seen>>> = Arc::default();
        let log = Arc::clone(&seen);
        let server = Server::start(move |stream, connection| {
            let mut reader = BufReader::new(stream);
            while let Ok(Some(request)) = origin::read(&mut reader, connection) {
                log.lock().unwrap().push(request.clone());
                if !request.line.starts_with("CONNECT ") {
                    let words = format!("upstream: {}\n", request.target());
                    let _ = reader.get_mut().write_all(&answer(200, words.as_bytes()));
                    continue;
                }
                match route(request.target()) {
                    Ok(port) => drop(tunnel(reader, port)),
                    Err(no) => drop(reader.get_mut().write_all(no.as_bytes())),
                }
                return;
            }
        });
        Self { server, seen }
    }

    /// Every request leads to one port.
    pub fn to(port: u16) -> Self {
        Self::leading(move |_| Ok(port))
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    pub fn seen(&self) -> Vec<origin::Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }
}

fn tunnel(mut reader: BufReader<TcpStream>, port: u16) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut up, mut down) = (server.try_clone()?, reader.get_ref().try_clone()?);
    let back = std::thread::spawn(move || {
        let mut server = server;
        let _ = io::copy(&mut server, &mut down);
        let _ = down.shutdown(Shutdown::Write);
    });
    io::copy(&mut reader, &mut up)?;
    up.shutdown(Shutdown::Write)?;
    let _ = back.join();
    Ok(())
}

#[test]
fn tunnels_and_requests_go_through_it() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    // Its own address is on no list.
    let flags = net.strict(&["one.test:80", "*.two.test:8080"], &["--upstream", &upstream.url()]);
    let script =
        "curl -sS http://one.test/plain http://a.two.test:8080/other && curl -sS -p http://one.test/tunnel";
    let said = net.says(&flags, script);
    assert_eq!(said, "upstream: http://one.test/plain\nupstream: http://a.two.test:8080/other\none: /tunnel");
    let expected = [
        "GET http://one.test/plain HTTP/1.1",
        "GET http://a.two.test:8080/other HTTP/1.1",
        "CONNECT one.test:80 HTTP/1.1",
    ];
    assert_eq!(upstream.lines(), expected);
    let hosts: Vec<String> = upstream.seen().iter().map(|seen| seen.header("host")).collect();
    assert_eq!(hosts, ["one.test", "a.two.test:8080", "one.test:80"]);
    assert_eq!(net.names.asked(), [""; 0], "the upstream resolves names");
}

#[test]
fn lists_are_checked_before_the_upstream_is_asked() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let upstream = Upstream::to(1);
    let more = ["--upstream", &upstream.url(), "--deny", "no.one.test:80"];
    let flags = net.strict(&["*.one.test:80"], &more);
    let script = "for url in http://one.test/ http://no.one.test/ http://10.0.0.1/; do \
                  curl -sS -o /dev/null -w '%{http_code} ' $url; \
                  curl -sS -o /dev/null -w '%{http_connect} ' -p $url; done 2>/dev/null; true";
    assert_eq!(net.says(&flags, script), ["403"; 6].join(" "));
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn a_special_address_is_judged_though_names_are_not() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let flags = net.strict(&["*:80"], &["--upstream", &upstream.url()]);
    let script = "curl -sS -p http://intranet.test/ && \
                  curl -sS -p -o /dev/null -w '%{http_connect}' http://169.254.169.254/ 2>/dev/null";
    assert_eq!(stdout(&net.shell(&flags, script)), "one: /\n403");
    assert_eq!(upstream.lines(), ["CONNECT intranet.test:80 HTTP/1.1"]);
}

#[test]
fn credentials_are_sent_to_it_and_shown_to_nobody() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let url = upstream.url().replace("http://", "http://user:p%40ss@");
    let flags = net.strict(&["one.test:80"], &["--upstream", &url]);
    let script = "curl -sSi http://one.test/ && curl -sSi -p http://one.test/ && env";
    let output = net.shell(&flags, script);
    let said = format!("{output:?}");
    assert!(output.status.success() && stdout(&output).contains("one: /"), "{said}");
    assert!(!said.contains("p@ss") && !said.contains("p%40ss") && !said.contains("dXNlcjpwQHNz"), "{said}");
    let sent: Vec<String> = upstream.seen().iter().map(|seen| seen.header("proxy-authorization")).collect();
    assert_eq!(sent, ["Basic dXNlcjpwQHNz"; 2]);
    assert_eq!(origin.seen()[0].header("proxy-authorization"), "", "the origin gets none");
    // Credentials of a client are not passed on in their place.
    let flags = net.strict(&["one.test:80"], &["--upstream", &upstream.url()]);
    net.says(&flags, "curl -sS -U evil:evil http://one.test/; curl -sS -p -U evil:evil http://one.test/");
    let sent: Vec<String> =
        upstream.seen()[2..].iter().map(|seen| seen.header("proxy-authorization")).collect();
    assert_eq!(sent, ["", ""]);
}

#[test]
fn the_environment_names_the_proxy_and_its_exceptions() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let (origin, direct) = (Origin::named("through"), Origin::named("direct"));
    let upstream = Upstream::to(origin.port());
    let (near, far) = (at("a.near.test", direct.port()), "far.test:80");
    let flags = net.flags(&[&near, far], &["--upstream", "environment"]);
    let script = format!("curl -sS -p http://{near}/ http://{far}/ && echo $https_proxy $no_proxy");
    let run = |proxy: &str, by: &str| {
        let mut command = net.command(&flags, &["sh", "-c", &script]);
        let output = command.env("https_proxy", proxy).env("no_proxy", by).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let said = run(&upstream.url(), "localhost,.near.test");
    // The command still has our proxy, and not the caller's.
    assert_eq!(
        said,
        "direct: /\nthrough: /\nhttp://127.0.0.1:3128 localhost,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0,::,[::],kennel"
    );
    assert_eq!(upstream.lines(), ["CONNECT far.test:80 HTTP/1.1"]);
    assert_eq!(net.names.asked(), ["a.near.test"]);
}

#[test]
fn the_environment_s_proxy_is_not_used_unasked() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let to = at("one.test", origin.port());
    let flags = net.flags(&[&to], &[]);
    let curl = format!("curl -sS http://{to}/");
    let mut command = net.command(&flags, &["sh", "-c", &curl]);
    let output =
        command.env("https_proxy", upstream.url()).env("http_proxy", upstream.url()).output().unwrap();
    assert_eq!(stdout(&output), "one: /", "{output:?}");
    assert_eq!(upstream.server.accepted(), 0);
}

#[test]
fn a_refusal_of_the_upstream_is_a_bad_gateway_with_a_message() {
    let net = Net::new();
    let upstream = Upstream::leading(|asked| match asked {
        "auth.test:80" => Err(
            "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
        ),
        "busy.test:80" => Err("HTTP/1.1 503 Service Unavailable\r\n\r\ngo away"),
        "odd.test:80" => Err("what?"),
        _ => Err(""),
    });
    let flags = net.strict(&["*:80"], &["--upstream", &upstream.url()]);
    let connect = |host: &str| format!(">CONNECT {host}.test:80 HTTP/1.1\\r\\n\\r\\n");
    let (auth, busy, odd, gone) = (connect("auth"), connect("busy"), connect("odd"), connect("gone"));
    let heard =
        net.talk(&flags, &[&[&auth, "!", "<"], &[&busy, "!", "<"], &[&odd, "!", "<"], &[&gone, "!", "<"]]);
    for (heard, word) in heard.iter().zip(["407", "503", "", ""]) {
        assert!(heard.starts_with("HTTP/1.1 502 Bad Gateway"), "{heard}");
        assert!(heard.contains("x-kennel-error: unreachable") && !heard.contains("x-kennel-deny"), "{heard}");
        assert!(heard.contains("it cannot be reached: ") && heard.contains(word), "{heard}");
        assert!(!heard.to_lowercase().contains("proxy-authenticate"), "{heard}");
    }
}

#[test]
fn a_refusal_of_the_upstream_does_not_look_like_the_origin_s() {
    let net = Net::new();
    let wants_credentials = Origin::answering(|_| {
        b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let url = format!("http://127.0.0.1:{}", wants_credentials.port());
    let flags = net.strict(&["one.test:80"], &["--upstream", &url]);
    let heard = net.talk(&flags, &[&[">GET http://one.test/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", "!", "<"]]);
    // A client would take a 407 for ours, and send its credentials to us.
    assert!(heard[0].starts_with("HTTP/1.1 502 Bad Gateway"), "{heard:?}");
    assert!(heard[0].contains("407"), "{heard:?}");
}

#[test]
fn a_missing_upstream_is_named() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let closed = ClosedPort::new();
    let port = closed.port;
    let url = format!("http://user:secret@127.0.0.1:{port}");
    let flags = net.strict(&["one.test:80"], &["--upstream", &url]);
    for form in ["", "-p"] {
        let script = format!("curl -sSi {form} http://one.test/");
        let said = stdout(&net.shell(&flags, &script));
        assert!(said.starts_with("HTTP/1.1 502 "), "{form}: {said}");
        // curl does not print the body of an answer to CONNECT.
        let names_it = said.contains(&format!("the upstream proxy 127.0.0.1:{port}: Connection refused"));
        assert!((form == "-p" || names_it) && !said.contains("secret"), "{form}: {said}");
    }
}

#[test]
fn the_name_of_an_upstream_is_looked_up_and_not_judged() {
    require!(has("curl"), "curl");
    let net = Net::with(names::NameServer::of_loopback());
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let url = format!("http://proxy.corp.test:{}", upstream.server.port);
    let flags = net.strict(&["one.test:80"], &["--upstream", &url]);
    assert_eq!(net.says(&flags, "curl -sS -p http://one.test/"), "one: /");
    assert_eq!(net.names.asked(), ["proxy.corp.test"]);
    // That does not allow it to the command.
    let script =
        format!("curl -sS -o /dev/null -w '%{{http_code}}' http://proxy.corp.test:{}/", upstream.server.port);
    assert_eq!(net.says(&flags, &script), "403");
}

#[test]
fn an_invalid_url_is_refused_and_not_repeated() {
    let dir = workspace();
    for url in ["https://user:secret@proxy:1", "socks5://secret:1", "proxy:3128", ""] {
        let said = refused(dir.path(), &["--net", "proxy", "--upstream", url]);
        assert!(said.contains("network.upstream") && !said.contains("secret"), "{said}");
    }
    let mut command = kennel(dir.path(), &["--net", "proxy", "--upstream", "environment"], &["true"]);
    let output = command.env("https_proxy", "socks5://user:secret@x:1").output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("https_proxy") && !stderr(&output).contains("secret"), "{output:?}");
}
