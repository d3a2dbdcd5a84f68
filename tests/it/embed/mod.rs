//! The library has the shape of `tokio::process`. It leaves its host program alone and cleans up after any
//! drop.

mod cancel;
mod command;
mod doors;
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

/// Waits until a heartbeat starts.
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

/// Waits until a heartbeat has stopped. The runtime works meanwhile.
async fn silent(workspace: &Path) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < patient(Duration::from_secs(8)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if is_silent(workspace) {
            return;
        }
    }
    panic!("it beats on");
}
