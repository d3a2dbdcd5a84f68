//! Changes of a workspace that are kept apart from it.
//!
//! | module | promise |
//! | --- | --- |
//! | `basics` | commands see what they change, the workspace stays as it is until somebody commits; then it has all of it |
//! | `random` | any sequence of changes, committed, is what it would have been without an overlay |
//! | `conflict` | what others changed meanwhile is not overwritten, whatever it is |
//! | `protected` | protected paths, covers and grants in the workspace stay what they are |
//! | `hostile` | names, links, kinds, modes and depths that commands leave behind |
//! | `refused` | where an overlay cannot be had, nothing runs |
//! | `upper` | changes in a directory of the host: one session's, and gone with it |
//! | `cli` | `kennel run --overlay`, its lists, statuses and reports |
//!
//! An overlay in memory takes Linux 6.6: on an older kernel the only promise is that it is refused.

mod basics;
mod cli;
mod conflict;
mod hostile;
mod protected;
mod random;
mod refused;
mod upper;

use std::{fs, path::Path};

use kennel::{Change, Host, Overlay, Policy, Profile, Session, Version};

use crate::files::shell;
pub(crate) use crate::support::workspace;

/// Whether changes can be kept in memory here.
pub(crate) fn in_memory() -> bool {
    Host::detect().kernel >= Version(6, 6)
}

/// Ends a test that is about changes in memory where they are refused, having seen that they are.
macro_rules! require_in_memory {
    () => {
        if !crate::overlay::in_memory() {
            return crate::overlay::refused::is_refused_in_memory();
        }
    };
}
pub(crate) use require_in_memory;

fn policy(workspace: &Path) -> Policy {
    Policy::profile(Profile::NoNetwork, workspace).set_env("LC_ALL", "C").overlay(Overlay::default())
}

async fn session(workspace: &Path) -> Session {
    Session::prepare(&policy(workspace)).await.expect("a session")
}

/// Changes as people see them.
fn lines(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

async fn changes(session: &Session) -> Vec<String> {
    lines(&session.changes().await.expect("changes"))
}

/// Commits everything; answers what was applied.
async fn commit(session: &Session) -> Vec<String> {
    let committed = session.commit().await.expect("a commit");
    assert!(committed.refused.is_empty(), "{:?}", committed.refused);
    lines(&committed.applied)
}

/// Commits what can be; answers what was refused, each with its reason.
async fn refusals(session: &Session) -> Vec<String> {
    let committed = session.commit().await.expect("a commit");
    committed.refused.iter().map(|refused| format!("{}: {}", refused.change, refused.refusal)).collect()
}

/// What is left of us in a directory, at any depth.
fn is_without_temporaries(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").flatten().all(|entry| {
        let is_ours = entry.file_name().to_string_lossy().starts_with(".kennel-");
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        !is_ours && (!is_dir || fs::read_dir(entry.path()).is_err() || is_without_temporaries(&entry.path()))
    })
}

const CONFLICT: &str = "the workspace was changed there meanwhile";
