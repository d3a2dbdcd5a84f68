//! Somebody removes files of the runtime directory: clients still find the session, or it ends.

use std::{fs, path::Path, process::Stdio, time::Duration};

use kennel::{Policy, Profile, Session};
use nix::{sys::signal::Signal, unistd::Pid};

use super::{Hosted, runtime};
use crate::support::{HEARTBEAT, beats, patient, stderr, stdout, until, workspace};

fn list(session: &Hosted) -> String {
    stdout(&session.kennel(&["session", "list"]).output().unwrap())
}

#[test]
fn a_removed_socket_is_restored_and_no_command_ends() {
    let session = Hosted::start(&[]);
    let mut running = session.exec(&["sh", "-c", HEARTBEAT]).spawn().unwrap();
    until("it beats", || beats(session.workspace.path()) > 2);
    fs::remove_file(&session.socket).unwrap();
    fs::remove_file(session.client()).unwrap();
    let output = session.kennel(&["session", "start", "--name", "s"]).output().unwrap();
    assert!(stderr(&output).contains("session s is running"), "{output:?}");
    fs::remove_file(&session.socket).unwrap();
    let listed = list(&session);
    assert!(listed.contains(&format!(" {} ", session.host())), "{listed}");
    fs::remove_file(&session.socket).unwrap();
    assert_eq!(session.kennel(&["exec", "s", "--", "sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    assert!(session.is_well(), "also with the client that was put back");
    let before = beats(session.workspace.path());
    until("it still beats", || beats(session.workspace.path()) > before);
    // The session looks for its socket, and then for its lock too.
    for file in [&session.socket.with_extension("lock"), &session.socket] {
        fs::remove_file(file).unwrap();
    }
    // A socket is there before somebody listens on it.
    until("clients find the session", || session.is_well());
    assert!(session.kennel(&["session", "stop", "s"]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(125));
    let left: Vec<_> = fs::read_dir(session.socket.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "the client: {left:?}");
}

#[test]
fn a_session_that_cannot_restore_its_socket_is_reported() {
    let session = Hosted::start(&[]);
    let host = Pid::from_raw(session.host().try_into().unwrap());
    nix::sys::signal::kill(host, Signal::SIGSTOP).unwrap();
    fs::remove_file(&session.socket).unwrap();
    // Each waits for some seconds, so all do it at once.
    let asking = [
        &["session", "list"][..],
        &["session", "stop", "s"],
        &["session", "start", "--name", "s"],
        &["exec", "s", "--", "true"],
    ]
    .map(|arguments| {
        let mut kennel = session.kennel(arguments);
        (arguments, kennel.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    });
    for (arguments, child) in asking {
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert!(
            said.contains("session s: it is running, but its socket was removed"),
            "{arguments:?}: {said}"
        );
        assert!(said.contains("hint: the session recreates its socket"), "{said}");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
    }
    nix::sys::signal::kill(host, Signal::SIGCONT).unwrap();
    assert!(session.kennel(&["session", "stop", "s"]).status().unwrap().success());
}

#[test]
fn a_session_whose_directory_was_removed_ends_after_its_last_command() {
    let mut session = Hosted::start(&[]);
    let mut running = session.exec(&["sh", "-c", "echo; cat"]);
    let mut running = running.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(running.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let directory = session.socket.parent().unwrap();
    fs::remove_dir_all(directory).unwrap();
    assert_eq!(list(&session).lines().count(), 1);
    std::thread::sleep(patient(Duration::from_millis(2500)));
    assert!(session.host.try_wait().unwrap().is_none() && !directory.exists(), "a command runs in it");
    let output = session.kennel(&["session", "start", "--name", "s"]).output().unwrap();
    assert!(output.status.success(), "the name is free: {output:?}");
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
    until("the session ends", || session.host.try_wait().unwrap().is_some());
    assert!(session.is_well(), "the files of the next session stay");
    assert!(session.kennel(&["session", "stop", "s"]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_another_session_took_stays_its_own() {
    let (dir, runtime) = (workspace(), runtime());
    let place = runtime.path().join("r");
    let policy = Policy::profile(Profile::NoNetwork, dir.path());
    let [first, second] =
        [Session::prepare(&policy).await.unwrap(), Session::prepare(&policy).await.unwrap()];
    let listening = first.listen_in(&place, "a").unwrap();
    let remove = |file: &str| fs::remove_file(place.join(file)).unwrap();
    remove("a.sock");
    remove("a.lock");
    let other = second.listen_in(&place, "a").unwrap();
    tokio::time::timeout(patient(Duration::from_secs(5)), listening.stopped()).await.unwrap();
    drop(listening);
    assert!(
        first.command("true").output().await.unwrap().outcome.status.success(),
        "it lives on in its handles"
    );
    let served = |socket: &Path| {
        let mut client = std::process::Command::new(other.client());
        client.current_dir(&dir).arg(socket).args(["sh", "-c", "exit 7"]).status().unwrap().code()
    };
    assert_eq!(served(other.socket()), Some(7));
}
