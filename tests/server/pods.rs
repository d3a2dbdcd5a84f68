//! A worker in a pod of Kubernetes. `tests/server/pod` makes the conditions of `deploy/kubernetes` by hand.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::{Value, json};

use crate::server::{Server, children, wait_until};
use crate::streams::hosts;

/// What deploy/kubernetes/config.yaml says of templates.
const CONFIG: &str = "hosts = 2\n[template.base]\nlife = '1h'\nlimits = { memory = '2G' }\n";

/// Ends the test if it cannot make a pod: only root of the machine maps 65,536 ids.
macro_rules! only_as_root {
    () => {
        if !geteuid().is_root() {
            eprintln!("SKIP {}: only root makes a pod", module_path!());
            return;
        }
    };
}

/// A line of `/proc/PID/status`, without its name.
fn status(pid: Pid, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

#[test]
fn a_worker_makes_sandboxes_in_a_pod() {
    only_as_root!();
    let mut server = Server::in_pod(&[], CONFIG);
    let front = server.front();
    // The pod is as deploy/kubernetes asks for it.
    let ids = fs::read_to_string(format!("/proc/{front}/uid_map")).unwrap();
    assert_eq!(ids.split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
    assert_eq!(status(front, "Uid:").split_whitespace().next(), Some("101000"));
    assert_eq!(status(front, "NSpid:").split_whitespace().next_back(), Some("1"));
    assert_eq!(status(front, "NoNewPrivs:"), "1");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(status(front, set), "0".repeat(16), "{set}");
    }

    let made = server.create();
    assert_eq!(
        server.run(&made, "id -u; echo text > file; cat file; touch /etc/x || echo refused").0,
        "1000\ntext\nrefused\n"
    );
    let written = server.of(&made, "POST", "/files?path=given", "application/octet-stream", b"bytes");
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(server.of(&made, "GET", "/files?path=given", "", b"").body, b"bytes");
    // The limit of the template holds for each process.
    assert_eq!(server.run(&made, "ulimit -d").0, "2097152\n");
    let path = format!("/sandboxes/{}", made.id);
    assert_eq!(server.ask("DELETE", &path, &Value::Null).status, 204);
    assert_eq!(server.of(&made, "GET", "/health", "", b"").status, 502);
    assert_eq!(server.directories(), 0);

    // The front is process 1 here, and inherits what a killed host leaves.
    let lost = server.create();
    kill(Pid::from_raw(hosts(&server)[0]), Signal::SIGKILL).unwrap();
    let others: Vec<_> = (0..8).map(|_| server.create()).collect();
    for made in &others {
        assert_eq!(server.run(made, "echo here").0, "here\n");
        assert_eq!(server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null).status, 204);
    }
    server.ask("DELETE", &format!("/sandboxes/{}", lost.id), &Value::Null);
    wait_until("only hosts are left, and nobody who has ended", || children(front).len() == 2);
    // SIGTERM of the engine: nothing runs, so it ends.
    server.signal(Signal::SIGTERM);
    assert!(server.ends());
}

#[test]
fn a_pod_with_the_usual_proc_is_told_what_is_wrong() {
    only_as_root!();
    let server = Server::in_pod(&["--masked"], CONFIG);
    let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!(answer.status, 500, "{}", answer.text());
    let words = "template base: mount proc at /proc: Operation not permitted; inside Docker or Kubernetes: ";
    assert!(answer.message().starts_with(words), "{}", answer.text());
    assert!(answer.message().ends_with("(Kubernetes: procMount: Unmasked)"), "{}", answer.text());
    assert!(!server.errors().contains("panicked"), "{}", server.errors());
}
