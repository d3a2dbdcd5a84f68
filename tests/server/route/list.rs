//! Lists over workers: whole, in order, and honest about who is missing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::route::{Router, worker, worker_in, worker_of};
use crate::server::{Client, token, wait_until};

/// All sandboxes, by pages of so many; `between` is called between two pages.
fn ids(client: &Client, limit: usize, order: &str, between: impl Fn()) -> Vec<String> {
    let (mut ids, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("/v2/sandboxes?limit={limit}&order={order}{next}");
        let answer = client.ask("GET", &path, &Value::Null);
        let page = answer.json();
        let page = page.as_array().unwrap();
        assert!(page.len() <= limit);
        ids.extend(page.iter().map(|sandbox| sandbox["sandboxID"].as_str().unwrap().to_owned()));
        match answer.header("x-next-token") {
            Some(token) => next = format!("&nextToken={token}"),
            None => return ids,
        }
        between();
    }
}

#[test]
fn pages_hold_all_once_also_while_others_are_made() {
    let (one, two) = (worker("one", ""), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let made: Vec<_> = (0..11)
        .map(|number| {
            let metadata = json!({ "metadata": { "even": (number % 2 == 0).to_string() } });
            router.create_from(&metadata).id
        })
        .collect();
    let workers: BTreeSet<_> = made.iter().map(|id| worker_in(id)).collect();
    assert_eq!(workers.len(), 2, "{made:?}");
    let falling: Vec<_> = made.iter().rev().cloned().collect();
    for limit in [1, 3, 10, 11, 100] {
        assert_eq!(ids(&router, limit, "desc", || {}), falling, "{limit}");
        assert_eq!(ids(&router, limit, "asc", || {}), made, "{limit}");
    }
    // One of a worker alone has the same pages.
    let of_one: Vec<_> = falling.iter().filter(|id| worker_in(id) == "one").cloned().collect();
    assert_eq!(ids(&one, 2, "desc", || {}), of_one);
    let shifted = ids(&router, 4, "desc", || {
        router.create();
    });
    assert_eq!(shifted, falling, "what comes between two pages shifts nothing");
    let even = router.ask("GET", "/v2/sandboxes?metadata=even%3Dfalse", &Value::Null).json();
    assert_eq!(even.as_array().unwrap().len(), 5);
}

#[test]
fn who_is_missing_is_named_and_a_refusal_is_passed_on() {
    let (mut one, two) =
        (worker("one", ""), worker_of("two", "", &format!("{}{}", token("me", ""), token("you", ""))));
    let router = Router::before(&[&one, &two]);
    let list =
        |key: &str, query: &str| router.ask_as(key, "GET", &format!("/v2/sandboxes{query}"), &Value::Null);
    assert_eq!((list("key-of-me", "").status, list("key-of-me", "").header("x-kennel-missing")), (200, None));
    let refused = list("nobody", "");
    assert_eq!((refused.status, refused.message().as_str()), (401, "X-API-KEY: no token has this key"));
    let refused = list("key-of-me", "?limit=x");
    assert_eq!((refused.status, refused.message().as_str()), (400, "limit: \"x\" is no number"));
    // One refuses, and the other does not.
    assert_eq!(list("key-of-you", "").header("x-kennel-missing"), Some("one"));
    one.kill();
    let answer = list("key-of-me", "");
    assert_eq!((answer.status, answer.header("x-kennel-missing")), (200, Some("one")));
    one.start_again();
    wait_until("it is whole again", || list("key-of-me", "").header("x-kennel-missing").is_none());
}
