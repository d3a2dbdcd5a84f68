//! Workers and NATS die, and every job has one outcome.

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::jobs::metric;
use super::nats::{ID, Nats};
use crate::server::{Server, number, wait_until};

/// Kills the hosts of a server, which starts others.
fn kill_hosts(server: &Server) {
    let state = server.state().display().to_string();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        if words.contains("serve-host") && words.contains(&state) {
            let pid = entry.file_name().to_str().unwrap().parse().unwrap();
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        }
    }
}

#[test]
fn a_job_that_comes_twice_has_one_result_and_runs_once() {
    let Some(nats) = Nats::start() else { return };
    let server = Server::start(&nats.config(""));
    let body = json!({ "argv": ["sh", "-c", "echo $$"] }).to_string();
    nats.publish_with(&[(ID, "twice")], body.clone());
    let (first, _) = nats.outcome("twice");
    // As after the window in which NATS knows it.
    nats.publish_with(&[(ID, "twice.again"), ("Kennel-Job", "twice")], body);
    wait_until("it is acknowledged", || metric(&server, "jobs_total{outcome=\"known\"}") == Some(1));
    nats.empties();
    assert_eq!(nats.outcome("twice").0, first);
    assert_eq!(metric(&server, "creation_seconds_count{template=\"base\"}"), Some(1));
}

#[test]
fn another_worker_runs_the_job_of_one_that_was_killed() {
    let Some(nats) = Nats::start() else { return };
    let mut servers = ["a", "b"].map(|name| Server::start(&format!("name = '{name}'\n{}", nats.config(""))));
    nats.publish("long", &json!({ "argv": ["sh", "-c", "sleep 3; echo done"] }));
    wait_until("it is noted who runs it", || nats.value("attempts", "long").is_some());
    let worker = nats.value("attempts", "long").unwrap()[0]["worker"].as_str().unwrap().to_owned();
    let (killed, other) = if worker == "a" { (0, 1) } else { (1, 0) };
    servers[killed].signal(Signal::SIGKILL);
    assert!(!servers[killed].ends());
    let (line, answer) = nats.outcome("long");
    assert_eq!((&line["worker"], &line["deliveries"]), (&json!(["a", "b"][other]), &json!(2)), "{line}");
    assert_eq!(answer["stdout"]["text"], "done\n");
    nats.empties();
    assert_eq!(metric(&servers[other], "jobs_repeated_total"), Some(1));
}

#[test]
fn a_job_that_fails_every_time_is_dead_with_its_history() {
    let Some(nats) = Nats::start() else { return };
    let server = Server::start(&nats.config("deliveries = 2"));
    nats.publish("unlucky", &json!({ "argv": ["sleep", "100"], "timeout": 200 }));
    for attempt in 1..=2 {
        wait_until("it runs", || {
            let noted = nats.value("attempts", "unlucky");
            noted.is_some_and(|all| all.as_array().unwrap().iter().any(|one| one["delivery"] == attempt))
        });
        sleep(Duration::from_millis(300));
        kill_hosts(&server);
    }
    let (line, _) = nats.outcome("unlucky");
    assert_eq!((&line["outcome"], &line["deliveries"]), (&json!("dead"), &json!(2)), "{line}");
    let history = line["history"].as_array().unwrap();
    let told: Vec<_> =
        history.iter().map(|one| (one["delivery"].as_u64(), one["error"].is_string())).collect();
    assert_eq!(told, [(Some(1), true), (Some(2), true)], "{line}");
    nats.empties();
    assert_eq!(nats.value("dead", "unlucky").unwrap(), line);
}

#[test]
fn a_job_whose_workers_die_is_dead_too() {
    let Some(nats) = Nats::start() else { return };
    let mut server = Server::start(&nats.config("deliveries = 2"));
    nats.publish("deadly", &json!({ "argv": ["sleep", "1000"], "timeout": 2000 }));
    for attempt in 1..=2 {
        wait_until("it runs", || {
            let noted = nats.value("attempts", "deadly");
            noted.is_some_and(|all| all.as_array().unwrap().iter().any(|one| one["delivery"] == attempt))
        });
        server.restart();
    }
    let (line, _) = nats.outcome("deadly");
    assert_eq!((&line["outcome"], line["history"].as_array().unwrap().len()), (&json!("dead"), 2), "{line}");
    assert!(line["error"].as_str().unwrap().contains("no worker has told"), "{line}");
    wait_until("its letter is there", || nats.value("dead", "deadly").is_some());
    nats.empties();
}

/// Takes all messages as often as they are delivered, and tells nothing about them.
fn take_until_stuck(nats: &Nats) {
    nats.block_on(async {
        let stream = nats.context.get_stream("kennel-jobs").await.unwrap();
        let consumer: async_nats::jetstream::consumer::PullConsumer =
            stream.get_consumer("workers").await.unwrap();
        for _ in 0..3 {
            let mut batch =
                consumer.batch().max_messages(10).expires(Duration::from_secs(3)).messages().await.unwrap();
            while let Some(message) = batch.next().await {
                drop(message.unwrap());
            }
        }
    });
}

#[test]
fn a_new_worker_finds_jobs_that_are_delivered_no_more() {
    let Some(nats) = Nats::start() else { return };
    let mut server = Server::start(&nats.config("deliveries = 2\nack_wait = '1s'"));
    nats.bucket("cancelled");
    server.signal(Signal::SIGTERM);
    assert!(server.ends());
    for id in ["tried", "lost", "stored"] {
        nats.publish(id, &json!({ "argv": ["echo", id] }));
    }
    take_until_stuck(&nats);
    assert_eq!(nats.jobs(), 3, "they are in the stream for ever");
    let attempts = [1, 2].map(|delivery| json!({ "delivery": delivery, "worker": "w", "time": "t" }));
    nats.put("attempts", "tried", &json!(attempts).to_string());
    let done = json!({ "job": "stored", "outcome": "done", "deliveries": 1, "worker": "w", "time": "t", "nonce": "n" });
    nats.put("results", "stored", &format!("{done}\n"));
    let _server = Server::start(&nats.config("deliveries = 2"));
    assert_eq!(nats.outcome("tried").0["outcome"], "dead");
    // Nobody has noted that it was tried: it runs.
    assert_eq!(nats.outcome("lost").1["stdout"]["text"], "lost\n");
    nats.empties();
    assert_eq!(nats.outcome("stored").0, done);
}

#[test]
fn a_worker_that_is_cut_off_keeps_its_results() {
    let Some(mut nats) = Nats::start() else { return };
    let mut server = Server::start(&nats.config("ack_wait = '20s'"));
    let body = json!({ "argv": ["sh", "-c", "sleep 2; echo done"] });
    for id in ["memory", "disk"] {
        nats.publish(id, &body);
        wait_until("it runs", || nats.value("attempts", id).is_some());
        nats.kill();
        wait_until("its result is kept", || metric(&server, "results_kept") == Some(1));
        if id == "disk" {
            server.signal(Signal::SIGTERM);
            assert!(server.ends());
            assert_eq!(fs::read_dir(server.state().join("results")).unwrap().count(), 1);
        }
        nats.start_again();
        if id == "disk" {
            server.restart();
        }
        let (line, answer) = nats.outcome(id);
        assert_eq!((&line["deliveries"], &answer["stdout"]["text"]), (&json!(1), &json!("done\n")), "{line}");
        wait_until("none is left", || nats.jobs() == 0 && metric(&server, "results_kept") == Some(0));
    }
    assert_eq!(fs::read_dir(server.state().join("results")).unwrap().count(), 0);
}

#[test]
fn jobs_survive_a_crash_of_nats() {
    let Some(mut nats) = Nats::start() else { return };
    let server = Server::start(&nats.config("jobs = 4"));
    for number in 0..24 {
        nats.publish(
            &format!("job-{number}"),
            &json!({ "argv": ["sh", "-c", "sleep 0.3; echo $0", number.to_string()] }),
        );
    }
    for _ in 0..2 {
        sleep(Duration::from_millis(600));
        nats.kill();
        sleep(Duration::from_millis(300));
        nats.start_again();
    }
    for number in 0..24 {
        let (line, answer) = nats.outcome(&format!("job-{number}"));
        assert_eq!(
            (&line["outcome"], &answer["stdout"]["text"]),
            (&json!("done"), &json!(format!("{number}\n")))
        );
    }
    nats.empties();
    assert_eq!(nats.keys("results").len(), 24);
    drop(server);
}

/// Many jobs, while workers are killed every three seconds, and NATS once. `KENNEL_QUEUE_JOBS` makes it
/// longer.
#[test]
fn every_job_has_one_outcome_while_everything_dies() {
    let jobs = number("KENNEL_QUEUE_JOBS", 300);
    let Some(mut nats) = Nats::start() else { return };
    let mut servers = ["a", "b"].map(|name| {
        Server::start(&format!(
            "name = '{name}'\norphan = '5s'\n{}",
            nats.config("jobs = 4\ndeliveries = 20")
        ))
    });
    let ids: BTreeSet<_> = (0..jobs).map(|number| format!("soak-{number}")).collect();
    for id in &ids {
        nats.publish(id, &json!({ "argv": ["sh", "-c", "sleep 0.2; echo $0", id] }));
    }
    let (begun, mut kills) = (Instant::now(), 0);
    loop {
        let stored = nats.keys("results").len();
        if stored == jobs && nats.jobs() == 0 {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60 + jobs as u64),
            "{stored} of {jobs} after {kills} kills"
        );
        sleep(Duration::from_secs(3));
        servers[kills % 2].restart();
        kills += 1;
        if kills == 2 {
            nats.kill();
            nats.start_again();
        }
    }
    let mut repeated = 0;
    for id in &ids {
        let (line, answer) = nats.find(id).unwrap_or_else(|| panic!("{id} is lost"));
        assert_eq!(line["outcome"], "done", "{line}");
        assert_eq!(answer["stdout"]["text"], format!("{id}\n"));
        repeated += usize::from(line["deliveries"].as_u64() > Some(1));
    }
    let mut found = nats.keys("results");
    found.sort();
    assert_eq!(found, ids.into_iter().collect::<Vec<_>>());
    println!("{jobs} jobs, {kills} kills of workers in {:?}: {repeated} may have run twice", begun.elapsed());
    assert!(kills >= 2, "nothing died");
}
