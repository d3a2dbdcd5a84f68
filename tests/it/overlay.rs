//! Changes of a workspace that are kept apart from it.
//!
//! | module | promise |
//! | --- | --- |
//! | `basics` | commands see what they change, the workspace stays as it is until somebody commits; then it has all of it |
//! | `random` | any sequence of changes, committed, is what it would have been without an overlay |
//! | `conflict` | what others changed meanwhile is not overwritten, whatever it is |
//! | `links` | files of several names are committed, and only what others did to them is a conflict |
//! | `meanwhile` | nor is what they put into a directory while that is being deleted |
//! | `mounts` | what others mounted in the workspace meanwhile is not changed |
//! | `protected` | protected paths, covers and grants in the workspace stay what they are |
//! | `hostile` | names, links, kinds, modes and depths that commands leave behind |
//! | `refused` | where an overlay cannot be had, nothing runs |
//! | `upper` | changes in a directory of the host: one session's, and gone with it |
//! | `cli` | `kennel run --overlay`, its lists, statuses and reports |
//! | `disk` | all of it once more, with the changes in a directory of the host |
//!
//! An overlay in memory takes Linux 6.6: on an older kernel the only promise is that it is refused. Workspaces lie on a
//! disk, where the machine has one.

mod basics;
mod cli;
mod conflict;
mod disk;
mod hostile;
mod links;
mod meanwhile;
mod mounts;
mod protected;
mod random;
mod refused;
mod upper;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kennel::{Change, Host, Overlay, Policy, Profile, Session, Version};

use crate::files::shell;
pub(crate) use crate::support::workspace_on_disk as workspace;

/// Where the pass with changes in directories (`disk`) makes those.
const UPPERS: &str = "KENNEL_TEST_UPPERS";

/// Whether changes can be kept in memory here.
fn in_memory() -> bool {
    Host::detect().kernel >= Version(6, 6)
}

/// Whether this pass has overlays here.
pub fn available() -> bool {
    in_memory() || env::var_os(UPPERS).is_some()
}

/// Ends a test that needs an overlay where the pass has none, having seen that it is refused.
macro_rules! require_overlay {
    () => {
        if !crate::overlay::available() {
            return crate::overlay::refused::is_refused_in_memory();
        }
    };
}
use require_overlay;

/// An empty directory for changes, in the pass that has them in one. It goes with those of all other tests.
fn upper() -> Option<PathBuf> {
    let dir = tempfile::tempdir_in(env::var_os(UPPERS)?).unwrap().keep();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    Some(dir)
}

/// `--overlay`, or what this pass says instead.
fn flags() -> Vec<String> {
    match upper() {
        Some(dir) => vec!["--overlay-upper".into(), dir.into_os_string().into_string().unwrap()],
        None => vec!["--overlay".into()],
    }
}

/// What was said, without where changes are left that could not be committed: said last, where they were in a directory.
fn without_place(said: &str) -> &str {
    match said.rsplit_once("\nkennel: the changes remain in ") {
        Some((said, _)) if env::var_os(UPPERS).is_some() => said,
        place => {
            assert!(place.is_none() && env::var_os(UPPERS).is_none(), "{said}");
            said
        }
    }
}

/// A policy with an overlay as this pass has them.
fn policy(workspace: &Path) -> Policy {
    let overlay = Overlay { upper: upper(), ..Overlay::default() };
    Policy::profile(Profile::NoNetwork, workspace).set_env("LC_ALL", "C").overlay(overlay)
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
