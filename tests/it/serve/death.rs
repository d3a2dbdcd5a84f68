//! If a client or a host dies, nothing is left, and the next one gets a clear answer.

use std::{fs, process::Stdio, time::Duration};

use kennel::{Policy, Profile, Session};

use super::{Hosted, runtime};
use crate::support::{HEARTBEAT, beats, is_silent, patient, stderr, until, workspace};

#[test]
fn killing_the_client_at_any_moment_leaves_nothing() {
    let session = Hosted::start(&[]);
    for delay in 0..30u64 {
        let mut child = session.exec(&["sh", "-c", HEARTBEAT]).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(delay * 150));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    until("they stop beating", || is_silent(session.workspace.path()));
    assert!(session.is_well());
}

#[test]
fn killing_the_host_kills_everything_and_the_next_start_cleans_up() {
    let mut session = Hosted::start(&[]);
    let mut child = session.exec(&["sh", "-c", &format!("({HEARTBEAT}) & wait")]).spawn().unwrap();
    until("it beats", || beats(session.workspace.path()) > 2);
    session.kill();
    assert_eq!(child.wait().unwrap().code(), Some(125), "the client does not hang");
    until("it stops beating", || is_silent(session.workspace.path()));
    assert!(session.socket.exists(), "nobody was left to remove it");
    let said = stderr(&session.shell("true"));
    assert!(said.contains("no session listens here") && said.contains("hint:"), "{said}");
    let output = session.kennel(&["exec", "s", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("no session of that name is running"), "{output:?}");
    let output = session.kennel(&["session", "list"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("s.sock"), "{output:?}");
    let output = session.kennel(&["session", "start", "--name", "s"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(session.is_well());
    assert!(session.kennel(&["session", "stop", "s"]).status().unwrap().success());
}

#[test]
fn lost_session_tells_a_waiting_client_why() {
    let mut session = Hosted::start(&[]);
    let mut command = session.exec(&["sh", "-c", "echo ready; exec sleep 60"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command runs", || {
        let list = session.kennel(&["session", "list", "--json"]).output().unwrap();
        String::from_utf8_lossy(&list.stdout).contains("\"running\": 1")
    });
    session.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("ended before it reported"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_listener_removes_the_socket_and_kills_the_commands_of_clients() {
    let (dir, runtime) = (workspace(), runtime());
    let session = Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path())).await.unwrap();
    let listening = session.listen_in(runtime.path().join("r"), "a").unwrap();
    assert_eq!(listening.socket(), runtime.path().join("r/a.sock"));
    let mut child = std::process::Command::new(listening.client())
        .current_dir(&dir)
        .arg(listening.socket())
        .args(["sh", "-c", HEARTBEAT])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it beats", || beats(dir.path()) > 2);
    let socket = listening.socket().to_owned();
    drop(listening);
    assert!(!socket.exists());
    let code = tokio::task::spawn_blocking(move || child.wait().unwrap().code()).await.unwrap();
    assert_eq!(code, Some(125));
    until("it stops beating", || is_silent(dir.path()));
    // The session itself lives on, and can listen again under the same name.
    assert!(session.command("true").output().await.unwrap().outcome.status.success());
    let again = session.listen_in(runtime.path().join("r"), "a").unwrap();
    let left = fs::read_dir(runtime.path().join("r")).unwrap().count();
    assert_eq!(left, 3, "socket, lock, client");
    drop(again);
    assert_eq!(fs::read_dir(runtime.path().join("r")).unwrap().count(), 1, "the client");
}

/// Also if no client comes that could see it.
#[tokio::test]
async fn session_that_was_shut_down_listens_no_more() {
    let (dir, runtime) = (workspace(), runtime());
    let session = Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path())).await.unwrap();
    let listening = session.listen_in(runtime.path().join("r"), "a").unwrap();
    session.shutdown().await;
    tokio::time::timeout(patient(Duration::from_secs(5)), listening.stopped()).await.unwrap();
    assert!(!listening.socket().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_was_shut_down_tells_its_clients() {
    let (dir, runtime) = (workspace(), runtime());
    let session = Session::prepare(&Policy::profile(Profile::NoNetwork, dir.path())).await.unwrap();
    let listening = session.listen_in(runtime.path().join("r"), "a").unwrap();
    let mut client = std::process::Command::new(listening.client());
    client.current_dir(&dir).arg(listening.socket()).args(["sh", "-c", HEARTBEAT]).stderr(Stdio::piped());
    let client = client.spawn().unwrap();
    until("it beats", || beats(dir.path()) > 2);
    session.shutdown().await;
    tokio::time::timeout(patient(Duration::from_secs(5)), listening.stopped()).await.unwrap();
    assert!(!listening.socket().exists());
    let output = tokio::task::spawn_blocking(move || client.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("the session has ended"), "{output:?}");
}
