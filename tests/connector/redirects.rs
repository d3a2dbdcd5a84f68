//! Redirects lead to granted hosts only, and carry no secret to another origin.

use kennel::connector::{Call, Runtime};
use kennel::report::{Boundary, Class, Failure};
use serde_json::{Value, json};

use crate::credentials::{OAUTH2, Vault, granting};
use crate::server::{Authority, Server};
use crate::steps::{Guest, Ran, run};

/// Calls a program that makes one request.
async fn ask(authority: &Authority, hosts: &[&str], request: &Value) -> Ran {
    let runtime = Runtime::builder().at_once(4).certificate_authority(authority.file()).build().unwrap();
    let program = Guest::new().request(request).program();
    let connector = runtime.compile(&granting(hosts, OAUTH2), &program).unwrap();
    run(&connector, Call::new("op").credentials(Vault::with("k1"))).await
}

#[tokio::test]
async fn the_same_origin_gets_the_credential_again_and_another_never() {
    let authority = Authority::new();
    let (first, second) = (Server::https(&authority).await, Server::https(&authority).await);
    let plain = Server::http().await;
    let hosts = [&*first.authority(), &*second.authority(), &*plain.authority()];
    let headers =
        json!({"Authorization": "own", "Cookie": "own", "Proxy-Authorization": "own", "Accept": "a"});
    for (path, credential) in [
        // Within one origin.
        ("/redirect/302//hello".to_owned(), [Some("Bearer k1"), None]),
        // To another port, by TLS and without.
        (format!("/redirect/302/{}", second.url("/hello")), [None, None]),
        (format!("/redirect/307/{}", plain.url("/hello")), [None, None]),
        // Away and back again.
        (
            format!("/redirect/301/{}", second.url(&format!("/redirect/308/{}", first.url("/hello")))),
            [None, None],
        ),
    ] {
        for (kind, mine) in [(Some("oauth2"), "Bearer k1"), (None, "own")] {
            let request = json!({"url": first.url(&path), "headers": headers, "credential": kind});
            let ran = ask(&authority, &hosts, &request).await;
            assert_eq!(
                (&ran.said[0].numbers[..2], &*ran.said[0].texts[0]),
                (&[0, 200][..], "hello"),
                "{ran:?}"
            );
            let mut seen = first.take();
            assert_eq!(seen.remove(0).headers["authorization"], mine);
            seen.extend(second.take());
            seen.extend(plain.take());
            let is_same = credential[0].is_some();
            for later in seen {
                assert_eq!(
                    later.headers.get("authorization").map(|_| mine),
                    is_same.then_some(mine),
                    "{path}"
                );
                assert_eq!(later.headers.contains_key("cookie"), is_same, "{path}");
                assert!(!later.headers.contains_key("proxy-authorization"));
                assert_eq!(later.headers["accept"], "a");
            }
        }
    }
}

#[tokio::test]
async fn the_header_that_a_credential_replaces_goes_nowhere_either() {
    let (first, second) = (Server::http().await, Server::http().await);
    let runtime = Runtime::builder().at_once(4).build().unwrap();
    let more = "[capabilities.credential]\nkind = 'api_key'\nheader = 'X-Api-Key'";
    let request = json!({
        "url": first.url(&format!("/redirect/302/{}", second.url("/"))),
        "headers": {"x-api-key": "own"},
        "credential": "api_key",
    });
    let manifest = granting(&[&first.authority(), &second.authority()], more);
    let connector = runtime.compile(&manifest, &Guest::new().request(&request).program()).unwrap();
    run(&connector, Call::new("op").credentials(Vault::with("k1"))).await.ended.unwrap();
    assert_eq!(first.only().headers["x-api-key"], "Bearer k1");
    assert!(!second.only().headers.contains_key("x-api-key"));
}

#[tokio::test]
async fn the_method_and_the_body_follow_the_status() {
    let (authority, server) = (Authority::new(), Server::http().await);
    let hosts = [&*server.authority()];
    for (status, method, then) in [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
        (301, "PUT", "PUT"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (302, "get", "GET"),
    ] {
        let request = json!({
            "method": method,
            "url": server.url(&format!("/redirect/{status}//hello")),
            "headers": {"Content-Type": "text/x"},
            "body": "body",
        });
        ask(&authority, &hosts, &request).await.ended.unwrap();
        let seen = server.take();
        assert_eq!((&*seen[0].method, &*seen[0].body), (&*method.to_uppercase(), "body"));
        let keeps = then.eq_ignore_ascii_case(method);
        assert_eq!((&*seen[1].method, &*seen[1].path), (then, "/hello"), "{status} {method}");
        assert_eq!(seen[1].body, if keeps { "body" } else { "" }, "{status} {method}");
        assert_eq!(seen[1].headers.contains_key("content-type"), keeps);
    }
}

#[tokio::test]
async fn a_status_without_a_place_is_an_answer() {
    let (authority, server) = (Authority::new(), Server::http().await);
    for status in [300, 301, 302, 304, 399] {
        let request = json!({"url": server.url(&format!("/status/{status}"))});
        let ran = ask(&authority, &[&server.authority()], &request).await;
        assert_eq!(ran.said[0].numbers[..2], [0, status]);
        server.only();
    }
}

#[tokio::test]
async fn a_redirect_to_a_host_that_is_not_granted_is_denied() {
    let (authority, server, other) = (Authority::new(), Server::http().await, Server::http().await);
    for (to, requested) in [
        (other.url("/"), other.authority()),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "169.254.169.254:80".to_owned()),
        ("http://0xa9fea9fe/".to_owned(), "169.254.169.254:80".to_owned()),
        ("https://10.0.0.1/".to_owned(), "10.0.0.1:443".to_owned()),
        ("//[::1]:1/".to_owned(), "[::1]:1".to_owned()),
        ("//[::ffff:10.0.0.1]:1/".to_owned(), "10.0.0.1:1".to_owned()),
        // Another port.
        ("//127.0.0.1/".to_owned(), "127.0.0.1:80".to_owned()),
    ] {
        let request = json!({"url": server.url(&format!("/redirect/302/{to}"))});
        let ran = ask(&authority, &[&server.authority()], &request).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest));
        let details = serde_json::to_value(Failure::from(ran.error()).details).unwrap();
        assert_eq!(details, json!({"requested": requested, "granted": [server.authority()]}));
        assert_eq!(ran.said[0].numbers[..3], [-1, -1, -1], "{to}");
        server.only();
    }
    assert!(other.take().is_empty());
}

#[tokio::test]
async fn a_redirect_to_another_scheme_is_denied() {
    let (authority, server) = (Authority::new(), Server::http().await);
    let own = server.authority();
    for to in ["file:///etc/passwd", "javascript:alert(1)", "data:text/plain,hello", "ftp://127.0.0.1/"] {
        let request = json!({"url": server.url(&format!("/redirect/302/{to}"))});
        let ran = ask(&authority, &[&own], &request).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest), "{to}");
        assert!(failure.message.ends_with("is neither http nor https"), "{}", failure.message);
        server.only();
    }
}

#[tokio::test]
async fn a_redirect_to_something_malformed_is_an_error() {
    let (authority, server) = (Authority::new(), Server::http().await);
    let own = server.authority();
    for to in [
        "http://",
        "http://[",
        "http://a:b@127.0.0.1/",
        "http://user@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:0/",
    ] {
        let request = json!({"url": server.url(&format!("/redirect/302/{to}"))});
        let ran = ask(&authority, &[&own], &request).await;
        let failure = ran.error().failure();
        assert_eq!(failure.class, Class::NetworkError, "{to}");
        assert_eq!(
            failure.message,
            format!("{own}: it redirects to something that is no URL of http or https")
        );
        server.only();
    }
}

#[tokio::test]
async fn a_loop_of_redirects_ends() {
    let (authority, server) = (Authority::new(), Server::http().await);
    let own = server.authority();
    let ran = ask(&authority, &[&own], &json!({"url": server.url("/loop")})).await;
    let failure = ran.error().failure();
    assert_eq!(failure.class, Class::NetworkError);
    assert_eq!(failure.message, format!("{own}: more than 10 redirects"));
    assert_eq!(server.take().len(), 11);
}
