//! Jobs that nobody should send: each is dead at once, and its letter says why.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::nats::{ID, Nats};
use crate::server::{Server, wait_until};

#[test]
fn a_job_that_makes_no_sense_is_dead_at_once() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    let deep = format!("{{\"argv\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let long = json!({ "argv": ["true"], "k".repeat(100_000): 1 }).to_string();
    for (id, body) in [
        ("empty", Vec::new()),
        ("garbage", vec![0xff; 1000]),
        ("cut", b"{\"argv\": [\"true\"".to_vec()),
        ("deep", deep.into_bytes()),
        ("long", long.into_bytes()),
        ("wrong", b"{\"argv\": \"true\"}".to_vec()),
        ("no-program", b"{\"argv\": []}".to_vec()),
        ("wider", b"{\"argv\": [\"true\"], \"limits\": {\"pids\": 1000000}}".to_vec()),
        ("unknown", b"{\"argv\": [\"true\"], \"stdin\": {\"sha256\": \"../seed\"}}".to_vec()),
    ] {
        nats.publish_with(&[(ID, id)], body.clone());
        let (line, _) = nats.outcome(id);
        assert_eq!((&line["outcome"], &line["deliveries"]), (&json!("dead"), &json!(1)), "{id}: {line}");
        assert!(line["error"].as_str().unwrap().len() < 5000);
        wait_until("its letter is there", || nats.value("dead", id).is_some());
        assert_eq!(nats.value("dead", id).unwrap(), line);
    }
    nats.empties();
}

#[test]
fn a_job_without_an_id_has_its_number() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    let body = json!({ "argv": ["true"] }).to_string();
    nats.publish_with(&[], body.clone());
    nats.publish_with(&[(ID, "../../seed")], body.clone());
    nats.publish_with(&[(ID, "a.>")], body);
    for number in 1..=3 {
        let (line, _) = nats.outcome(&format!("sequence-{number}"));
        assert!(line["error"].as_str().unwrap().starts_with("Nats-Msg-Id: "), "{line}");
    }
    nats.empties();
}

#[test]
fn a_body_that_is_too_large_or_not_there_is_dead_at_once() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    nats.publish_object("huge", &vec![b' '; (16 << 20) + 1]);
    assert!(nats.outcome("huge").0["error"].as_str().unwrap().contains("16777216 are the most"));
    nats.publish_with(&[(ID, "gone"), ("Kennel-Body", "object")], "");
    assert!(nats.outcome("gone").0["error"].as_str().unwrap().contains("not in the object store"));
    nats.empties();
}

#[test]
fn a_body_that_is_a_link_is_not_followed() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    nats.publish_object("own", br#"{"argv": ["echo", "own"]}"#);
    for (id, link) in [
        ("itself", json!({ "bucket": "kennel-bodies", "name": "job-itself" })),
        ("to-own", json!({ "bucket": "kennel-bodies", "name": "job-own" })),
        ("to-other", json!({ "bucket": "other", "name": "a" })),
        ("to-bucket", json!({ "bucket": "other" })),
    ] {
        let info = json!({ "bucket": "kennel-bodies", "nuid": "a", "size": 1, "options": { "link": link } });
        nats.publish_forged(id, info, &[]);
        let (line, _) = nats.outcome(id);
        assert_eq!(
            (&line["error"], &line["deliveries"]),
            (&json!("the body: it is a link"), &json!(1)),
            "{id}"
        );
    }
    for (id, bucket, nuid) in
        [("bucket", "other", "a"), ("pattern", "kennel-bodies", ">"), ("none", "kennel-bodies", "")]
    {
        let info = json!({ "bucket": bucket, "nuid": nuid, "size": 1 });
        nats.publish_forged(id, info, &[]);
        assert_eq!(nats.outcome(id).0["error"], "the body: it is an object of another name", "{id}");
    }
    assert_eq!(nats.outcome("own").1["stdout"]["text"], "own\n");
    nats.empties();
}

#[test]
fn a_body_with_missing_or_wrong_pieces_is_dead_after_its_deliveries() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config("jobs = 1\ndeliveries = 2"));
    for (id, pieces, why) in [
        ("missing", &["1234"][..], "4 of 10 bytes"),
        ("longer", &["12345", "123456"], "has not the size of 10 bytes"),
        ("hollow", &["1", "", "2"], "has not the size of 10 bytes"),
    ] {
        let info = json!({ "bucket": "kennel-bodies", "nuid": id, "size": 10, "chunks": 3 });
        nats.publish_forged(id, info, pieces);
        let (line, _) = nats.outcome(id);
        assert_eq!((&line["outcome"], &line["deliveries"]), (&json!("dead"), &json!(2)), "{line}");
        let history = line["history"].as_array().unwrap();
        assert!(history.len() == 2 && line["error"].as_str().unwrap().contains(why), "{line}");
    }
    // The room for one job is free again.
    nats.publish("next", &json!({ "argv": ["true"] }));
    assert_eq!(nats.outcome("next").0["outcome"], "done");
    nats.empties();
}

#[test]
fn what_is_no_result_is_overwritten() {
    let Some(nats) = Nats::start() else { return };
    let _server = Server::start(&nats.config(""));
    nats.put("results", "taken", "x");
    nats.publish("taken", &json!({ "argv": ["true"] }));
    wait_until("it has its result", || nats.value("results", "taken").is_some());
    assert_eq!(nats.outcome("taken").0["outcome"], "done");
    nats.empties();
}

#[test]
fn a_result_that_cannot_be_stored_lets_others_pass() {
    let Some(nats) = Nats::start() else { return };
    let mut server = Server::start(&nats.config(""));
    let outcome = json!({ "job": "no key", "outcome": "done", "deliveries": 1, "worker": "w", "time": "t", "nonce": "n" });
    let parcel = json!({ "outcome": outcome, "settle": { "Remove": 1_000_000 }, "notify": null });
    let results = server.state().join("results");
    wait_until("it keeps results there", || results.is_dir());
    fs::write(results.join("wrong.n"), format!("{parcel}\n")).unwrap();
    server.restart();
    nats.publish("next", &json!({ "argv": ["true"] }));
    assert_eq!(nats.outcome("next").0["outcome"], "done");
    nats.empties();
}

#[test]
fn results_fit_a_server_of_small_messages() {
    let Some(nats) = Nats::start_with("max_payload: 64KB") else { return };
    let _server = Server::start(&nats.config(""));
    for (id, length) in [("large", 300_000), ("just", 64_000), ("small", 50_000)] {
        let script = format!("head -c {length} /dev/zero | tr '\\0' x");
        nats.publish(id, &json!({ "argv": ["sh", "-c", script] }));
        let (line, answer) = nats.outcome(id);
        assert_eq!(answer["stdout"]["text"].as_str().unwrap().len(), length, "{line}");
        assert_eq!(line["object"].is_string(), length > 60_000, "{line}");
    }
    nats.empties();
}

#[test]
fn a_job_reaches_neither_nats_nor_other_results() {
    let Some(nats) = Nats::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("nats.token");
    fs::write(&secret, "secret-of-nats").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let server = Server::start(&nats.config(""));
    let state = server.state();
    wait_until("it keeps results there", || state.join("results").is_dir());
    fs::write(state.join("results").join("other.1"), "x\nsecret-of-others").unwrap();
    let script = format!(
        "(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached
        for home in 127.0.0.1 localhost $(hostname -I); do
            (exec 3<>/dev/tcp/$home/{port}) 2>/dev/null && echo reached $home
        done
        cat {state}/results/* {state}/seed {state}/key 2>/dev/null
        tr '\\0' '\\n' < /proc/self/environ | grep -i nats
        grep -rl secret-of {place} 2>/dev/null
        echo tried",
        port = nats.port(),
        state = state.display(),
        place = server.place.path().display(),
    );
    nats.publish("hostile", &json!({ "argv": ["bash", "-c", script] }));
    let (_, answer) = nats.outcome("hostile");
    assert_eq!(answer["stdout"]["text"], "tried\n", "{answer}");
}
