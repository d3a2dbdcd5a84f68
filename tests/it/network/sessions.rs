//! The network of sessions, pools and one-shots of the library: available to each command, gone with the
//! session.

use std::{fs, time::Duration};

use kennel::{Command, Mount, Network, NetworkMode, Output, Policy, Pool, Profile, Sandbox, Session};
use tokio::time::timeout;

use super::{Net, Origin, PROXY, Server, at};
use crate::support::{is_alone, own_children, patient, payload_path};

const PATIENCE: Duration = Duration::from_secs(20);

/// Mode proxy with these rules, the test's name server, and `tests/payload` at `/payload`.
pub fn allowing(net: &Net, allow: &[&str]) -> Policy {
    let mut policy = Policy::profile(Profile::RepoWrite, net.path())
        .mount(Mount::ReadOnly { source: payload_path(), target: Some("/payload".into()) });
    policy.network = Network {
        mode: Some(NetworkMode::Proxy),
        allow: allow.iter().map(|&rule| rule.to_owned()).collect(),
        allow_addresses: vec!["127.0.0.0/8".into()],
        name_servers: vec![net.names.at()],
        ..Network::default()
    };
    policy
}

/// Runs a command that fetches a page.
pub fn get(mut command: Command, to: &str) -> Command {
    let request = format!(">GET http://{to}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n");
    command.args(["talk", PROXY, &request, "!", "<"]);
    command
}

pub async fn output(mut command: Command) -> Output {
    timeout(patient(PATIENCE), command.output()).await.expect("in time").expect("it ran")
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The denials of a command.
pub fn denied(output: &Output) -> Vec<&str> {
    output.outcome.denials.iter().map(|denial| denial.subject.as_str()).collect()
}

#[tokio::test]
async fn commands_one_after_the_other_and_side_by_side_are_served() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let session = Session::prepare(&allowing(&net, &[&to])).await.unwrap();
    for _ in 0..3 {
        let output = output(get(session.command("/payload"), &to)).await;
        assert!(
            said(&output).ends_with("one: /\n[end]\n") && output.outcome.denials.is_empty(),
            "{output:?}"
        );
    }
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..8 {
        crowd.spawn(output(get(session.command("/payload"), &to)));
    }
    for output in crowd.join_all().await {
        assert!(said(&output).ends_with("one: /\n[end]\n"), "{output:?}");
    }
    assert_eq!(origin.seen().len(), 11);
}

#[tokio::test]
async fn each_command_gets_the_denials_of_its_own_time() {
    let net = Net::new();
    let session = Session::prepare(&allowing(&net, &[])).await.unwrap();
    let first = output(get(session.command("/payload"), "a.test:80")).await;
    let second = output(get(session.command("/payload"), "b.test:80")).await;
    let none = output(session.command("true")).await;
    assert_eq!((denied(&first), denied(&second)), (vec!["a.test:80"], vec!["b.test:80"]));
    assert!(none.outcome.denials.is_empty());
    // The next command gets the same denial again.
    let again = output(get(session.command("/payload"), "a.test:80")).await;
    assert_eq!(denied(&again), ["a.test:80"]);
}

#[tokio::test]
async fn a_command_without_network_cannot_reach_the_proxy() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let session = Session::prepare(&allowing(&net, &[&to])).await.unwrap();
    let mut command = session.command("/payload");
    command.args(["connect", PROXY, "127.1.0.1:80", "127.0.0.1:443"]).no_network();
    assert_eq!(said(&output(command).await), "ECONNREFUSED\nECONNREFUSED\nECONNREFUSED\n");
    let mut command = session.command("/payload");
    command.args(["query", "127.0.0.1:53/one.test"]).no_network();
    assert_eq!(said(&output(command).await), "ECONNREFUSED\n");
    let output = output(get(session.command("/payload"), &to)).await;
    assert!(said(&output).ends_with("one: /\n[end]\n"), "{output:?}");
    let sandbox = Sandbox::new(&allowing(&net, &[&to])).unwrap();
    let mut command = sandbox.command("/payload");
    command.args(["connect", PROXY]).no_network();
    assert_eq!(said(&self::output(command).await), "ECONNREFUSED\n");
}

#[tokio::test]
async fn sessions_have_networks_of_their_own() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let (one, other) = (allowing(&net, &[&to]), allowing(&net, &[]));
    let (one, other) = (Session::prepare(&one).await.unwrap(), Session::prepare(&other).await.unwrap());
    let refused = output(get(other.command("/payload"), &to)).await;
    let served = output(get(one.command("/payload"), &to)).await;
    assert!(said(&refused).starts_with("HTTP/1.1 403 ") && said(&served).starts_with("HTTP/1.1 200 "));
    assert_eq!((denied(&refused).len(), denied(&served).len()), (1, 0));
}

#[tokio::test]
async fn a_pool_and_a_one_shot_are_served_too() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let pool = Pool::fill(&allowing(&net, &[&to]), 2).await.unwrap();
    for _ in 0..3 {
        let session = pool.checkout().await.unwrap();
        assert!(said(&output(get(session.command("/payload"), &to)).await).ends_with("one: /\n[end]\n"));
    }
    for sandbox in
        [Sandbox::new(&allowing(&net, &[&to])).unwrap(), Sandbox::eager(&allowing(&net, &[&to])).unwrap()]
    {
        for _ in 0..2 {
            let output = output(get(sandbox.command("/payload"), &to)).await;
            assert!(said(&output).ends_with("one: /\n[end]\n"), "{output:?}");
        }
        let output = output(get(sandbox.command("/payload"), "no.test:1")).await;
        assert_eq!(denied(&output), ["no.test:1"]);
    }
}

#[tokio::test]
async fn the_log_knows_which_command_asked() {
    let net = Net::new();
    let log = crate::support::workspace();
    let file = log.path().join("audit");
    let session = Session::prepare(&allowing(&net, &[]).audit(&file)).await.unwrap();
    for name in ["a.test:80", "b.test:80", "c.test:80"] {
        output(get(session.command("/payload"), name)).await;
    }
    session.shutdown().await;
    let text = fs::read_to_string(&file).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        Some((line["exec"].as_u64(), line["host"].as_str()?.to_owned()))
    };
    let lines: Vec<_> = text.lines().filter_map(line).collect();
    assert_eq!(lines, [(Some(1), "a.test".into()), (Some(2), "b.test".into()), (Some(3), "c.test".into())]);
}

fn descriptors() -> usize {
    open().len()
}

/// The descriptors that this process has open.
fn open() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    entries.map(|entry| fs::read_link(entry.path()).unwrap_or_default().display().to_string()).collect()
}

#[tokio::test]
async fn nothing_is_left_of_a_session_that_ended() {
    if !is_alone("network::sessions::nothing_is_left_of_a_session_that_ended", "exec \"$@\"") {
        return;
    }
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    // The first session makes what stays: tokio's own descriptors.
    drop(session_that_served(&net, &to).await);
    wait("the first is gone", || own_children() == 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = descriptors();
    for round in 0..10 {
        let session = session_that_served(&net, &to).await;
        if round % 2 == 0 {
            session.shutdown().await;
        }
        drop(session);
    }
    wait("nothing is left", || descriptors() <= before && own_children() == 0).await;
}

/// Like `until`, but the runtime goes on.
async fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < patient(PATIENCE), "not in time: {what}: {:?}", open());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn session_that_served(net: &Net, to: &str) -> Session {
    let session = Session::prepare(&allowing(net, &[to])).await.unwrap();
    let output = output(get(session.command("/payload"), to)).await;
    assert!(said(&output).ends_with("one: /\n[end]\n"), "{output:?}");
    session
}

#[tokio::test]
async fn a_shutdown_ends_every_transfer() {
    if !is_alone("network::sessions::a_shutdown_ends_every_transfer", "exec \"$@\"") {
        return;
    }
    let net = Net::new();
    let (sender, ended) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        use std::io::Write;
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        let _ = sender.lock().unwrap().send(());
    });
    let to = at("endless.test", server.port);
    let origin = Origin::named("one");
    drop(session_that_served(&net, &at("one.test", origin.port())).await);
    wait("the first is gone", || own_children() == 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = descriptors();
    let session = Session::prepare(&allowing(&net, &[&to])).await.unwrap();
    let connect = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
    let mut running = Vec::new();
    for _ in 0..3 {
        // The command must not end by itself with its transfer, before it is killed.
        let mut command = session.command("sh");
        command.args(["-c", "\"$@\"; sleep 60", "sh", "/payload", "talk", PROXY, &connect, "<"]);
        command.stdout(kennel::Stdio::null());
        running.push(command.spawn().await.unwrap());
    }
    wait("transfers run", || server.accepted() == 3).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    session.shutdown().await;
    for mut child in running {
        let end = timeout(patient(PATIENCE), child.wait()).await.expect("in time");
        assert!(end.is_err(), "{end:?}");
    }
    drop(session);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..3 {
        ended.recv_timeout(patient(Duration::from_secs(5))).unwrap();
    }
    wait("nothing is left", || descriptors() <= before && own_children() == 0).await;
}

#[test]
fn a_session_that_listens_reports_denials_to_its_clients() {
    let (net, name) = (Net::new(), format!("net-{}-{}", std::process::id(), std::line!()));
    let flags = net.flags(&[], &[]);
    let flags: Vec<String> =
        flags.into_iter().filter(|flag| *flag != "--timeout" && *flag != super::longest()).collect();
    let kennel = |words: &[&str]| {
        std::process::Command::new(crate::support::kennel_path())
            .current_dir(net.path())
            .args(words)
            .output()
            .unwrap()
    };
    let started: Vec<&str> =
        ["session", "start", "--name", &name].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let started = kennel(&started);
    assert!(started.status.success(), "{started:?}");
    let output = kennel(&["exec", &name, "--", "getent", "hosts", "one.test"]);
    let ended = kennel(&["session", "stop", &name]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(super::stderr(&output).contains("kennel: denied: one.test: "), "{output:?}");
    assert!(ended.status.success());
}
