//! The embedding program may decide about destinations that no list names.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use kennel::{Decision, NetworkRequest, Policy, Sandbox, Session};

use super::{
    Net, Origin, at,
    sessions::{allowing, denied, get, output, said},
};

use crate::support::patient;

/// The questions, as `host:port`.
type Asked = Arc<Mutex<Vec<String>>>;

/// A session whose program answers by the first label of a name, and the questions that it got.
async fn asking(policy: &Policy) -> (Session, Asked) {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let builder = Session::builder(policy).on_request(Duration::from_secs(5), move |request| {
        log.lock().unwrap().push(format!("{}:{}", request.host, request.port));
        async move { decide(&request) }
    });
    (builder.prepare().await.unwrap(), asked)
}

fn decide(request: &NetworkRequest) -> Decision {
    match request.host.split('.').next().unwrap_or_default() {
        "once" => Decision::Allow,
        "always" => Decision::AllowForSession,
        "never" => Decision::DenyForSession,
        _ => Decision::Deny,
    }
}

async fn status(session: &Session, to: &str) -> String {
    let output = output(get(session.command("/payload"), to)).await;
    said(&output).chars().skip("HTTP/1.1 ".len()).take(3).collect()
}

#[tokio::test]
async fn decisions_hold_once_or_for_the_session() {
    let net = Net::new();
    let origin = Origin::named("one");
    let port = origin.port();
    let (session, asked) = asking(&allowing(&net, &[])).await;
    for (name, wanted, questions) in
        [("once.test", "200", 3), ("always.test", "200", 1), ("not.test", "403", 3), ("never.test", "403", 1)]
    {
        let to = at(name, port);
        for _ in 0..3 {
            assert_eq!(status(&session, &to).await, wanted, "{to}");
        }
        let count = asked.lock().unwrap().iter().filter(|asked| **asked == to).count();
        assert_eq!(count, questions, "{to}");
    }
    assert_eq!(origin.seen().len(), 6);
    // Another port is another question. Another spelling is not.
    let before = asked.lock().unwrap().len();
    status(&session, &at("ALWAYS.test.", port)).await;
    assert_eq!(asked.lock().unwrap().len(), before);
    status(&session, "always.test:1").await;
    assert_eq!(asked.lock().unwrap().len(), before + 1);
}

#[tokio::test]
async fn the_program_is_not_asked_about_listed_names() {
    let net = Net::new();
    let origin = Origin::named("one");
    let (good, bad) = (at("good.test", origin.port()), at("always.bad.test", origin.port()));
    let (session, asked) = asking(&allowing(&net, &[&good]).deny(&bad)).await;
    assert_eq!((&*status(&session, &good).await, &*status(&session, &bad).await), ("200", "403"));
    assert!(asked.lock().unwrap().is_empty());
    // Nor about text that is no destination.
    assert_eq!(status(&session, "127.1:80").await, "400");
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn addresses_of_an_allowed_name_are_still_checked() {
    let net = Net::new();
    let origin = Origin::named("one");
    let mut policy = allowing(&net, &[]);
    policy.network.allow_addresses.clear();
    let (session, _asked) = asking(&policy).await;
    let output = output(get(session.command("/payload"), &at("once.test", origin.port()))).await;
    assert!(said(&output).contains("x-kennel-deny: address-blocked"), "{output:?}");
    assert!(origin.is_untouched());
}

#[tokio::test]
async fn no_answer_is_no() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let policy = allowing(&net, &[]);
    let builder = Session::builder(&policy)
        .on_request(Duration::from_millis(300), |_| std::future::pending::<Decision>());
    let session = builder.prepare().await.unwrap();
    let begun = Instant::now();
    let output = output(get(session.command("/payload"), &to)).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300) && took < patient(Duration::from_secs(10)), "{took:?}");
    assert!(said(&output).contains("x-kennel-deny: not-allowed"), "{output:?}");
    assert_eq!(denied(&output), [to.as_str()]);
    assert!(origin.is_untouched());
}

#[tokio::test]
async fn many_equal_requests_are_one_question() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("always.test", origin.port());
    let (session, asked) = asking(&allowing(&net, &[])).await;
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..8 {
        crowd.spawn(output(get(session.command("/payload"), &to)));
    }
    for output in crowd.join_all().await {
        assert!(said(&output).starts_with("HTTP/1.1 200 "), "{output:?}");
    }
    assert_eq!(*asked.lock().unwrap(), [to]);
}

#[tokio::test]
async fn a_one_shot_asks_too() {
    let net = Net::new();
    let origin = Origin::named("one");
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let sandbox =
        Sandbox::new(&allowing(&net, &[])).unwrap().on_request(Duration::from_secs(5), move |request| {
            log.lock().unwrap().push(request.host.clone());
            async move { decide(&request) }
        });
    for (name, wanted) in [("once.test", "HTTP/1.1 200 "), ("not.test", "HTTP/1.1 403 ")] {
        let output = output(get(sandbox.command("/payload"), &at(name, origin.port()))).await;
        assert!(said(&output).starts_with(wanted), "{output:?}");
    }
    assert_eq!(*asked.lock().unwrap(), ["once.test", "not.test"]);
}

#[tokio::test]
async fn a_session_does_not_know_the_answers_of_another() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("always.test", origin.port());
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let policy = allowing(&net, &[]);
    let builder = Session::builder(&policy).on_request(Duration::from_secs(5), move |request| {
        log.lock().unwrap().push(request.host.clone());
        async { Decision::AllowForSession }
    });
    for _ in 0..2 {
        let session = builder.prepare().await.unwrap();
        assert_eq!((&*status(&session, &to).await, &*status(&session, &to).await), ("200", "200"));
    }
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_open_question_delays_no_decided_request() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("good.test", origin.port());
    let policy = allowing(&net, &[&to]);
    let builder =
        Session::builder(&policy).on_request(Duration::from_secs(2), |_| std::future::pending::<Decision>());
    let session = builder.prepare().await.unwrap();
    let waits = tokio::spawn(output(get(session.command("/payload"), "slow.test:80")));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    assert_eq!(status(&session, &to).await, "200");
    assert!(begun.elapsed() < patient(Duration::from_secs(1)), "{:?}", begun.elapsed());
    assert!(said(&waits.await.unwrap()).starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn questions_about_different_hosts_wait_side_by_side() {
    let net = Net::new();
    let policy = allowing(&net, &[]);
    let builder =
        Session::builder(&policy).on_request(Duration::from_secs(1), |_| std::future::pending::<Decision>());
    let session = builder.prepare().await.unwrap();
    let begun = Instant::now();
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..6 {
        crowd.spawn(output(get(session.command("/payload"), &format!("n{n}.test:80"))));
    }
    for output in crowd.join_all().await {
        assert!(said(&output).starts_with("HTTP/1.1 403 "), "{output:?}");
    }
    assert!(begun.elapsed() < patient(Duration::from_secs(3)), "{:?}", begun.elapsed());
}
