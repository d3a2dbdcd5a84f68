//! Workers and routers that come, go and come back.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::route::{Router, end, round, worker, worker_in};
use crate::server::{Answer, events, output, start, wait_until};
use crate::streams::{kill_host_during_a_command, open};

#[test]
fn a_sandbox_is_the_same_through_every_router() {
    let (one, two) = (worker("one", ""), worker("a-two", ""));
    let (router, other) = (Router::before(&[&one, &two]), Router::before(&[&two, &one]));
    for _ in 0..6 {
        let made = router.create();
        assert_eq!(other.run(&made, "echo hello > x; cat x").0, "hello\n");
        assert_eq!(router.of(&made, "GET", "/files?path=x", "text/plain", b"").text(), "hello\n");
        // By its token alone, as some clients do.
        let headers = [("x-access-token", &*made.token)];
        assert_eq!(other.request("GET", "/files?path=x", &headers, b"").text(), "hello\n");
        assert_eq!(router.request("GET", "/health", &[("e2b-sandbox-id", &made.id)], b"").status, 204);
        let path = format!("/sandboxes/{}", made.id);
        assert_eq!(router.ask("GET", &path, &Value::Null).json()["sandboxID"], made.id);
        assert_eq!(other.ask("POST", &format!("/v2{path}/connect"), &json!({})).status, 200);
        assert_eq!(other.ask("POST", &format!("/v1{path}/run"), &json!({ "argv": ["true"] })).status, 200);
        assert_eq!(end(&router, &made.id), 204);
        let gone = other.ask("GET", &path, &Value::Null);
        assert_eq!((gone.status, gone.header("x-kennel-reason")), (404, Some("ended")));
    }
    // What is about no sandbox.
    assert_eq!(router.request("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(router.ask("GET", "/v1/openapi.json", &Value::Null).json()["info"]["title"], "kennel serve");
    assert_eq!(router.ask("GET", "/templates", &Value::Null).status, 501);
    assert_eq!(router.ask("PUT", &format!("/v1/blobs/{}", "0".repeat(64)), &Value::Null).status, 501);
    let numbers = router.request("GET", "/metrics", &[], b"").text();
    for line in
        ["kennel_router_workers{state=\"alive\"} 2", "kennel_router_requests_total{kind=\"create\"} 6"]
    {
        assert!(numbers.contains(line), "{line}: {numbers}");
    }
    wait_until("all room is told", || {
        router.request("GET", "/metrics", &[], b"").text().contains("kennel_router_room 2000")
    });
}

#[test]
fn the_front_of_a_worker_may_die_and_come_back() {
    let (mut one, two) = (worker("one", ""), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let made = std::iter::repeat_with(|| router.create()).find(|made| worker_in(&made.id) == "one").unwrap();
    let health = || router.request("GET", "/health", &[("e2b-sandbox-id", &made.id)], b"");
    one.kill();
    let begun = Instant::now();
    // A client never takes it for lost meanwhile.
    while begun.elapsed() < Duration::from_secs(2) {
        let (health, path) = (health(), format!("/sandboxes/{}", made.id));
        assert_eq!((health.status, health.header("retry-after")), (503, Some("1")), "{}", health.text());
        assert_eq!(router.ask("GET", &path, &Value::Null).status, 503);
    }
    one.start_again();
    assert_eq!(health().status, 204, "at once");
    assert_eq!(router.run(&made, "echo here").0, "here\n");
}

#[test]
fn a_dead_worker_is_told_within_six_seconds() {
    let (mut one, two) = (worker("one", "orphan = '1s'"), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let made = std::iter::repeat_with(|| router.create()).find(|made| worker_in(&made.id) == "one").unwrap();
    let answer = |id: &str| router.request("GET", "/health", &[("e2b-sandbox-id", id)], b"");
    let begun = Instant::now();
    one.kill();
    wait_until("it is told", || answer(&made.id).status == 502);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    let lost = answer(&made.id);
    assert_eq!(lost.header("x-kennel-reason"), Some("session_lost"));
    assert_eq!(lost.message(), "The sandbox was not found");
    let lost = router.ask("GET", &format!("/sandboxes/{}", made.id), &Value::Null);
    assert_eq!((lost.status, lost.header("x-kennel-reason")), (404, Some("session_lost")));
    // So is one of a worker that never was.
    let lost = answer("never-aaaaaaaaaaaaaaaa");
    assert_eq!((lost.status, lost.header("x-kennel-reason")), (502, Some("session_lost")));
    for bad in ["x", "one-short", "../one-aaaaaaaaaaaaaaaa", "one-AAAAAAAAAAAAAAAA"] {
        let answer = answer(bad);
        assert_eq!((answer.status, answer.header("x-kennel-reason")), (502, None), "{bad}");
        let answer = router.ask("GET", &format!("/sandboxes/{bad}"), &Value::Null);
        assert_eq!((answer.status, answer.header("x-kennel-reason")), (404, None), "{bad}");
    }
    for _ in 0..4 {
        assert_eq!(worker_in(&router.create().id), "two");
    }
}

#[test]
fn a_router_that_has_just_begun_takes_no_sandbox_for_lost() {
    let (mut one, two) = (worker("one", ""), worker("two", ""));
    let made = one.create();
    one.kill();
    let router = Router::before(&[&one, &two]);
    let health = || router.request("GET", "/health", &[("e2b-sandbox-id", &made.id)], b"").status;
    assert_eq!(health(), 503);
    one.start_again();
    wait_until("it is found", || health() == 204);
}

#[test]
fn two_workers_of_one_name_are_not_one() {
    let (mut one, other) = (worker("same", "orphan = '2s'"), worker("same", ""));
    let router = Router::before(&[&one, &other]);
    let states =
        || router.workers().iter().map(|seen| seen["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(states(), ["alive", "refused"]);
    let refused = router.workers()[1].clone();
    assert!(
        refused["reason"].as_str().unwrap().contains("give each worker a `name` of its own"),
        "{refused}"
    );
    for _ in 0..4 {
        let made = router.create();
        assert_eq!(one.request("GET", "/health", &[("e2b-sandbox-id", &made.id)], b"").status, 204);
    }
    round();
    assert_eq!(router.errors().matches("is not used").count(), 1, "{}", router.errors());
    // The first keeps its name while it lives, also if its front starts again.
    one.restart();
    router.wait_for(1, "refused");
    assert_eq!(states(), ["alive", "refused"]);
    // And then the other has it.
    one.kill();
    router.wait_for(1, "silent");
    wait_until("the other is used", || states() == ["silent", "alive"]);
    router.create();
}

#[test]
fn one_worker_at_two_addresses_is_one() {
    let one = worker("one", "sandboxes = 3");
    let port = one.address.rsplit_once(':').unwrap().1;
    let urls = format!("http://{},dns+http://localhost:{port}", one.address);
    let router = Router::start(&urls, None, &[]);
    assert!(router.workers().iter().all(|worker| worker["state"] != "refused"), "{:?}", router.workers());
    router.create();
    assert_eq!(router.ask("GET", "/v2/sandboxes", &Value::Null).json().as_array().unwrap().len(), 1);
    assert!(
        router.request("GET", "/metrics", &[], b"").text().contains("kennel_router_workers{state=\"alive\"}")
    );
}

#[test]
fn a_router_lets_streams_end_and_no_longer_than_it_must() {
    let one = worker("one", "");
    let mut router = Router::before(&[&one]);
    let made = router.create();
    let stream = open(&router, &made, "Start", &start("sleep 2; echo late"), &[]);
    std::thread::sleep(Duration::from_millis(500));
    router.signal(Signal::SIGTERM);
    wait_until("nobody is accepted", || std::net::TcpStream::connect(&router.address).is_err());
    let found = events(&Answer::read(stream).body);
    assert_eq!(output(&found, "stdout"), "late\n");
    assert!(router.ends());
    // A second signal ends at once.
    let mut router = Router::before(&[&one]);
    let _stream = open(&router, &made, "Start", &start("sleep 60"), &[]);
    std::thread::sleep(Duration::from_millis(500));
    router.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!router.has_ended());
    router.signal(Signal::SIGTERM);
    assert!(router.ends());
    assert_eq!(one.of(&made, "POST", "/process.Process/List", "application/json", b"{}").status, 200);
}

#[test]
fn the_death_of_a_host_is_told_as_without_a_router() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let made = router.create();
    kill_host_during_a_command(&one, &router, &made);
    let health = || router.request("GET", "/health", &[("e2b-sandbox-id", &made.id)], b"");
    wait_until("it is gone", || health().header("x-kennel-reason") == Some("session_lost"));
}
