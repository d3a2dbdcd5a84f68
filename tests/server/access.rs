//! Keys open control routes, tokens of sandboxes one sandbox each, and quotas hold.

use serde_json::{Value, json};

use crate::server::{KEY, STREAM, Server, start, token, wait_until};

#[test]
fn without_the_right_key_nothing_is_done() {
    let server = Server::start("audit = 'audit.log'");
    for (method, path) in [
        ("POST", "/v2/sandboxes"),
        ("POST", "/sandboxes"),
        ("GET", "/v2/sandboxes"),
        ("GET", "/sandboxes/kennel-aaaaaaaaaaaaaaaa"),
        ("DELETE", "/sandboxes/kennel-aaaaaaaaaaaaaaaa"),
    ] {
        let missing = server.request(method, path, &[], b"{}");
        assert_eq!(missing.status, 401, "{path}");
        assert_eq!(missing.message(), "X-API-KEY is missing");
        for key in ["", "x", "e2b_0000000000000000000000000000000000000000"] {
            assert_eq!(server.ask_as(key, method, path, &json!({})).status, 401, "{path} {key:?}");
        }
    }
    let audit = std::fs::read_to_string(server.place.path().join("audit.log")).unwrap();
    assert!(audit.lines().count() >= 20 && audit.contains("\"refused\""), "{audit}");
    assert!(!audit.contains(&server.key));
}

#[test]
fn a_sandboxs_token_opens_this_sandbox_and_nothing_else() {
    let server = Server::start("");
    let (one, other) = (server.create(), server.create());
    let calls = [
        ("POST", "/process.Process/Start", STREAM, start("true")),
        ("POST", "/process.Process/List", "application/json", b"{}".to_vec()),
        ("POST", "/filesystem.Filesystem/Stat", "application/json", br#"{"path": "/"}"#.to_vec()),
        ("GET", "/files?path=/etc/hosts", "application/json", Vec::new()),
        ("POST", "/files?path=x", "application/octet-stream", b"x".to_vec()),
    ];
    for (method, path, kind, body) in &calls {
        assert_eq!(server.of(&one, method, path, kind, body).status, 200, "{path}");
        for token in [&*other.token, "", &*server.key, one.traffic.as_deref().unwrap()] {
            let headers = [("x-access-token", token), ("e2b-sandbox-id", &*one.id), ("content-type", kind)];
            let answer = server.request(method, path, &headers, body);
            assert_eq!(answer.status, 401, "{path} {token}");
        }
    }
    // It is no key, either.
    assert_eq!(server.ask_as(&one.token, "GET", "/v2/sandboxes", &Value::Null).status, 401);
    assert_eq!(
        server.ask_as(&one.token, "DELETE", &format!("/sandboxes/{}", one.id), &Value::Null).status,
        401
    );
}

#[test]
fn a_token_does_not_see_the_sandboxes_of_another() {
    let server = Server::with_tokens("", &format!("{}{}", token("me", ""), token("you", "")));
    let mine = server.create();
    let path = format!("/sandboxes/{}", mine.id);
    assert_eq!(server.ask_as("key-of-you", "GET", "/v2/sandboxes", &Value::Null).json(), json!([]));
    for (method, path) in [
        ("GET", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/timeout")),
        ("POST", format!("{path}/connect")),
        ("POST", format!("{path}/pause")),
    ] {
        let answer = server.ask_as("key-of-you", method, &path, &json!({ "timeout": 1, "memory": false }));
        assert_eq!(answer.status, 404, "{method} {path}");
    }
    assert_eq!(server.run(&mine, "echo here").0, "here\n");
}

#[test]
fn what_the_front_tells_hosts_no_client_can_say() {
    let server = Server::with_tokens("", &format!("{}{}", token("me", ""), token("you", "")));
    let (mine, port) = (server.create(), "49983");
    // The owner of a request is that of its key.
    let headers = [("x-api-key", "key-of-you"), ("x-kennel-owner", "me")];
    assert_eq!(server.request("GET", &format!("/sandboxes/{}", mine.id), &headers, b"").status, 404);
    let headers =
        [("x-kennel-sandbox", &*mine.id), ("x-kennel-port", port), ("content-type", "application/json")];
    let answer = server.request("POST", "/process.Process/List", &headers, b"{}");
    assert_ne!(answer.status, 200);
    for path in ["/host/news", "/host/largest", &format!("/host/sandboxes/{}/memory", mine.id)] {
        let answer = server.ask("POST", path, &json!({}));
        assert_eq!(answer.status, 501, "{path}");
    }
    assert_eq!(server.run(&mine, "echo here").0, "here\n");
}

#[test]
fn a_token_may_use_its_templates_only() {
    let tokens = token("me", "templates = ['base']");
    let server = Server::with_tokens("[template.base]\n[template.other]\n", &tokens);
    server.create();
    let answer = server.ask("POST", "/v2/sandboxes", &json!({ "templateID": "other" }));
    assert_eq!((answer.status, answer.message().as_str()), (403, "template other: token me may not use it"));
    let answer = server.ask("POST", "/v2/sandboxes", &json!({ "templateID": "missing" }));
    assert_eq!(answer.status, 404);
    assert!(answer.message().ends_with("this token may use: base"), "{}", answer.message());
}

#[test]
fn quotas_hold_and_say_whose_they_are() {
    let tokens = token("me", "sandboxes = 2\ncommands = 1\nlife = '1m'");
    let server = Server::with_tokens("admit_wait = '100ms'", &tokens);
    let (first, _second) = (server.create(), server.create());
    let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!(
        (answer.status, answer.message().as_str()),
        (429, "token me: 2 sandboxes run, which is its limit")
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(server.ask("DELETE", &format!("/sandboxes/{}", first.id), &Value::Null).status, 204);
    let again = server.create();
    let answer = server.ask("POST", &format!("/sandboxes/{}/timeout", again.id), &json!({ "timeout": 3600 }));
    assert_eq!(answer.status, 400);
    assert!(answer.message().contains("60 s"), "{}", answer.message());

    // One command that runs is as many as there may be.
    let _stream = server.begin(&again, "sleep 60");
    wait_until("the second command is refused", || {
        let answer = server.of(&again, "POST", "/process.Process/Start", STREAM, &start("true"));
        answer.status == 429 && answer.message() == "token me: 1 commands run, which is its limit"
    });
}

#[test]
fn a_longer_life_than_allowed_is_refused_with_whose_limit_it_is() {
    let server = Server::with_tokens("[template.base]\nlife = '10m'\n", &token("me", "life = '20m'"));
    let answer = server.ask("POST", "/v2/sandboxes", &json!({ "timeout": 601 }));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.message(), "timeout: 601 s is longer than 600 s, the limit of template base");
    server.create_from(&json!({ "timeout": 600 }));
}

#[test]
fn other_tokens_hold_after_a_hangup() {
    let server = Server::with_tokens("", &token("me", ""));
    let made = server.create();
    std::fs::write(server.place.path().join("tokens.toml"), token("you", "")).unwrap();
    server.signal(nix::sys::signal::Signal::SIGHUP);
    wait_until("the new token is known", || {
        server.ask_as("key-of-you", "GET", "/v2/sandboxes", &Value::Null).status == 200
    });
    assert_eq!(server.ask_as(KEY, "GET", "/v2/sandboxes", &Value::Null).status, 401);
    // Who has a sandbox keeps it.
    assert_eq!(server.run(&made, "echo here").0, "here\n");
    std::fs::write(server.place.path().join("tokens.toml"), "nonsense").unwrap();
    server.signal(nix::sys::signal::Signal::SIGHUP);
    wait_until("the mistake is told", || {
        std::fs::read_to_string(server.place.path().join("errors"))
            .unwrap()
            .contains("the tokens are as before")
    });
    assert_eq!(server.ask_as("key-of-you", "GET", "/v2/sandboxes", &Value::Null).status, 200);
}
