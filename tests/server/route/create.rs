//! Where sandboxes are made, and how many a token may have.

use std::collections::BTreeSet;
use std::thread;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::route::{Router, end, round, worker, worker_in, worker_of};
use crate::server::{Client, Made, token, wait_until};

fn many(client: &Client, count: usize) -> Vec<Made> {
    thread::scope(|scope| {
        let made: Vec<_> = (0..count).map(|_| scope.spawn(|| client.create())).collect();
        made.into_iter().map(|made| made.join().unwrap()).collect()
    })
}

#[test]
fn creations_spread_also_if_they_come_together() {
    let (one, two) = (worker("one", "sandboxes = 8"), worker("two", "sandboxes = 8"));
    let router = Router::before(&[&one, &two]);
    let made = many(&router, 16);
    let count = |name: &str| made.iter().filter(|made| worker_in(&made.id) == name).count();
    assert_eq!((count("one"), count("two")), (8, 8), "both are full");
    let answer = router.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.message(), "8 sandboxes run, which is the limit of this worker");
    assert!(answer.header("retry-after").is_some());
    wait_until("the router says so", || router.request("GET", "/readyz", &[], b"").status == 503);
    assert_eq!(end(&router, &made[0].id), 204);
    wait_until("there is room", || router.request("GET", "/readyz", &[], b"").status == 200);
    assert_eq!(worker_in(&router.create().id), worker_in(&made[0].id), "where the room is");
}

#[test]
fn a_template_or_a_language_is_made_where_it_is() {
    let language = "[template.base]\n[language.ruby]\nfile = 'a'\nrun = ['cat', 'a']\n";
    let (one, two) = (worker("one", "[template.base]\n[template.other]"), worker("two", language));
    let router = Router::before(&[&one, &two]);
    for _ in 0..6 {
        assert_eq!(worker_in(&router.create_from(&json!({ "templateID": "other" })).id), "one");
        let answer = router.ask("POST", "/run_code", &json!({ "language": "ruby", "code": "it" }));
        assert_eq!(answer.json()["run_result"]["stdout"], "it", "{}", answer.text());
        let run = json!({ "template": "other", "argv": ["echo", "here"] });
        let answer = router.ask("POST", "/v1/run", &run);
        assert_eq!(answer.json()["stdout"]["text"], "here\n", "{}", answer.text());
    }
    let answer = router.ask("POST", "/v2/sandboxes", &json!({ "templateID": "none" }));
    assert_eq!(answer.status, 404);
    assert!(answer.message().contains("this token may use: base"), "{}", answer.message());
    let answer = router.ask("POST", "/run_code", &json!({ "language": "none", "code": "" }));
    assert!(answer.message().contains("is not served; there are bash"), "{}", answer.text());
    assert_eq!(router.request("POST", "/v2/sandboxes", &[], b"{}").status, 401);
}

#[test]
fn a_worker_that_drains_makes_nothing_and_keeps_what_it_has() {
    let (one, two) = (worker("one", ""), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let made = many(&router, 12);
    let stays = made.iter().find(|made| worker_in(&made.id) == "one").unwrap();
    one.signal(Signal::SIGTERM);
    // Also before the router knows.
    for _ in 0..8 {
        assert_eq!(worker_in(&router.create().id), "two");
    }
    wait_until("it says so", || router.workers().iter().any(|worker| worker["draining"] == true));
    assert_eq!(router.run(stays, "echo still").0, "still\n");
    two.signal(Signal::SIGTERM);
    wait_until("both drain", || router.request("GET", "/readyz", &[], b"").status == 503);
    let answer = router.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!((answer.status, answer.message().as_str()), (503, "the worker is ending: ask another one"));
}

#[test]
fn without_a_worker_a_creation_comes_later() {
    let mut one = worker("one", "");
    let router = Router::before(&[&one]);
    one.kill();
    let answer = router.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
    router.wait_for(1, "silent");
    let answer = router.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!((answer.status, answer.message().as_str()), (503, "no worker answers just now"));
    assert_eq!(router.request("GET", "/v2/sandboxes", &[], b"").status, 503);
    one.start_again();
    router.wait_for(1, "alive");
    router.create();
}

#[test]
fn the_same_key_makes_the_same_sandbox() {
    let workers = ["one", "two", "three"].map(|name| worker(name, ""));
    let workers: Vec<_> = workers.iter().collect();
    // Two routers agree without a word.
    let routers = [Router::before(&workers), Router::before(&workers)];
    let create = |number: usize, key: &str, body: &[u8]| {
        let headers = [("x-api-key", "key-of-me"), ("idempotency-key", key)];
        routers[number % 2].request("POST", "/v2/sandboxes", &headers, body)
    };
    let ids = |number| -> Vec<String> {
        let made = (0..12).map(|key| Made::of(&create(number, &format!("key-{key}"), b"{}")).id);
        made.collect()
    };
    let first = ids(0);
    assert_eq!(first, ids(1));
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 12);
    assert!(first.iter().map(|id| worker_in(id)).collect::<BTreeSet<_>>().len() > 1, "{first:?}");
    assert_eq!(create(1, "key-0", b"{\"timeout\": 9}").status, 409, "another body");
}

#[test]
fn quotas_hold_over_all_workers() {
    let workers = [worker_of("one", "", &tokens(4, 100)), worker_of("two", "", &tokens(4, 100))];
    let router = Router::with_tokens(&[&workers[0], &workers[1]], &tokens(4, 100));
    let made = thread::scope(|scope| {
        let asked: Vec<_> =
            (0..10).map(|_| scope.spawn(|| router.ask("POST", "/v2/sandboxes", &json!({})))).collect();
        let (made, refused): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|answer| answer.join().unwrap()).partition(|answer| answer.status == 201);
        assert_eq!((made.len(), refused.len()), (4, 6));
        for answer in refused {
            assert_eq!((answer.status, answer.header("retry-after")), (429, Some("2")));
            assert_eq!(answer.message(), "token me: 4 sandboxes run, which is its limit");
        }
        made
    });
    round();
    assert_eq!(
        router.ask("POST", "/v1/run", &json!({ "argv": ["true"] })).status,
        429,
        "workers say the same"
    );
    assert_eq!(router.ask_as("key-of-you", "POST", "/v2/sandboxes", &json!({})).status, 201, "another token");
    assert_eq!(router.ask_as("nobody", "POST", "/v2/sandboxes", &json!({})).status, 401);
    // One that ends makes room for one that waits.
    assert_eq!(end(&router, made[0].json()["sandboxID"].as_str().unwrap()), 204);
    router.create();
    // Another file counts at once.
    std::fs::write(router.place.path().join("tokens.toml"), tokens(9, 100)).unwrap();
    router.signal(Signal::SIGHUP);
    wait_until("the new quota holds", || router.ask("POST", "/v2/sandboxes", &json!({})).status == 201);
    std::fs::write(router.place.path().join("tokens.toml"), "rubbish").unwrap();
    router.signal(Signal::SIGHUP);
    wait_until("it says so", || router.errors().contains("the tokens are as before"));
}

fn tokens(sandboxes: usize, creations: usize) -> String {
    let lines = format!("sandboxes = {sandboxes}\ncreations = {creations}");
    format!("{}{}", token("me", &lines), token("you", ""))
}

#[test]
fn a_rate_holds_over_all_workers() {
    let workers = [worker("one", ""), worker("two", "")];
    let router = Router::with_tokens(&[&workers[0], &workers[1]], &tokens(100, 3));
    // A creation waits for two seconds at most: three at once, and two times three.
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> =
            (0..20).map(|_| scope.spawn(|| router.ask("POST", "/v2/sandboxes", &json!({})).status)).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    let made = statuses.iter().filter(|status| **status == 201).count();
    assert!((6..=9).contains(&made), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "{statuses:?}");
}

#[test]
fn the_sandbox_of_one_command_counts_once() {
    let workers = [worker("one", ""), worker("two", "")];
    let router = Router::with_tokens(&[&workers[0], &workers[1]], &tokens(2, 100));
    thread::scope(|scope| {
        let run =
            scope.spawn(|| router.ask("POST", "/v1/run", &json!({ "argv": ["sleep", "7"], "timeout": 20 })));
        round();
        let made = router.create();
        assert_eq!(router.ask("POST", "/v2/sandboxes", &json!({})).status, 429, "two run");
        assert_eq!(run.join().unwrap().json()["report"]["exit_code"], 0);
        wait_until("it does not count any more", || {
            router.ask("POST", "/v2/sandboxes", &json!({})).status == 201
        });
        assert_eq!(end(&router, &made.id), 204);
    });
}
