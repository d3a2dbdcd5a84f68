//! /etc in a session that goes on while somebody outside changes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use kennel::{Isolation, Session};

use super::{ready, shell};
use crate::support::{World, only_as_root};
use crate::view::etc::{made, write};

#[tokio::test]
async fn a_file_that_becomes_private_is_private_to_running_sessions() {
    only_as_root!();
    let (Some(made), world) = (made(), World::new()) else { return };
    let session = world.session().await;
    let file = write(made.path().join("file"), "public\n", 0o644, 0);
    let read = format!("cat {} 2>&1 || true", file.display());
    assert_eq!(shell(&session, &read).await, "public\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(shell(&session, &read).await.contains("Permission denied"));
    write(made.path().join("new"), "kept", 0o600, 0);
    assert!(
        !shell(&session, &format!("cat {}/new 2>&1 || true", made.path().display())).await.contains("kept")
    );
}

#[tokio::test]
async fn a_session_sees_what_was_replaced_in_etc() {
    only_as_root!();
    for isolation in [Isolation::Command, Isolation::Session] {
        sees_what_was_replaced(isolation).await;
    }
}

async fn sees_what_was_replaced(isolation: Isolation) {
    let (Some(made), world) = (made(), World::new()) else { return };
    let session = Session::prepare(&world.policy().isolation(isolation)).await.unwrap();
    // Of a command that goes on, which keeps the session from starting another zygote.
    let _running = ready(session.command("sh").args(["-c", "echo ready; sleep 600"]), 1).await;
    let (file, next) = (made.path().join("file"), made.path().join("next"));
    let read = format!("cat {} 2>/dev/null || echo none", file.display());
    assert_eq!(shell(&session, &read).await, "none\n");
    for contents in ["one\n", "two\n"] {
        fs::write(&next, contents).unwrap();
        fs::rename(&next, &file).unwrap();
        // A change of /etc itself, as by a rename in it.
        fs::set_permissions("/etc", fs::metadata("/etc").unwrap().permissions()).unwrap();
        assert_eq!(shell(&session, &read).await, contents);
    }
}
