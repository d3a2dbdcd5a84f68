//! Admission, numbers, the end of a server, and its hosts.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::server::{Server, token, wait_until};
use crate::streams::hosts;

#[test]
fn what_does_not_fit_waits_and_then_is_told() {
    let server = Server::start("sandboxes = 1\nadmit_wait = '1s'");
    let made = server.create();
    let begun = Instant::now();
    let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
    assert_eq!(answer.status, 503);
    assert!(begun.elapsed() >= Duration::from_millis(900), "it waited");
    assert_eq!(answer.message(), "1 sandboxes run, which is the limit of this worker");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(server.request("GET", "/readyz", &[], b"").status, 503);
    assert_eq!(server.request("GET", "/healthz", &[], b"").status, 200);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.ask("POST", "/v2/sandboxes", &json!({})).status);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null).status, 204);
        assert_eq!(waiting.join().unwrap(), 201, "who waits is served as soon as there is room");
    });
}

#[test]
fn a_client_that_goes_away_leaves_no_sandbox() {
    let server = Server::start("");
    let headers = [("x-api-key", &*server.key)];
    for number in 0..30 {
        let mut stream = server.connect();
        crate::server::send(&mut stream, "POST", "/v2/sandboxes", &headers, b"{}");
        thread::sleep(Duration::from_millis(number % 10));
        drop(stream);
    }
    let left = || std::fs::read_dir(server.state().join("sandboxes")).unwrap().count();
    // What was answered in time is there; nothing else is.
    wait_until("the others are gone", || {
        let listed = server.ask("GET", "/v2/sandboxes", &Value::Null).json().as_array().unwrap().len();
        listed == left() && listed < 30
    });
    for sandbox in server.ask("GET", "/v2/sandboxes", &Value::Null).json().as_array().unwrap() {
        let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
        // One whose client has just gone may be ending.
        let status = server.ask("DELETE", &path, &Value::Null).status;
        assert!(matches!(status, 204 | 404), "{status}");
    }
    wait_until("nothing is left", || left() == 0);
}

#[test]
fn a_host_that_just_begins_ends_with_its_front() {
    for pause in 0..12 {
        let mut server = Server::start("hosts = 1");
        for pid in hosts(&server) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        }
        thread::sleep(Duration::from_millis(pause * 8));
        server.signal(Signal::SIGTERM);
        wait_until("the front has ended", || server.has_ended());
        wait_until("its host has ended", || hosts(&server).is_empty());
    }
}

#[test]
fn tokens_take_turns() {
    let tokens = format!("{}{}", token("me", ""), token("you", ""));
    let server = Server::with_tokens("sandboxes = 1\nadmit_wait = '10s'", &tokens);
    let first = server.create();
    let (tell, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        // Five of one owner wait before the only one of another.
        for (delay, owner) in [(0, "me"), (50, "me"), (100, "me"), (150, "me"), (200, "me"), (300, "you")] {
            let (server, tell) = (&server, tell.clone());
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(delay));
                let key = format!("key-of-{owner}");
                let answer = server.ask_as(&key, "POST", "/v2/sandboxes", &json!({}));
                assert_eq!(answer.status, 201, "{}", answer.text());
                tell.send(owner).unwrap();
                let id = answer.json()["sandboxID"].as_str().unwrap().to_owned();
                server.ask_as(&key, "DELETE", &format!("/sandboxes/{id}"), &Value::Null);
            });
        }
        thread::sleep(Duration::from_millis(600));
        server.ask("DELETE", &format!("/sandboxes/{}", first.id), &Value::Null);
    });
    drop(tell);
    let order: Vec<_> = told.iter().collect();
    let place = order.iter().position(|owner| *owner == "you").unwrap();
    assert!(place <= 2, "{order:?}");
}

#[test]
fn a_queue_has_an_end() {
    let server = Server::start("sandboxes = 0\nqueue = 2\nadmit_wait = '2s'");
    thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..2).map(|_| scope.spawn(|| server.ask("POST", "/v2/sandboxes", &json!({})))).collect();
        thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let answer = server.ask("POST", "/v2/sandboxes", &json!({}));
        assert_eq!((answer.status, answer.message().as_str()), (503, "too many creations wait already"));
        assert!(begun.elapsed() < Duration::from_secs(1));
        for answer in waiting {
            assert_eq!(answer.join().unwrap().status, 503);
        }
    });
}

#[test]
fn creations_that_come_together_are_spread_over_the_hosts() {
    let server = Server::start("");
    thread::scope(|scope| {
        let made: Vec<_> = (0..16).map(|_| scope.spawn(|| server.create())).collect();
        let ids: Vec<_> = made.into_iter().map(|made| made.join().unwrap().id).collect();
        let first = ids.iter().filter(|id| id.starts_with("kennel-a")).count();
        assert!((4..=12).contains(&first), "{ids:?}");
    });
}

#[test]
fn creations_have_a_rate() {
    let server = Server::with_tokens("admit_wait = '10ms'", &token("me", "creations = 3"));
    let begun = Instant::now();
    let statuses: Vec<_> = (0..6).map(|_| server.ask("POST", "/v2/sandboxes", &json!({})).status).collect();
    // Three in each second, however long that took.
    let most = 3 * (1 + usize::try_from(begun.elapsed().as_secs()).unwrap());
    let made = statuses.iter().filter(|status| **status == 201).count();
    assert!((3..=most).contains(&made), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "{statuses:?}");
    thread::sleep(Duration::from_secs(1));
    assert_eq!(server.ask("POST", "/v2/sandboxes", &json!({})).status, 201);
}

#[test]
fn numbers_are_there_without_ids() {
    let server = Server::start("");
    let made = server.create();
    server.run(&made, "true");
    let text = server.request("GET", "/metrics", &[], b"").text();
    for line in [
        "kennel_server_running 1",
        "kennel_server_room 999",
        "kennel_server_waiting 0",
        "kennel_server_creation_seconds_count{template=\"base\"} 1",
        "kennel_server_command_seconds_count{template=\"base\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains(&made.id));
    server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null);
    wait_until("its end is counted", || {
        let text = server.request("GET", "/metrics", &[], b"").text();
        text.contains("kennel_server_ended_total{reason=\"ended\"} 1")
            && text.contains("kennel_server_running 0")
    });
}

#[test]
fn a_drain_lets_what_runs_end_and_takes_nothing_new() {
    let mut server = Server::start("");
    let made = server.create();
    server.signal(Signal::SIGTERM);
    wait_until("it says so", || server.request("GET", "/readyz", &[], b"").status == 503);
    assert_eq!(server.ask("POST", "/v2/sandboxes", &json!({})).status, 503);
    assert_eq!(server.run(&made, "echo still").0, "still\n");
    assert!(!server.has_ended());
    assert_eq!(server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null).status, 204);
    assert!(server.ends());
    wait_until("the hosts have ended", || hosts(&server).is_empty());
    assert_eq!(std::fs::read_dir(server.state().join("sandboxes")).unwrap().count(), 0);
}

#[test]
fn a_second_signal_ends_at_once_and_leaves_nothing() {
    let mut server = Server::start("");
    let made = server.create();
    server.run(&made, "sleep 1000 & mkdir closed; touch closed/x; chmod 0 closed");
    server.signal(Signal::SIGTERM);
    thread::sleep(Duration::from_millis(200));
    assert!(!server.has_ended());
    server.signal(Signal::SIGTERM);
    assert!(server.ends());
    wait_until("the hosts have ended", || hosts(&server).is_empty());
    assert_eq!(std::fs::read_dir(server.state().join("sandboxes")).unwrap().count(), 0);
}

#[test]
fn hosts_without_a_front_end_after_their_time() {
    let mut server = Server::start("orphan = '1s'");
    let made = server.create();
    server.restart();
    assert_eq!(server.run(&made, "echo here").0, "here\n", "another front came in time");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.run(&made, "echo here").0, "here\n");
    server.signal(Signal::SIGKILL);
    wait_until("the hosts end", || hosts(&server).is_empty());
    assert_eq!(std::fs::read_dir(server.state().join("sandboxes")).unwrap().count(), 0);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    // Whoever made it knows the seed, and with it all tokens.
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(place.path().join("seed"), [0; 32]).unwrap();
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_kennel-server"));
    let output =
        server.args(["serve", "--listen", "127.0.0.1:0", "--state"]).arg(place.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("must be a directory of this user"), "{words}");
}

#[test]
fn a_directory_has_one_server() {
    let server = Server::start("");
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_kennel-server"));
    let output =
        second.args(["serve", "--listen", "127.0.0.1:0", "--state"]).arg(server.state()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another server uses it"));
}

#[test]
fn the_audit_log_has_a_line_for_each_thing() {
    let server = Server::start("audit = 'audit.log'");
    let made = server.create();
    server.run(&made, "true");
    server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null);
    let read = || std::fs::read_to_string(server.place.path().join("audit.log")).unwrap();
    wait_until("the end is there", || read().contains("\"ended\""));
    let events: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["created", "command", "ended"]);
    assert!(events.iter().all(|event| event["sandbox"] == json!(made.id) && event["token"] == "default"));
    assert_eq!(events[2]["reason"], "ended");
    assert!(!read().contains(&made.token));
    assert!(events.iter().all(|event| event.get("trace").is_none()));
}

#[test]
fn the_audit_log_names_the_trace_of_a_request() {
    let server = Server::start("audit = 'audit.log'");
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let trace = format!("00-{id}-00f067aa0ba902b7-01");
    let headers = [("X-API-KEY", server.key.as_str()), ("traceparent", &trace)];
    assert_eq!(server.request("POST", "/v2/sandboxes", &headers, b"{}").status, 201);
    server.request("GET", "/v2/sandboxes", &headers[1..], b"");
    let log = std::fs::read_to_string(server.place.path().join("audit.log")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["created", "refused"]);
    assert!(events.iter().all(|event| event["trace"] == *id), "{log}");
}
