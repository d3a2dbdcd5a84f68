//! Programs that know no proxy, or get no variable for one: plain sockets, TLS, Java, node.

use super::{Net, Origin, stdout, tls::Secure, upstream::Upstream};
use crate::support::{has, require, stderr};

/// Every variable that leads to the proxy, empty.
fn unset() -> Vec<&'static str> {
    const NAMES: [&str; 9] = [
        "http_proxy=",
        "https_proxy=",
        "all_proxy=",
        "HTTP_PROXY=",
        "HTTPS_PROXY=",
        "ALL_PROXY=",
        "NODE_USE_ENV_PROXY=",
        "JAVA_TOOL_OPTIONS=",
        "npm_config_proxy=",
    ];
    NAMES.iter().flat_map(|&name| ["--setenv", name]).collect()
}

/// Two names, served on port 80 by one origin.
fn plain() -> (Net, Origin, Upstream, Vec<String>) {
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let url = upstream.url();
    let more = [&["--upstream", &url][..], &unset()].concat();
    let flags = net.strict(&["one.test:80", "*.two.test:80"], &more);
    (net, origin, upstream, flags)
}

#[test]
fn python_sockets_and_tls() {
    require!(has("python3") && has("openssl") && has("node"), "python3, openssl and node");
    let net = Net::new();
    let server = Secure::start(net.path());
    let origin = Origin::named("plain");
    let (plain, secure) = (origin.port(), server.port);
    let upstream = Upstream::leading(move |to| Ok(if to.ends_with(":443") { secure } else { plain }));
    let url = upstream.url();
    let more = [&["--upstream", &url][..], &unset()].concat();
    let flags = net.strict(&["one.test:443", "one.test:80", "*.two.test:443"], &more);
    let script = "import http.client, socket, ssl, urllib.request\n\
        context = ssl.create_default_context(cafile='ca.pem')\n\
        for host in 'one.test', 'a.two.test':\n\
        \x20   with socket.create_connection((host, 443)) as s, context.wrap_socket(s, server_hostname=host) as t:\n\
        \x20       print(t.getpeername()[0], t.getpeercert()['subject'][0][0][1])\n\
        c = http.client.HTTPSConnection('one.test', context=context); c.request('GET', '/x'); print(c.getresponse().read())\n\
        print(urllib.request.urlopen('http://one.test/y').read())\n\
        for host, port in ('b.test', 443), ('a.two.test', 80):\n\
        \x20   try: socket.create_connection((host, port)).recv(1)\n\
        \x20   except OSError as e: print(type(e).__name__)\n";
    let output = net.command(&flags, &["python3", "-c", script]).output().unwrap();
    assert_eq!(
        stdout(&output),
        "127.1.0.1 kennel test\n127.1.0.2 kennel test\nb'HTTP/1.1 /x 0\\n'\nb'plain: /y\\n'\ngaierror\nConnectionResetError",
        "{output:?}"
    );
    let said = stderr(&output);
    assert!(
        said.ends_with("kennel: 2 hosts were refused: --allow b.test:PORT --allow a.two.test:80"),
        "{said}"
    );
}

#[test]
fn node_fetch() {
    require!(has("node"), "node");
    let (net, origin, upstream, flags) = plain();
    let script = "(async () => {\
        for (const url of ['http://one.test/a', 'http://b.two.test/b', 'http://other.test/', 'http://one.test:443/']) \
          await fetch(url).then(r => r.text()).then(t => console.log(t.trim()), e => console.log(e.cause.code));\
        const { lookup } = require('dns').promises;\
        console.log((await lookup('one.test')).address, await lookup('no.test').catch(e => e.code));\
        console.log(await require('dns').promises.resolve4('b.two.test'));\
      })()";
    let output = net.command(&flags, &["node", "-e", script]).output().unwrap();
    assert_eq!(
        stdout(&output),
        "one: /a\none: /b\nENOTFOUND\nECONNRESET\n127.1.0.1 ENOTFOUND\n[ '127.1.0.2' ]",
        "{output:?}"
    );
    assert_eq!(upstream.lines(), ["CONNECT one.test:80 HTTP/1.1", "CONNECT b.two.test:80 HTTP/1.1"]);
    assert_eq!(origin.lines(), ["GET /a HTTP/1.1", "GET /b HTTP/1.1"]);
}

#[test]
fn java_with_and_without_properties() {
    require!(has("java"), "java");
    let (net, origin, upstream, flags) = plain();
    let program = r#"
        import java.io.*; import java.net.*;
        class Get { public static void main(String[] arguments) {
            for (String url : arguments) {
                try (InputStream in = new URL(url).openStream()) { System.out.print(new String(in.readAllBytes())); }
                catch (Exception error) { System.out.println(error.getClass().getSimpleName()); }
            }
            try { System.out.println(InetAddress.getByName("one.test").getHostAddress()); }
            catch (Exception error) { System.out.println(error.getClass().getSimpleName()); }
        } }"#;
    std::fs::write(net.path().join("Get.java"), program).unwrap();
    let command = ["java", "-XX:TieredStopAtLevel=1", "Get.java", "http://one.test/a", "http://no.test/"];
    let output = net.command(&flags, &command).output().unwrap();
    assert_eq!(stdout(&output), "one: /a\nUnknownHostException\n127.1.0.1", "{output:?}");
    assert_eq!(upstream.lines(), ["CONNECT one.test:80 HTTP/1.1"]);
    assert_eq!(origin.lines(), ["GET /a HTTP/1.1"]);
    // The properties of JAVA_TOOL_OPTIONS lead it to the proxy, which answers with a message.
    let mut with = net.strict(&["one.test:80"], &["--upstream", &upstream.url()]);
    with.retain(|flag| flag != "JAVA_TOOL_OPTIONS=");
    let output = net.command(&with, &command).output().unwrap();
    assert_eq!(stdout(&output), "upstream: http://one.test/a\nIOException\n127.1.0.1", "{output:?}");
}

#[test]
fn the_c_library_looks_names_up() {
    let (net, _origin, _upstream, flags) = plain();
    let said = net.says(
        &flags,
        "getent hosts one.test; getent ahosts a.two.test | sed 1q; getent hosts no.test || echo $?",
    );
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [vec!["127.1.0.1", "one.test"], vec!["127.1.0.2", "STREAM", "a.two.test"], vec!["2"]]);
    assert!(net.names.asked().is_empty());
}

#[test]
fn shells_without_any_client_connect() {
    require!(has("bash"), "bash");
    let (net, _origin, _upstream, flags) = plain();
    let script = "exec 3<>/dev/tcp/one.test/80; printf 'GET /bash HTTP/1.1\\r\\n\\r\\n' >&3; sed '/one/q' <&3 | tail -n 1";
    let output = net.command(&flags, &["bash", "-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "one: /bash", "{output:?}");
}
