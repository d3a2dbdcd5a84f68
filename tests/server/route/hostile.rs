//! Clients and workers that mean harm.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::route::{Router, worker, worker_in, worker_of};
use crate::server::{KEY, token, wait_until};

#[test]
fn no_client_can_say_what_a_front_says() {
    let one = worker_of("one", "", &format!("{}{}", token("me", ""), token("you", "")));
    let router = Router::before(&[&one]);
    let made = router.create();
    let path = format!("/sandboxes/{}", made.id);
    let headers = [("x-api-key", "key-of-you"), ("x-kennel-owner", "me"), ("x-kennel-sandbox", &*made.id)];
    assert_eq!(router.request("GET", &path, &headers, b"").status, 404);
    let headers = [("x-kennel-sandbox", &*made.id), ("x-kennel-port", "49983")];
    assert_eq!(router.request("GET", "/files?path=x", &headers, b"").status, 502, "it names no sandbox");
    let headers = [("e2b-sandbox-id", &*made.id), ("x-access-token", "one-aaaaaaaaaaaaaaaa.00")];
    assert_eq!(router.request("GET", "/files?path=x", &headers, b"").status, 401);
}

#[test]
fn bodies_and_heads_have_their_limits() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let headers = [("x-api-key", "key-of-me")];
    let large = vec![b' '; (1 << 20) + 1];
    assert_eq!(router.request("POST", "/v2/sandboxes", &headers, &large).status, 413);
    let larger = vec![b' '; (16 << 20) + 1];
    for path in ["/v1/run", "/run_code"] {
        assert_eq!(router.request("POST", path, &headers, &larger).status, 413, "{path}");
    }
    for path in ["/sandboxes//", "/v1/sandboxes/", "/v2/", "//", "/v1/sandboxes/%2e%2e/run", "*"] {
        let status = router.request("POST", path, &headers, b"{}").status;
        assert!((400..=502).contains(&status), "{path}: {status}");
    }
    let long = "x".repeat(1 << 20);
    let mut stream = router.connect();
    let _ = stream.write_all(format!("GET /{long} HTTP/1.1\r\n\r\n").as_bytes());
    let _ = stream.read_to_end(&mut Vec::new());
    router.create();
}

/// A server that answers each connection with this, and then waits for its end.
fn liar(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 65536]);
                let _ = answer(&mut stream);
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    format!("http://{address}")
}

fn whole(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn room(name: &str) -> Value {
    json!({
        "name": name, "instance": "0123456789abcdef", "version": "0.1.0", "templates": ["base"],
        "languages": [], "room": u32::MAX, "running": 0, "waiting": 0, "draining": false, "tokens": {},
    })
}

#[test]
fn a_worker_that_talks_rubbish_is_not_used_and_stops_nobody() {
    let good = worker("good", "");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let without_end = liar(move |stream| {
        stream.write_all(head.as_bytes())?;
        loop {
            stream.write_all(b"10000\r\n")?;
            stream.write_all(&[b' '; 65536])?;
            stream.write_all(b"\r\n")?;
        }
    });
    let text = |text: String| liar(move |stream| stream.write_all(text.as_bytes()));
    let mut no_name = room("x");
    no_name["name"] = json!("../x\u{1b}[2J");
    let mut negative = room("x");
    negative["room"] = json!(-1);
    let liars = [
        without_end,
        text(String::new()),
        text("rubbish".into()),
        text(whole("rubbish")),
        text(whole(&no_name.to_string())),
        text(whole(&negative.to_string())),
        text("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".into()),
        text(format!("{head}5\r\n{{\"nam")),
        "http://127.0.0.1:1".into(),
    ];
    let begun = Instant::now();
    let router = Router::start(&format!("{},http://{}", liars.join(","), good.address), None, &[]);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let seen = router.workers();
    for (worker, liar) in seen.iter().zip(&liars) {
        assert_eq!((&worker["url"], &worker["state"]), (&json!(liar), &json!("silent")), "{worker}");
        assert!(worker["reason"].as_str().is_some_and(|reason| reason.len() < 300), "{worker}");
    }
    assert_eq!(seen.last().unwrap()["state"], "alive");
    thread::sleep(Duration::from_secs(2));
    let made = router.create();
    assert_eq!(router.run(&made, "echo here").0, "here\n");
    assert!(router.memory() < 60 << 10, "{} KiB", router.memory());
}

#[test]
fn a_worker_that_claims_much_and_answers_nothing_is_passed_over() {
    let good = worker("good", "");
    // It says that it has room, and has none for anybody.
    let full = liar_with(|path| match path {
        "/room" => whole(&room("liar").to_string()),
        _ => "HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
    });
    let router = Router::start(&format!("{full},http://{}", good.address), None, &[]);
    for _ in 0..10 {
        assert_eq!(worker_in(&router.create().id), "good");
    }
    assert!(router.request("GET", "/metrics", &[], b"").text().contains("kennel_router_retried_total"));
}

#[test]
fn a_worker_does_not_take_the_name_of_a_living_one() {
    let good = worker("good", "");
    let is_late = std::sync::Arc::new(AtomicBool::new(false));
    let now = std::sync::Arc::clone(&is_late);
    let liar = liar_with(move |path| match path {
        "/room" => whole(&room(if now.load(Ordering::Relaxed) { "good" } else { "other" }).to_string()),
        _ => String::new(),
    });
    let router = Router::start(&format!("{liar},http://{}", good.address), None, &[]);
    let states = || router.workers().iter().map(|one| one["state"].clone()).collect::<Vec<_>>();
    assert_eq!(states(), ["alive", "alive"]);
    let made = good.create();
    is_late.store(true, Ordering::Relaxed);
    router.wait_for(1, "refused");
    for _ in 0..8 {
        assert_eq!(states(), ["refused", "alive"]);
        assert_eq!(router.run(&made, "echo here").0, "here\n");
        thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn router_and_worker_take_a_request_for_the_same() {
    let tokens = token("me", "sandboxes = 1");
    let [one, two] = ["one", "two"].map(|name| worker_of(name, "", &tokens));
    let router = Router::with_tokens(&[&one, &two], &tokens);
    let made = router.create();
    let free = if worker_in(&made.id) == "one" { "two" } else { "one" };
    let label = |port: u16| format!("{port}-{free}-aaaaaaaaaaaaaaaa.example");
    // Each would be a sandbox beyond the quota of the fleet, at the worker that the client has chosen.
    for (path, host) in [
        ("/sandboxes", label(80)),
        ("/v2/sandboxes", label(49983)),
        ("//sandboxes", "example".to_owned()),
        ("/v2/v1/run", "example".to_owned()),
        ("/v2/run_code", label(80)),
    ] {
        let headers = [("x-api-key", KEY), ("host", &*host)];
        let answer = router.request("POST", path, &headers, br#"{"argv": ["true"], "code": ""}"#);
        assert!(matches!(answer.status, 401 | 404 | 501 | 502), "{path}: {}", answer.text());
    }
    let running = |server: &crate::server::Server| server.ask("GET", "/v2/sandboxes", &Value::Null).json();
    assert_eq!(running(&one).as_array().unwrap().len() + running(&two).as_array().unwrap().len(), 1);
}

#[test]
fn without_a_key_no_body_is_read() {
    let one = worker("one", "");
    let router = Router::with_tokens(&[&one], &token("me", ""));
    for key in [&[][..], &[("x-api-key", "unknown")][..]] {
        let mut stream = router.connect();
        let mut head = "POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: 16777216\r\n".to_owned();
        key.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        stream.write_all(format!("{head}\r\nx").as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401");
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_asked_for_again() {
    let good = worker("good", "");
    let broken = liar_with(|path| match path {
        "/room" => whole(&room("liar").to_string()),
        _ => String::new(),
    });
    let router = Router::start(&format!("{broken},http://{}", good.address), None, &[]);
    let statuses: Vec<_> = (0..6).map(|_| router.ask("POST", "/v2/sandboxes", &json!({})).status).collect();
    // It claims the most room, so it is always first.
    assert_eq!(statuses, [502; 6]);
    // With a key the same worker is asked once more, and no other one.
    let with_key = |key: &str| {
        let headers = [("x-api-key", "key-of-me"), ("idempotency-key", key)];
        router.request("POST", "/v2/sandboxes", &headers, b"{}").status
    };
    let statuses: std::collections::BTreeSet<_> = (0..16).map(|key| with_key(&key.to_string())).collect();
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [201, 503]);
    let listed = router.ask("GET", "/v2/sandboxes", &Value::Null);
    let made = listed.json().as_array().unwrap().len();
    assert!((1..16).contains(&made), "those whose key has the good worker: {made}");
    assert_eq!(listed.header("x-kennel-missing"), Some("liar"));
}

#[test]
fn a_list_waits_two_seconds_and_believes_nobody_about_others() {
    let good = worker("good", "");
    let made = good.create();
    let listed = json!([
        { "sandboxID": made.id, "startedAt": "2026-01-01T00:00:00.000Z" },
        { "sandboxID": "liar-aaaaaaaaaaaaaaaa", "startedAt": "2026-01-01T00:00:00.000Z" },
        { "sandboxID": "other-aaaaaaaaaaaaaaaa", "startedAt": "2026-01-01T00:00:00.000Z" },
        7,
    ]);
    let liar = liar_with(move |path| match path {
        "/room" => whole(&room("liar").to_string()),
        _ => whole(&listed.to_string()),
    });
    let silent = liar_with(|path| match path {
        "/room" => whole(&room("silent").to_string()),
        _ => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_owned(),
    });
    let router = Router::start(&format!("{liar},{silent},http://{}", good.address), None, &[]);
    let begun = Instant::now();
    let answer = router.ask("GET", "/v2/sandboxes", &Value::Null);
    assert!((1900..3000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    let ids: Vec<_> = answer.json().as_array().unwrap().iter().map(|one| one["sandboxID"].clone()).collect();
    assert_eq!(ids, [json!(made.id), json!("liar-aaaaaaaaaaaaaaaa")]);
    assert_eq!(answer.header("x-kennel-missing"), Some("silent"));
}

/// A worker that is none: its answer to each path. An empty one breaks off.
fn liar_with(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> String {
    let answer = std::sync::Arc::new(answer);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = std::sync::Arc::clone(&answer);
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut head = [0; 65536];
                let count = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..count]).into_owned();
                let text = answer(head.split([' ', '?']).nth(1).unwrap_or_default());
                let _ = stream.write_all(text.as_bytes());
                if !text.is_empty() && !text.contains("close") {
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
        }
    });
    format!("http://{address}")
}

#[test]
fn many_unknown_ids_disturb_nobody() {
    let good = worker("good", "");
    let router = Router::before(&[&good]);
    let made = router.create();
    thread::scope(|scope| {
        for number in 0..40 {
            let router = &router;
            scope.spawn(move || {
                let id = format!("w{number}-aaaaaaaaaaaaaaaa");
                for _ in 0..3 {
                    assert_eq!(router.request("GET", "/health", &[("e2b-sandbox-id", &id)], b"").status, 502);
                }
            });
        }
        for _ in 0..5 {
            let begun = Instant::now();
            assert_eq!(router.run(&made, "echo here").0, "here\n");
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        }
    });
    wait_until("it is ready", || router.request("GET", "/readyz", &[], b"").status == 200);
}
