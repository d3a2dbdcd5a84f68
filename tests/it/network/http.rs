//! Requests in absolute form, as programs make them for http:// URLs.

use super::{Net, Origin, answer, at, stderr, stdout};
use crate::support::{has, require};

#[test]
fn requests_of_one_connection_reach_their_own_origins() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let (one, other) = (Origin::named("one"), Origin::named("other"));
    let (to_one, to_other) = (at("one.test", one.port()), at("other.test", other.port()));
    let flags = net.flags(&[&to_one, &to_other], &[]);
    let script = format!(
        "curl -sS -w '%{{num_connects}}\\n' http://{to_one}/a -o - http://{to_other}/b?q=1 -o - http://{to_one}/c -o -"
    );
    assert_eq!(net.says(&flags, &script), "one: /a\n1\nother: /b?q=1\n0\none: /c\n0");
    assert_eq!(one.lines(), ["GET /a HTTP/1.1", "GET /c HTTP/1.1"]);
    assert_eq!(other.lines(), ["GET /b?q=1 HTTP/1.1"]);
    let hosts: Vec<String> = one.seen().iter().map(|seen| seen.header("host")).collect();
    assert_eq!(hosts, [to_one.as_str(), to_one.as_str()]);
}

#[test]
fn requests_to_one_origin_share_a_connection() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let script = format!("curl -sS http://{to}/1 http://{to}/2 http://{to}/3");
    assert_eq!(net.says(&net.flags(&[&to], &[]), &script), "one: /1\none: /2\none: /3");
    assert_eq!(origin.server.accepted(), 1);
    assert!(origin.seen().iter().all(|seen| seen.connection == 0));
}

#[test]
fn bodies_arrive_whole() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::answering(|seen| answer(200, format!("{} bytes\n", seen.body.len()).as_bytes()));
    let to = at("one.test", origin.port());
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(net.path().join("body"), &body).unwrap();
    let curl = format!("curl -sS --data-binary @body http://{to}");
    let script = format!(
        "{curl}/length && {curl}/chunked -H 'Transfer-Encoding: chunked' && {curl}/expect -H 'Expect: 100-continue' && \
         curl -sS -T body http://{to}/put && curl -sS -d '' http://{to}/empty"
    );
    let said = net.says(&net.flags(&[&to], &[]), &script);
    assert_eq!(said, ["3000000 bytes"; 4].join("\n") + "\n0 bytes");
    for seen in origin.seen().iter().take(4) {
        assert!(seen.body == body, "{}", seen.line);
    }
    assert_eq!(origin.seen()[1].header("transfer-encoding"), "chunked");
    assert_eq!(origin.seen()[1].header("content-length"), "");
    assert_eq!(origin.seen()[3].line, "PUT /put HTTP/1.1");
}

#[test]
fn a_head_has_no_body_and_the_connection_goes_on() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::answering(|seen| {
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        if seen.line.starts_with("HEAD") { length.into() } else { answer(200, b"later\n") }
    });
    let to = at("one.test", origin.port());
    let script = format!("curl -sSI http://{to}/ --next -sS -w '%{{num_connects}}' http://{to}/");
    let said = net.says(&net.flags(&[&to], &[]), &script);
    assert!(
        said.starts_with("HTTP/1.1 200 OK") && said.to_lowercase().contains("content-length: 5"),
        "{said}"
    );
    assert!(said.ends_with("later\n0"), "{said}");
    assert_eq!(origin.lines(), ["HEAD / HTTP/1.1", "GET / HTTP/1.1"]);
}

#[test]
fn methods_and_statuses_pass() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::answering(|seen| {
        let status = seen.target().trim_start_matches('/').parse().unwrap_or(200);
        if matches!(status, 204 | 304) {
            return format!("HTTP/1.1 {status} Words\r\n\r\n").into_bytes();
        }
        answer(status, b"")
    });
    let to = at("one.test", origin.port());
    let flags = net.flags(&[&to], &[]);
    let script = format!(
        "for status in 200 201 204 301 304 401 404 418 500 503; do \
         curl -sS -o /dev/null -w '%{{http_code}} ' http://{to}/$status; done"
    );
    assert_eq!(net.says(&flags, &script), "200 201 204 301 304 401 404 418 500 503");
    let script =
        format!("for m in PUT PATCH DELETE OPTIONS PROPFIND; do curl -sS -X $m http://{to}/$m; done");
    net.says(&flags, &script);
    let lines = origin.lines();
    let expected = ["PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"].map(|m| format!("{m} /{m} HTTP/1.1"));
    assert_eq!(lines[10..], expected);
}

#[test]
fn an_answer_without_a_length_ends_with_its_connection() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let server = super::Server::start(|stream, _| {
        use std::io::Write;
        let mut reader = std::io::BufReader::new(stream);
        let _ = super::origin::read(&mut reader, 0);
        let _ = reader.get_mut().write_all(b"HTTP/1.0 200 OK\r\n\r\nold style\n");
    });
    let to = at("one.test", server.port);
    assert_eq!(net.says(&net.flags(&[&to], &[]), &format!("curl -sS http://{to}/")), "old style");
}

#[test]
fn headers_of_one_hop_stay_there() {
    let net = Net::new();
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-hop, keep-alive\r\nX-Hop: secret\r\nX-End: kept\r\n\
          Keep-Alive: timeout=3\r\nProxy-Authenticate: Basic\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\nok"
            .to_vec()
    });
    let to = at("one.test", origin.port());
    let request = format!(
        ">GET http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\nConnection: close, x-mine, host, content-length\\r\\n\
         X-Mine: secret\\r\\nX-End: kept\\r\\nProxy-Authorization: Basic c2VjcmV0\\r\\nProxy-Connection: keep-alive\\r\\n\
         Keep-Alive: 5\\r\\nTE: trailers\\r\\nUpgrade: h2c\\r\\n\\r\\n"
    );
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&request, "<"]]).remove(0).to_lowercase();
    assert!(heard.starts_with("http/1.1 200 ok") && heard.ends_with("ok\n[end]\n"), "{heard}");
    for (words, is_there) in [
        ("x-end: kept", true),
        ("a=1", true),
        ("b=2", true),
        ("secret", false),
        ("timeout=3", false),
        ("basic", false),
    ] {
        assert_eq!(heard.contains(words), is_there, "{words}: {heard}");
    }
    let seen = origin.seen().remove(0);
    let mut names: Vec<String> = seen.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    names.sort();
    assert_eq!(names, ["host", "x-end"], "{seen:?}");
    assert_eq!(seen.header("host"), to);
}

#[test]
fn denied_requests_get_an_explanation_and_reach_nobody() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let (good, bad) = (Origin::named("good"), Origin::named("bad"));
    let (to_good, to_bad) = (at("good.test", good.port()), at("bad.test", bad.port()));
    let flags = net.flags(&[&to_good], &[]);
    let output = net.shell(&flags, &format!("curl -sS -i http://{to_bad}/ -w '%{{http_code}}\n'"));
    let said = stdout(&output);
    assert!(said.starts_with("HTTP/1.1 403 Forbidden\r\n") && said.ends_with("\n403"), "{said}");
    assert!(said.contains("x-kennel-deny: not-allowed\r\n"), "{said}");
    assert!(said.contains(&format!("--allow {to_bad}\n")), "{said}");
    assert!(bad.is_untouched() && net.names.asked().is_empty(), "{:?}", net.names.asked());
    assert!(stderr(&output).contains(&to_bad), "{output:?}");
    assert_eq!(net.says(&flags, &format!("curl -sS http://{to_good}/")), "good: /");
}

#[test]
fn a_connection_goes_on_after_a_denial() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let script = format!(
        "curl -sS -w '%{{http_code}} %{{num_connects}}\\n' -o /dev/null http://bad.test:1/ -d x -o /dev/null http://{to}/"
    );
    assert_eq!(net.says(&net.flags(&[&to], &[]), &script), "403 1\n200 0");
}

/// A fragment belongs to the client. Directly after a host, the proxy removes it and nothing is left of the
/// target.
#[test]
fn a_target_of_a_host_and_a_fragment_is_the_root() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let get = |rest: &str| {
        format!(">GET http://{to}{rest} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    };
    let requests = ["#f", "/#f", "?q#f", ""].map(get);
    let talks = requests.each_ref().map(|request| [&**request, "<"]);
    net.talk(&net.flags(&[&to], &[]), &talks.each_ref().map(|steps| &steps[..]));
    let mut lines = origin.lines();
    lines.sort();
    assert_eq!(lines, ["GET / HTTP/1.1", "GET / HTTP/1.1", "GET / HTTP/1.1", "GET /?q HTTP/1.1"]);
}
