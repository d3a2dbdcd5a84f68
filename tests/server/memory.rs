//! Where a container has a limit of memory, the worker refuses sandboxes before it, and ends the largest one.

use std::fs;

use serde_json::{Value, json};

use crate::server::{Answer, STREAM, Server, events, send, start, wait_until};

/// Says how many megabytes of a thousand are in use.
fn uses(server: &Server, megabytes: u64) {
    let cgroup = server.place.path().join("cgroup");
    // At once: the server may read it at any moment.
    fs::write(cgroup.join("new"), (megabytes * 1_000_000).to_string()).unwrap();
    fs::rename(cgroup.join("new"), cgroup.join("memory.current")).unwrap();
}

#[test]
fn the_largest_sandbox_is_ended_before_the_worker_is_and_told_why() {
    let server = Server::in_container("admit_wait = '10ms'");
    let (large, small) = (server.create(), server.create());
    let mut stream = server.connect();
    let headers =
        [("x-access-token", &*large.token), ("e2b-sandbox-id", &*large.id), ("content-type", STREAM)];
    let command = "x=$(head -c 40000000 /dev/zero | tr '\\0' x); touch /tmp/large; sleep 60; echo $x | wc";
    send(&mut stream, "POST", "/process.Process/Start", &headers, &start(command));
    wait_until("it is large", || server.run(&large, "test -e /tmp/large").1 == 0);

    uses(&server, 920);
    wait_until("none is made any more", || {
        let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
        if answer.status == 201 {
            let id = answer.json()["sandboxID"].as_str().unwrap().to_owned();
            server.ask("DELETE", &format!("/sandboxes/{id}"), &Value::Null);
        }
        answer.status == 503 && answer.message().contains("90 % of this worker's memory")
    });
    assert_eq!(server.run(&large, "echo here").0, "here\n", "those that are there go on");

    uses(&server, 970);
    let path = format!("/sandboxes/{}", large.id);
    wait_until("it is ended", || server.ask("GET", &path, &Value::Null).status == 404);
    uses(&server, 100);
    assert_eq!(server.ask("GET", &path, &Value::Null).header("x-kennel-reason"), Some("memory"));
    let found = events(&Answer::read(stream).body);
    let error = &found.last().unwrap()["error"];
    assert_eq!(error["code"], "unavailable", "{found:?}");
    assert!(error["message"].as_str().unwrap().contains("memory ran out"), "{error}");
    assert_eq!(server.run(&small, "echo here").0, "here\n", "the other one goes on");
    wait_until("there is room again", || server.ask("POST", "/v2/sandboxes", &json!({})).status == 201);
}
