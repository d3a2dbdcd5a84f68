//! The place of sockets: valid names, a directory of our own, one session for each name.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use kennel::{Error, Policy, Profile, Session, client::Client, report::ListenError};

use super::{at, runtime};
use crate::support::{only_as_root, stderr, workspace};

async fn session(dir: &Path) -> Session {
    Session::prepare(&Policy::profile(Profile::NoNetwork, dir)).await.unwrap()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_session_does_not_listen_where_its_commands_write() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    symlink(runtime.path(), dir.path().join("link")).unwrap();
    for place in ["r", "link/r"] {
        let error = session.listen_in(dir.path().join(place), "a").unwrap_err();
        assert!(error.chain().contains("through a writable grant"), "{place}: {}", error.chain());
        assert!(error.remedy().is_some() && matches!(error, Error::Grant { .. }), "{error:?}");
        assert_eq!(fs::read_dir(dir.path().join(place)).unwrap().count(), 0, "{place}");
    }
    session.listen_in(runtime.path().join("r"), "a").unwrap();
}

#[tokio::test]
async fn forged_names_are_refused() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let long = "x".repeat(65);
    for name in ["../x", "a/b", "", ".", "..", &long, "a\0b", "a b", "-a", "a\n", "/tmp/x"] {
        let error = session.listen_in(runtime.path().join("r"), name).unwrap_err();
        assert!(matches!(error, Error::Listen(ListenError::Name { .. })), "{name:?}: {error}");
        assert!(error.chain().starts_with("session name ") && error.remedy().is_some(), "{error}");
    }
    assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 0, "nothing was made");
    let longest = "y".repeat(40);
    session.listen_in(runtime.path().join("r"), &longest).unwrap();
}

#[tokio::test]
async fn directory_that_is_a_link_or_open_to_others_is_refused() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let refused = |place: &Path, words: &str| {
        let error = session.listen_in(place, "a").unwrap_err();
        assert!(error.chain().contains(words) && error.remedy().is_some(), "{}", error.chain());
        assert!(error.chain().contains(&place.display().to_string()), "{}", error.chain());
    };
    let real = runtime.path().join("real");
    fs::create_dir(&real).unwrap();
    mode(&real, 0o700);
    let link = runtime.path().join("link");
    symlink(&real, &link).unwrap();
    refused(&link, "is not a directory, or is a link to one");
    fs::write(runtime.path().join("file"), "").unwrap();
    refused(&runtime.path().join("file"), "is not a directory");
    for open in [0o777, 0o1777, 0o750, 0o705, 0o701] {
        mode(&real, open);
        refused(&real, "is open to others");
    }
    mode(&real, 0o700);
    session.listen_in(&real, "a").unwrap();
}

#[tokio::test]
async fn directory_below_one_that_others_can_write_to_is_refused() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    mode(runtime.path(), 0o777);
    let error = session.listen_in(runtime.path().join("r"), "a").unwrap_err();
    assert!(error.chain().contains("is writable by others (mode 777)"), "{}", error.chain());
    mode(runtime.path(), 0o1777);
    session.listen_in(runtime.path().join("r"), "a").unwrap();
}

#[tokio::test]
async fn directory_of_another_user_is_refused() {
    only_as_root!();
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let place = runtime.path().join("r");
    fs::create_dir(&place).unwrap();
    mode(&place, 0o700);
    chown(&place, Some(1000), Some(1000)).unwrap();
    let error = session.listen_in(&place, "a").unwrap_err();
    assert!(error.chain().contains("belongs to user 1000, not to you"), "{}", error.chain());
    let error = session.listen_in(place.join("below"), "a").unwrap_err();
    assert!(error.chain().contains("neither to you nor to root"), "{}", error.chain());
}

#[tokio::test]
async fn path_that_no_socket_can_have_is_refused() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let deep = runtime.path().join("d".repeat(80));
    fs::create_dir(&deep).unwrap();
    mode(&deep, 0o700);
    let error = session.listen_in(deep.join("r"), "a").unwrap_err();
    assert!(error.chain().contains("is longer than a socket's path can be"), "{}", error.chain());
}

#[tokio::test]
async fn name_that_is_taken_is_refused_and_free_again_afterwards() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let place = runtime.path().join("r");
    let first = session.listen_in(&place, "a").unwrap();
    let error = session.listen_in(&place, "a").unwrap_err();
    assert_eq!(error.to_string(), "session a is running");
    // The same if somebody has removed the lock.
    fs::remove_file(place.join("a.lock")).unwrap();
    let error = session.listen_in(&place, "a").unwrap_err();
    assert_eq!(error.to_string(), "session a is running");
    assert!(first.socket().exists(), "the second session leaves it alone");
    session.listen_in(&place, "b").unwrap();
    drop(first);
    session.listen_in(&place, "a").unwrap();
}

#[tokio::test]
async fn a_link_in_the_place_of_the_socket_is_not_followed() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let place = runtime.path().join("r");
    fs::create_dir(&place).unwrap();
    mode(&place, 0o700);
    let victim = runtime.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, place.join("a.sock")).unwrap();
    let listening = session.listen_in(&place, "a").unwrap();
    assert!(!fs::symlink_metadata(listening.socket()).unwrap().is_symlink());
    symlink(&victim, place.join("b.lock")).unwrap();
    session.listen_in(&place, "b").unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
}

/// A client that looks for the name while a session takes it and gives it back finds the session or none, and
/// never a session whose socket is gone.
#[tokio::test]
async fn a_client_that_comes_while_a_session_starts_is_told_the_truth() {
    let (dir, runtime) = (workspace(), runtime());
    let session = session(dir.path()).await;
    let place = runtime.path().join("r");
    session.listen_in(&place, "other").unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut looks = 0;
                while !over.load(Ordering::Relaxed) {
                    looks += 1;
                    if let Err(error @ Error::Listen(ListenError::Unreachable { .. })) =
                        Client::connect_in(&place, "a")
                    {
                        return Err(error);
                    }
                }
                Ok(looks)
            })
        });
        for _ in 0..500 {
            drop(session.listen_in(&place, "a").unwrap());
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap().unwrap() > 0, "the client did not look");
        }
    });
}

#[test]
fn of_two_starts_at_once_exactly_one_succeeds() {
    let (dir, runtime) = (workspace(), runtime());
    for round in 0..5 {
        let name = format!("race{round}");
        let starts: Vec<_> = (0..4)
            .map(|_| {
                let mut start = at(runtime.path(), dir.path());
                start.args(["session", "start", "--name", &name]).stdin(Stdio::null());
                thread::spawn(move || start.output().unwrap())
            })
            .collect();
        let outputs: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        let started = outputs.iter().filter(|output| output.status.success()).count();
        assert_eq!(started, 1, "{outputs:?}");
        for output in outputs.iter().filter(|output| !output.status.success()) {
            assert_eq!(output.status.code(), Some(125));
            assert!(stderr(output).contains(&format!("session {name} is running")), "{output:?}");
        }
        assert!(
            at(runtime.path(), dir.path()).args(["exec", &name, "--", "true"]).status().unwrap().success()
        );
        assert!(at(runtime.path(), dir.path()).args(["session", "stop", &name]).status().unwrap().success());
    }
}
