//! Sessions: many commands, one preparation; what they share, what they do not, and how it all ends.

mod basics;

use std::path::Path;

use kennel::{Policy, Profile, Session};

/// A session over a workspace that it may write.
async fn session(workspace: &Path) -> Session {
    Session::prepare(&policy(workspace)).await.expect("a session")
}

fn policy(workspace: &Path) -> Policy {
    Policy::profile(Profile::NoNetwork, workspace)
}

/// Runs a script in a session; answers what it wrote.
async fn shell(session: &Session, script: &str) -> String {
    let out = session.command("sh").args(["-c", script]).output().await.expect("a command");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{script}: {} {text} {}", out.status, String::from_utf8_lossy(&out.stderr));
    text
}
