//! Requests: what a program can ask for, what it gets, and what ends it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use kennel::connector::{Call, HttpClient, Runtime, RuntimeBuilder, Sending};
use kennel::report::{Boundary, Class, Failure};
use serde_json::{Value, json};

use crate::credentials::{OAUTH2, Vault, granting};
use crate::server::{Authority, Server};
use crate::steps::{Guest, Ran, Said, run};

pub(crate) fn builder() -> RuntimeBuilder {
    Runtime::builder().at_once(4)
}

/// Calls a program with one of the granted hosts.
pub(crate) async fn ask(hosts: &[&str], guest: Guest) -> Ran {
    called(builder(), hosts, guest, Call::new("op")).await
}

pub(crate) async fn called(builder: RuntimeBuilder, hosts: &[&str], guest: Guest, call: Call) -> Ran {
    let connector = builder.build().unwrap().compile(&granting(hosts, OAUTH2), &guest.program()).unwrap();
    run(&connector, call).await
}

/// What a program says of a request: the code, the status, the size, the body, and what reading answers after
/// it.
pub(crate) fn said(code: i32, status: i32, size: i32, body: &str, end: i32) -> Said {
    Said { numbers: vec![code, status, size, end], texts: vec![body.to_owned()] }
}

pub(crate) fn not_done(code: i32) -> Said {
    said(code, -1, -1, "", -1)
}

pub(crate) fn details(ran: &Ran) -> Value {
    serde_json::to_value(Failure::from(ran.error()).details).unwrap()
}

#[tokio::test]
async fn a_server_gets_what_the_program_writes_and_nothing_of_the_connection() {
    let server = Server::http().await;
    let request = json!({
        "method": "post",
        "url": server.url("/status/201?q=%20#part"),
        "headers": {
            "X-Own": "a b",
            "Host": "other.example",
            "Content-Length": "1",
            "Transfer-Encoding": "chunked",
            "Connection": "keep-alive",
            "TE": "trailers",
            "Upgrade": "h2c",
            "Proxy-Authorization": "own",
        },
        "body": "é\n",
    });
    let ran = ask(&[&server.authority()], Guest::new().request(&request)).await;
    assert_eq!(ran.said, [said(0, 201, 5, "short", 0)]);
    let seen = server.only();
    assert_eq!((&*seen.method, &*seen.path, &*seen.body), ("POST", "/status/201?q=%20", "é\n"));
    let headers: Vec<_> = seen.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(headers, [("content-length", "3"), ("host", &*server.authority()), ("x-own", "a b")]);
}

#[tokio::test]
async fn keys_that_are_null_are_as_if_they_were_absent() {
    let server = Server::http().await;
    let request =
        json!({"method": null, "url": server.url("/a"), "headers": null, "body": null, "credential": null});
    let ran = ask(&[&server.authority()], Guest::new().request(&request)).await;
    assert_eq!(ran.said, [said(0, 200, 5, "hello", 0)]);
    assert_eq!(server.only().method, "GET");
}

#[tokio::test]
async fn there_is_an_answer_after_a_request_that_was_done_only() {
    let server = Server::http().await;
    let (good, denied) = (json!({"url": server.url("/a")}), json!({"url": "http://127.0.0.2:1/"}));
    let guest = Guest::new()
        .response()
        .request(&good)
        .request(&denied)
        .request(&good)
        .raw_request("no JSON")
        .request(&good)
        .request(&json!({"url": "no URL"}))
        .request(&json!({"method": "HEAD", "url": server.url("/status/404")}));
    let ran = ask(&[&server.authority()], guest).await;
    let hello = said(0, 200, 5, "hello", 0);
    let nothing = Said { numbers: vec![-1, -1, -1], texts: vec![String::new()] };
    let head = said(0, 404, 0, "", 0);
    assert_eq!(
        ran.said,
        [nothing, hello.clone(), not_done(-1), hello.clone(), not_done(-2), hello, not_done(-2), head]
    );
    assert_eq!(
        ran.told,
        [
            "http_request: request to 127.0.0.2:1: the manifest does not grant this host; add it to capabilities.network.hosts of the manifest",
            "http_request: the request is no valid JSON",
            "http_request: its url: relative URL without a base",
        ]
    );
    ran.ended.unwrap();
}

#[tokio::test]
async fn a_range_without_room_ends_the_call() {
    let server = Server::http().await;
    for range in
        ["(i32.const -1) (i32.const 1)", "(i32.const 0) (i32.const -1)", "(i32.const 2228224) (i32.const 1)"]
    {
        let guest = Guest::new()
            .request(&json!({"url": server.url("/body/100")}))
            .response()
            .request(&json!({"url": server.url("/body/100")}))
            .run(&format!("(drop (call $response_read {range}))"));
        let ran = ask(&[&server.authority()], guest).await;
        let failure = ran.error().failure();
        assert_eq!(failure.class, Class::RuntimeError);
        assert_eq!(failure.message, "http_response_read: the range is not in the memory of the program");
    }
}

#[tokio::test]
async fn a_url_of_another_scheme_is_denied() {
    let server = Server::http().await;
    let own = server.authority();
    for (url, scheme) in [
        ("file:///etc/passwd", "file"),
        (&*format!("ftp://{own}/"), "ftp"),
        (&format!("ws://{own}/"), "ws"),
        ("javascript:alert(1)", "javascript"),
        ("data:,x", "data"),
    ] {
        let ran = ask(&[&own], Guest::new().request(&json!({"url": url})).print(r#"{"output":{}}"#)).await;
        assert_eq!(ran.said[0].numbers[..1], [-1], "{url}");
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest), "{url}");
        assert_eq!(failure.message, format!("request to {scheme}: its url is neither http nor https"));
        let details = serde_json::to_value(&failure.details).unwrap();
        assert_eq!(details, json!({"requested": scheme, "granted": ["http", "https"]}));
    }
    assert!(server.take().is_empty());
}

#[tokio::test]
async fn malformed_requests_are_told_and_are_no_failure_of_the_call() {
    let server = Server::http().await;
    let url = server.url("/");
    let long = "x".repeat(10_000);
    for request in [
        json!({}),
        json!([]),
        json!(null),
        json!({"url": 1}),
        json!({"url": url, "more": 1}),
        json!({"url": url, "body": [1]}),
        json!({"url": url, "headers": []}),
        json!({"url": url, "headers": {"A": 1}}),
        json!({"url": ""}),
        json!({"url": "/relative"}),
        json!({"url": "http://"}),
        json!({"url": "http:///"}),
        json!({"url": "http://[::1"}),
        json!({"url": "http://[fe80::1%eth0]/"}),
        json!({"url": "http://a b/"}),
        json!({"url": "http://a..b/"}),
        json!({"url": "http://1.2.3.4.5/"}),
        json!({"url": "http://0x1ffffffff/"}),
        json!({"url": "http://a\u{0}b/"}),
        json!({"url": "http://xn--a/"}),
        json!({"url": "http://127.0.0.1:0/"}),
        json!({"url": "http://127.0.0.1:65536/"}),
        json!({"url": "http://127.0.0.1:x/"}),
        json!({"url": url.replace("//", "//user@")}),
        json!({"url": url.replace("//", "//:password@")}),
        json!({"url": format!("{url}{}", "<".repeat(11_000))}),
        json!({"url": url, "method": "GET /"}),
        json!({"url": url, "method": "GET\r\nX: y"}),
        json!({"url": url, "method": "CONNECT"}),
        json!({"url": url, "method": "trace"}),
        json!({"url": url, "headers": {"": "a"}}),
        json!({"url": url, "headers": {"A B": "a"}}),
        json!({"url": url, "headers": {"A:": "a"}}),
        json!({"url": url, "headers": {"A\r\nB": "a"}}),
        json!({"url": url, "headers": {"A": "a\r\nB: c"}}),
        json!({"url": url, "headers": {"A": "a\nB: c"}}),
        json!({"url": url, "headers": {"A": "a\u{0}"}}),
        json!({"url": url, "headers": {"A": "\u{7f}"}}),
        json!({"url": url, "headers": {long: "\n"}}),
    ] {
        let ran = ask(&[&server.authority()], Guest::new().request(&request).print(r#"{"output":{}}"#)).await;
        assert_eq!(ran.said, [not_done(-2)], "{request}");
        assert!(ran.told[0].starts_with("http_request: "), "{:?}", ran.told);
        assert!(ran.ended.as_ref().unwrap().output.as_ref().unwrap().is_empty());
    }
    for bytes in [&b""[..], b"{", b"\xff", b"{\"url\":\"\\ud800\"}", &[b'['; 20_000]] {
        let ran = ask(&[&server.authority()], Guest::new().raw_request(bytes)).await;
        assert_eq!(ran.said, [not_done(-2)]);
    }
    // More than 16 MiB.
    let huge = Guest::new().run("(drop (memory.grow (i32.const 300))) (call $number (call $request (i32.const 0) (i32.const 16777217)))");
    let ran = ask(&[&server.authority()], huge.response()).await;
    assert_eq!(ran.said, [not_done(-2)]);
    assert_eq!(ran.told, ["http_request: it has more than 16 MiB"]);
    assert!(server.take().is_empty());
}

#[tokio::test]
async fn all_spellings_of_an_address_are_one_address() {
    let server = Server::http().await;
    let port = server.port;
    for host in
        ["127.0.0.1", "0x7f.1", "127.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "[::ffff:127.0.0.1]"]
    {
        let guest = || Guest::new().request(&json!({"url": format!("HTTP://{host}:{port}/")}));
        let ran = ask(&[&server.authority()], guest()).await;
        assert_eq!(ran.said[0].numbers[..2], [0, 200], "{host} {ran:?}");
        // Granted by no spelling, if it is not granted.
        let ran = ask(&["a.example:443", "127.0.0.2:443"], guest()).await;
        assert_eq!(ran.error().failure().class, Class::CapabilityDenied, "{host}");
    }
    assert_eq!(server.take().len(), 7);
    for (host, requested) in [
        ("[::1]", "[::1]:1"),
        ("0", "0.0.0.0:1"),
        ("BÜCHER.example", "xn--bcher-kva.example:1"),
        ("bücher.example.", "xn--bcher-kva.example:1"),
        ("A_b.Example", "a_b.example:1"),
        ("ａ.example", "a.example:1"),
    ] {
        let ran =
            ask(&["b.example:1"], Guest::new().request(&json!({"url": format!("http://{host}:1/")}))).await;
        assert_eq!(details(&ran), json!({"requested": requested, "granted": ["b.example:1"]}), "{host}");
    }
}

#[tokio::test]
async fn a_name_leads_to_this_host_only_if_the_manifest_says_localhost() {
    let authority = Authority::new();
    let server = Server::https_as(&authority, "localhost", "localhost").await;
    let trusting = || builder().certificate_authority(authority.file());
    let guest = || Guest::new().request(&json!({"url": server.url("/")}));
    let ran = called(trusting(), &[&server.authority()], guest(), Call::new("op")).await;
    assert_eq!(ran.said[0].numbers[..2], [0, 200], "{ran:?}");

    // The resolver answers 127.0.0.1 for each name below localhost.
    let name = format!("some.localhost:{}", server.port);
    let guest = || Guest::new().request(&json!({"url": format!("https://{name}/")}));
    let ran = called(trusting(), &[&name], guest(), Call::new("op")).await;
    let failure = ran.error().failure();
    assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest));
    assert!(failure.message.contains("not a public address"), "{}", failure.message);
    assert_eq!(details(&ran)["requested"], *name);

    // The embedding program opens the range. The certificate is not for this name.
    let open = trusting().allow_addresses(["127.0.0.0/8"]);
    let ran = called(open, &[&name], guest(), Call::new("op")).await;
    let failure = ran.error().failure();
    assert_eq!(failure.class, Class::NetworkError);
    assert!(failure.message.starts_with(&format!("{name}: TLS: ")), "{}", failure.message);
}

#[tokio::test]
async fn addresses_that_are_not_public_need_their_own_rule() {
    for host in ["169.254.169.254:80", "10.0.0.1:80", "192.168.1.1:80", "[fe80::1]:80", "0.0.0.0:80"] {
        let ran =
            ask(&["a.example:80"], Guest::new().request(&json!({"url": format!("http://{host}/")}))).await;
        let requested = &details(&ran)["requested"];
        assert_eq!((ran.error().failure().class, requested), (Class::CapabilityDenied, &json!(host)));
    }
}

#[tokio::test]
async fn a_call_narrows_the_hosts_of_the_manifest() {
    let (first, second) = (Server::http().await, Server::http().await);
    let (one, two) = (&*first.authority(), &*second.authority());
    let ask = |server: &Server, allowed: &[&str]| {
        let guest = Guest::new().request(&json!({"url": server.url("/")}));
        let call = Call::new("op").allow_hosts(allowed.iter().copied());
        async move { called(builder(), &[one, two], guest, call).await }
    };
    for allowed in [&[][..], &[one], &[two, one], &["a.example:443", one]] {
        assert_eq!(ask(&first, allowed).await.said[0].numbers[..2], [0, 200]);
        first.only();
    }
    let ran = ask(&second, &[one]).await;
    let failure = ran.error().failure();
    assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Action));
    assert_eq!(failure.message, format!("request to {two}: the call does not grant this host"));
    assert_eq!(details(&ran), json!({"requested": two, "granted": [one]}));
    // A redirect is narrowed, too.
    let guest =
        Guest::new().request(&json!({"url": first.url(&format!("/redirect/302/{}", second.url("/")))}));
    let ran = called(builder(), &[one, two], guest, Call::new("op").allow_hosts([one])).await;
    assert_eq!(ran.error().failure().boundary, Boundary::Action);
    assert!(second.take().is_empty());
    // A call does not widen the manifest.
    let guest = Guest::new().request(&json!({"url": second.url("/")}));
    let ran = called(builder(), &[one], guest, Call::new("op").allow_hosts([two])).await;
    let failure = ran.error().failure();
    assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest));
    assert_eq!(details(&ran), json!({"requested": two, "granted": [one]}));
    // A list that cannot be read allows nothing.
    let guest = Guest::new().request(&json!({"url": first.url("/")}));
    let ran = called(builder(), &[one], guest, Call::new("op").allow_hosts([one, "a b:1"])).await;
    assert!(ran.error().to_string().starts_with("allowed host a b:1: "), "{}", ran.error());
    assert!(ran.said.is_empty());
}

#[tokio::test]
async fn what_was_denied_is_what_the_call_returns() {
    let server = Server::http().await;
    let output = r#"{"output":{"all":"well"}}"#;
    let good = json!({"url": server.url("/")});
    let (denied, failed) = (json!({"url": "http://127.0.0.2:1/"}), json!({"url": server.url("/nonsense")}));
    let guest = Guest::new;
    for (guest, class) in [
        (guest().request(&denied).print(output), Some(Class::CapabilityDenied)),
        (guest().request(&good).request(&denied).print(output), Some(Class::CapabilityDenied)),
        (guest().request(&denied).request(&failed).print(output), Some(Class::NetworkError)),
        (guest().request(&denied).raw_request("").print(output), Some(Class::CapabilityDenied)),
        (guest().request(&denied).run("(call $exit (i32.const 0))"), Some(Class::CapabilityDenied)),
        (guest().request(&denied).run("(call $exit (i32.const 7))"), Some(Class::CapabilityDenied)),
        (guest().request(&denied).run("unreachable"), Some(Class::CapabilityDenied)),
        (guest().request(&denied).print("no JSON"), Some(Class::CapabilityDenied)),
        (guest().request(&denied).request(&good).print(output), None),
        (guest().request(&failed).request(&denied).request(&good).print(output), None),
    ] {
        let ran = ask(&[&server.authority()], guest).await;
        match class {
            Some(class) => assert_eq!(ran.error().failure().class, class),
            None => assert_eq!(ran.ended.unwrap().output.unwrap()["all"], "well"),
        }
    }
}

/// Answers without a network. Keeps what it was asked.
#[derive(Clone, Default)]
struct Canned(Arc<Mutex<Vec<String>>>);

impl HttpClient for Canned {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        self.0.lock().unwrap().push(format!("{request:?}"));
        Box::pin(async move {
            let mut response = Response::new(Bytes::new());
            match request.uri().path() {
                "/moved" => {
                    *response.status_mut() = hyper::StatusCode::FOUND;
                    response.headers_mut().insert("location", "https://b.example/".try_into().unwrap());
                }
                "/far" => {
                    *response.status_mut() = hyper::StatusCode::FOUND;
                    response.headers_mut().insert("location", "https://c.example/".try_into().unwrap());
                }
                "/large" => *response.body_mut() = vec![0; 11 << 20].into(),
                "/fails" => {
                    let wire = json!({"class": "network_error", "message": "no network", "boundary": "external",
                        "retriable": true, "details": null, "audit_id": null});
                    return Err(serde_json::from_value(wire).unwrap());
                }
                _ => *response.body_mut() = Bytes::from(request.uri().to_string()),
            }
            Ok(response)
        })
    }
}

#[tokio::test]
async fn another_client_gets_granted_requests_only() {
    let client = Canned::default();
    let ask = |path: &str, credential: Option<&str>| {
        let guest = Guest::new()
            .request(&json!({"url": format!("https://a.example{path}"), "credential": credential}));
        let call = Call::new("op").credentials(Vault::with("hidden"));
        let builder = builder().http_client(client.clone());
        async move { called(builder, &["a.example:443", "b.example:443"], guest, call).await }
    };
    let ran = ask("/a?b#c", Some("oauth2")).await;
    assert_eq!(ran.said[0].texts, ["https://a.example/a?b"]);
    assert_eq!(ask("/moved", Some("oauth2")).await.said[0].texts, ["https://b.example/"]);
    assert_eq!(ask("/far", None).await.error().failure().class, Class::CapabilityDenied);
    assert_eq!(ask("/large", None).await.error().failure().class, Class::ResourceLimitExceeded);
    assert_eq!(ask("/fails", None).await.error().to_string(), "no network");
    let asked = client.0.lock().unwrap().clone();
    assert_eq!(asked.len(), 6);
    assert!(asked[0].contains("\"authorization\": Sensitive"), "{}", asked[0]);
    assert!(asked[2].contains("b.example") && !asked[2].contains("authorization"), "{}", asked[2]);
    assert!(!asked.concat().contains("hidden"));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_denied_very_often_gets_slow() {
    let text = r#"{"url":"http://127.0.0.2:1/"}"#;
    let code = format!(
        "(local.set $read (i32.const 300))
         (loop $again
            (drop (call $request (i32.const 1024) (i32.const {})))
            (br_if $again (local.tee $read (i32.sub (local.get $read) (i32.const 1)))))",
        text.len()
    );
    let start = tokio::time::Instant::now();
    let ran = ask(&["a.example:1"], Guest::new().raw_request(text).run(&code)).await;
    assert_eq!(ran.error().failure().class, Class::CapabilityDenied);
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
}
