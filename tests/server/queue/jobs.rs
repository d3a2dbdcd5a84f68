//! What a job is, and what becomes of it when nothing dies.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::nats::Nats;
use crate::server::{Server, token, wait_until};

#[test]
fn a_job_is_a_command_of_v1_run() {
    let Some(nats) = Nats::start() else { return };
    let audit = tempfile::tempdir().unwrap();
    let file = audit.path().join("audit");
    let server = Server::start(&format!("audit = '{}'\n{}", file.display(), nats.config("")));
    nats.publish(
        "one",
        &json!({
            "argv": ["sh", "-c", "cat; cat a > b; exit 3"],
            "stdin": { "text": "first\n" },
            "files": [{ "path": "a", "content": { "text": "abc" } }],
            "outputs": ["b"],
        }),
    );
    let (line, answer) = nats.outcome("one");
    assert_eq!(
        (&line["job"], &line["outcome"], &line["deliveries"]),
        (&json!("one"), &json!("done"), &json!(1)),
        "{line}"
    );
    assert_eq!(line["worker"], "kennel");
    assert_eq!(answer["stdout"], json!({ "text": "first\n" }));
    assert_eq!(answer["files"], json!([{ "path": "b", "content": { "text": "abc" } }]));
    assert_eq!(answer["report"]["exit_code"], 3);
    nats.empties();
    let log = fs::read_to_string(&file).unwrap();
    for event in ["created", "command", "job"] {
        assert!(log.contains(&format!("\"event\":\"{event}\"")), "{event}: {log}");
    }
    wait_until("it is counted", || metric(&server, "jobs_total{outcome=\"done\"}") == Some(1));
    assert_eq!(metric(&server, "jobs_repeated_total"), Some(0));
    assert_eq!(metric(&server, "command_seconds_count{template=\"base\"}"), Some(1));
    assert_eq!(nats.keys("dead"), Vec::<String>::new());
}

/// A number of `/metrics`.
pub(super) fn metric(server: &Server, name: &str) -> Option<u64> {
    let text = server.ask("GET", "/metrics", &Value::Null).text();
    text.lines().find_map(|line| line.strip_prefix(&format!("kennel_server_{name} "))?.parse().ok())
}

#[test]
fn denials_of_a_job_are_in_its_report() {
    const CONNECT: &str = r"proxy=${https_proxy##*:}; exec 3<>/dev/tcp/127.0.0.1/${proxy%/}
        printf 'CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n' >&3; head -1 <&3";
    let Some(nats) = Nats::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "profile = 'repo-write'\n[network]\nallow = ['a.example:443']\n").unwrap();
    let template = format!("[template.base]\npolicy = '{}'\n", policy.display());
    let _server = Server::start(&format!("{template}{}", nats.config("")));
    nats.publish("denied", &json!({ "argv": ["bash", "-c", CONNECT] }));
    let (_, answer) = nats.outcome("denied");
    assert_eq!(answer["report"]["denials"][0]["subject"], "other.example:443", "{answer}");
}

#[test]
fn large_bodies_and_results_are_objects() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    let text = "x".repeat(3 << 20);
    let body = json!({ "argv": ["sh", "-c", "wc -c < big; cat big"], "files": [{ "path": "big", "content": { "text": text } }] });
    nats.publish_object("big", body.to_string().as_bytes());
    let (line, answer) = nats.outcome("big");
    assert!(line["object"].as_str().unwrap().starts_with("result-big."), "{line}");
    let found = answer["stdout"]["text"].as_str().unwrap();
    assert_eq!(found.len(), 8 + text.len());
    assert!(found.starts_with("3145728\n"));
    let removed = || {
        nats.block_on(async {
            let bodies = nats.context.get_object_store("kennel-bodies").await.unwrap();
            bodies.info("job-big").await.map_or(true, |info| info.deleted)
        })
    };
    wait_until("the body of the job is removed", removed);
}

#[test]
fn the_templates_and_quotas_of_the_token_hold() {
    let Some(nats) = Nats::start() else { return };
    let tokens = format!("{}{}", token("me", ""), token("jobs", "sandboxes = 1\ntemplates = ['base']"));
    let config = format!("[template.base]\nlife = '1m'\n[template.other]\n{}", nats.config("token = 'jobs'"));
    let server = Server::with_tokens(&config, &tokens);
    for (id, body, status, words) in [
        ("other", json!({ "argv": ["true"], "template": "other" }), 403, "token jobs may not use it"),
        ("long", json!({ "argv": ["true"], "timeout": 61 }), 400, "60 s, the limit of template base"),
        ("none", json!({ "argv": ["true"], "template": "none" }), 404, "is not there"),
    ] {
        nats.publish(id, &body);
        let (line, _) = nats.outcome(id);
        assert_eq!((&line["outcome"], &line["status"]), (&json!("dead"), &json!(status)), "{line}");
        assert!(line["error"].as_str().unwrap().contains(words), "{line}");
    }
    // One at a time: each takes half a second.
    let begun = Instant::now();
    for number in 0..4 {
        nats.publish(&format!("turn-{number}"), &json!({ "argv": ["sleep", "0.5"] }));
    }
    for number in 0..4 {
        assert_eq!(nats.outcome(&format!("turn-{number}")).0["deliveries"], 1);
    }
    assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(server.ask("GET", "/v2/sandboxes", &Value::Null).json(), json!([]));
}

#[test]
fn a_cancelled_job_is_not_run_or_killed() {
    let Some(nats) = Nats::start() else { return };
    let server = Server::start(&nats.config("jobs = 1"));
    nats.publish("runs", &json!({ "argv": ["sleep", "1000"], "timeout": 2000 }));
    nats.publish("waits", &json!({ "argv": ["true"] }));
    nats.publish("stays", &json!({ "argv": ["echo", "a"] }));
    wait_until("it runs", || nats.value("attempts", "runs").is_some());
    nats.put("cancelled", "waits", "");
    nats.put("cancelled", "runs", "");
    for id in ["runs", "waits"] {
        let (line, answer) = nats.outcome(id);
        assert_eq!((&line["outcome"], answer), (&json!("cancelled"), Value::Null), "{line}");
    }
    assert_eq!(nats.outcome("stays").1["stdout"]["text"], "a\n");
    nats.empties();
    let made = metric(&server, "creation_seconds_count{template=\"base\"}");
    assert_eq!(made, Some(2), "the one that waited has no sandbox");
    wait_until("its sandbox has ended", || {
        fs::read_dir(server.state().join("sandboxes")).unwrap().next().is_none()
    });
}

#[test]
fn a_worker_that_ends_finishes_what_it_has() {
    let Some(nats) = Nats::start() else { return };
    let mut server = Server::start(&nats.config(""));
    nats.publish("last", &json!({ "argv": ["sh", "-c", "sleep 2; echo done"] }));
    wait_until("it runs", || nats.value("attempts", "last").is_some());
    server.signal(Signal::SIGTERM);
    assert!(server.ends());
    let (line, answer) = nats.find("last").expect("stored before the end");
    assert_eq!((&line["deliveries"], &answer["stdout"]["text"]), (&json!(1), &json!("done\n")));
    assert_eq!(nats.jobs(), 0, "acknowledged before the end");
    nats.publish("next", &json!({ "argv": ["true"] }));
    let _other = Server::start(&nats.config(""));
    assert_eq!(nats.outcome("next").0["outcome"], "done");
}
