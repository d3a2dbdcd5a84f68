//! Requests that two servers could read differently: the origin gets the request that the proxy decided
//! about, or nothing.

use super::{Net, Origin, at};

/// Sends each text and ends. Returns what came back.
fn heard(net: &Net, flags: &[String], requests: &[String]) -> Vec<String> {
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    net.talk(flags, &steps)
}

#[test]
fn a_host_header_decides_nothing_and_is_corrected() {
    let net = Net::new();
    let (good, bad) = (Origin::named("good"), Origin::named("bad"));
    let (to, evil) = (at("good.test", good.port()), at("bad.test", bad.port()));
    let get = format!("GET http://{to}/ HTTP/1.1\\r\\n");
    let requests = [
        format!(">{get}Host: {evil}\\r\\n\\r\\n"),
        format!(">{get}Host: {to}\\r\\nHost: {evil}\\r\\n\\r\\n"),
        format!(">{get}\\r\\n"),
        format!(">{get}Host: x\\r\\nX-Forwarded-Host: {evil}\\r\\n\\r\\n"),
    ];
    for heard in heard(&net, &net.flags(&[&to], &[]), &requests) {
        assert!(heard.starts_with("HTTP/1.1 200 ") || heard.starts_with("HTTP/1.1 400 "), "{heard}");
    }
    assert!(bad.is_untouched() && !good.seen().is_empty());
    for seen in good.seen() {
        assert_eq!(seen.header("host"), to, "one, the one that the proxy decided about: {seen:?}");
    }
}

#[test]
fn a_message_framed_twice_is_refused_or_normalized() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let post = format!(">POST http://{to}/front HTTP/1.1\\r\\nHost: {to}\\r\\n");
    let inner = format!("GET http://{to}/smuggled HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n");
    let length = inner.replace("\\r\\n", "..").len();
    let requests = [
        format!("{post}Content-Length: {length}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Content-Length: 0\\r\\nContent-Length: {length}\\r\\n\\r\\n{inner}"),
        format!("{post}Content-Length: {length}\\r\\nContent-Length: 0\\r\\n\\r\\n{inner}"),
        format!("{post}Content-Length: 0, {length}\\r\\n\\r\\n{inner}"),
        format!("{post}Content-Length: +{length}\\r\\n\\r\\n{inner}"),
        format!("{post}Content-Length: 0x10\\r\\n\\r\\n{inner}"),
        format!("{post}Content-Length : {length}\\r\\n\\r\\n{inner}"),
        format!("{post} Content-Length: {length}\\r\\n\\r\\n{inner}"),
        format!("{post}X: y\\r\\n Content-Length: {length}\\r\\n\\r\\n{inner}"),
        format!("{post}Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: chunked, identity\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: identity, chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: chunked, chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: identity\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: chunked\\r\\n\\r\\nzz\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: chunked\\r\\n\\r\\n-1\\r\\n\\r\\n"),
        format!("{post}Transfer-Encoding: chunked\\r\\n\\r\\nfffffffffffffffff\\r\\n\\r\\n"),
    ];
    let answers = heard(&net, &net.flags(&[&to], &[]), &requests);
    let seen = origin.seen();
    for (request, heard) in requests.iter().zip(&answers) {
        // A tail that is a request is decided about and answered by itself.
        let refused = heard.starts_with("HTTP/1.1 4") || heard.starts_with("[");
        assert!(
            refused || heard.starts_with("HTTP/1.1 200 ") || heard.starts_with("HTTP/1.1 502 "),
            "{request}: {heard}"
        );
    }
    for seen in &seen {
        let framings = seen.headers.iter().filter(|(name, _)| {
            name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
        });
        assert!(framings.count() <= 1, "{seen:?}");
        let frames = seen.header("content-length").parse::<usize>().is_ok()
            || seen.header("content-length").is_empty();
        let chunks = matches!(seen.header("transfer-encoding").as_str(), "" | "chunked");
        assert!(frames && chunks, "{seen:?}");
        assert!(!seen.headers.iter().any(|(name, _)| name.contains(' ')), "{seen:?}");
    }
}

#[test]
fn a_body_that_looks_like_a_request_stays_a_body() {
    let net = Net::new();
    let (origin, bad) = (Origin::named("one"), Origin::named("bad"));
    let (to, evil) = (at("one.test", origin.port()), at("bad.test", bad.port()));
    let inner = format!("GET http://{evil}/ HTTP/1.1\\r\\nHost: {evil}\\r\\n\\r\\n");
    let length = inner.replace("\\r\\n", "..").len();
    let post = format!("POST http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n");
    let requests = [
        format!(">{post}Content-Length: {length}\\r\\n\\r\\n{inner}"),
        format!(">{post}Transfer-Encoding: chunked\\r\\n\\r\\n{length:x}\\r\\n{inner}\\r\\n0\\r\\n\\r\\n"),
    ];
    for heard in heard(&net, &net.flags(&[&to], &[]), &requests) {
        assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{heard}");
    }
    let bodies: Vec<Vec<u8>> = origin.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, vec![inner.replace("\\r\\n", "\r\n").into_bytes(); 2]);
    assert!(bad.is_untouched());
}

#[test]
fn each_of_many_requests_is_decided_by_itself() {
    let net = Net::new();
    let (origin, bad) = (Origin::named("one"), Origin::named("bad"));
    let (to, evil) = (at("one.test", origin.port()), at("bad.test", bad.port()));
    let get = |to: &str| format!("GET http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n");
    let pipelined = format!(">{}{}{}", get(&to), get(&evil), get(&to));
    let heard = heard(&net, &net.flags(&[&to], &[]), &[pipelined]).remove(0);
    let statuses: Vec<&str> = heard.split("HTTP/1.1 ").skip(1).map(|part| &part[..3]).collect();
    assert_eq!(statuses, ["200", "403", "200"], "{heard}");
    assert!(bad.is_untouched());
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn an_answer_that_is_framed_twice_is_not_passed_on_as_two() {
    let net = Net::new();
    let origin = Origin::answering(|seen| {
        match seen.target() {
        "/both" => b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        "/two" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 20\r\n\r\nok".to_vec(),
        "/extra" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Evil: 1\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => super::answer(200, b"fine"),
    }
    });
    let to = at("one.test", origin.port());
    let get = |path: &str| format!("GET http://{to}{path} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n");
    let requests = ["/both", "/two", "/extra"].map(|path| format!(">{}{}", get(path), get("/next")));
    for (request, heard) in requests.iter().zip(heard(&net, &net.flags(&[&to], &[]), &requests)) {
        assert!(!heard.contains("X-Evil") && !heard.contains("x-evil"), "{request}: {heard}");
        let lower = heard.to_lowercase();
        let heads: Vec<&str> = lower.split("http/1.1 ").skip(1).collect();
        for head in heads {
            let framings =
                head.matches("content-length:").count() + head.matches("transfer-encoding:").count();
            assert!(framings <= 1, "{request}: {heard}");
        }
    }
}
