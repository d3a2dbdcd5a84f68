//! The library: shaped like `tokio::process`, leaves its host program alone, cleans up after any drop.

mod cancel;
mod command;
mod host;
mod size;
mod streams;

use std::{path::Path, time::Duration};

use kennel::{Policy, Profile, Sandbox};

use crate::support::{beats, is_silent, patient};

/// A sandbox over a workspace.
fn sandbox(workspace: &Path) -> Sandbox {
    Sandbox::new(&Policy::profile(Profile::RepoWrite, workspace)).unwrap()
}

/// Waits until a heartbeat is there.
async fn beating(workspace: &Path) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < patient(Duration::from_secs(10)) {
        if beats(workspace) > 2 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no heartbeat");
}

/// Waits until a heartbeat has stopped, letting the runtime work meanwhile.
async fn silent(workspace: &Path) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < patient(Duration::from_secs(8)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if is_silent(workspace) {
            return;
        }
    }
    panic!("the heart beats on");
}
