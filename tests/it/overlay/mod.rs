//! Changes of a workspace that are kept apart from it.
//!
//! | module | promise |
//! | --- | --- |
//! | `basics` | commands see their changes; the workspace stays the same until a commit, and then has all of them |
//! | `attributes` | a modification time, a mode, a user attribute and an access list are changes |
//! | `random` | any sequence of changes, committed, has the same result as without an overlay |
//! | `conflict` | a commit overwrites no change of another program |
//! | `links` | files with several names are committed; only changes of other programs to them conflict |
//! | `meanwhile` | files that others put into a directory during its deletion are kept |
//! | `mounts` | mounts that others made in the workspace are not changed |
//! | `protected` | protected paths, covers and grants in the workspace stay the same |
//! | `hostile` | names, links, kinds, modes and depths that commands leave behind |
//! | `refused` | if an overlay is impossible, nothing runs |
//! | `upper` | changes in a directory of the host: for one session, and gone with it |
//! | `cli` | `kennel run` with an overlay in memory, or in a directory: its lists, statuses and reports |
//! | `kept` | `kennel run --overlay`, and `kennel diff`, `kennel commit` and `kennel discard` of what it kept |
//! | `force` | `kennel commit --force` replaces what others wrote, at the named paths alone |
//! | `running` | changes of a session that runs |
//! | `closed` | a diff shows files that their owner cannot read, and leads to no conflict |
//! | `progress` | a commit that takes long says so on a terminal |
//! | `disk` | all of it again, with the changes in a directory of the host |
//!
//! An overlay in memory needs Linux 6.6: on an older kernel the only promise is that Kennel refuses it.
//! Workspaces are on a disk if the machine has one.

mod attributes;
mod basics;
mod cli;
mod closed;
mod conflict;
mod disk;
mod force;
mod hostile;
mod kept;
mod links;
mod meanwhile;
mod mounts;
mod place;
mod progress;
mod protected;
mod random;
mod refused;
mod running;
mod upper;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kennel::{Overlay, Policy, Session, overlay::Change};

use crate::support::{TempDir, World, session::shell};
pub(crate) use crate::support::{keeps_changes_in_memory as in_memory, workspace_on_disk as workspace};

/// Where the pass `disk` makes its directories for changes.
const UPPERS: &str = "KENNEL_TEST_UPPERS";

/// Whether this pass has overlays here.
pub fn available() -> bool {
    in_memory() || env::var_os(UPPERS).is_some()
}

/// Ends a test that needs an overlay if there is none, after it has checked that Kennel refuses it.
macro_rules! require_overlay {
    () => {
        if !crate::overlay::available() {
            return crate::overlay::refused::is_refused_in_memory();
        }
    };
}
use require_overlay;

/// An empty directory for changes, in the pass that keeps them in one. It is removed with those of all other
/// tests.
fn upper() -> Option<PathBuf> {
    let dir = tempfile::tempdir_in(env::var_os(UPPERS)?).unwrap().keep();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    Some(dir)
}

/// The flags of an overlay in memory, or those of this pass instead.
fn flags() -> Vec<String> {
    match upper() {
        Some(dir) => vec!["--overlay-upper".into(), dir.into_os_string().into_string().unwrap()],
        None => vec!["--overlay-size".into(), "1G".into()],
    }
}

/// The output without its last line, which says what can be done with changes that are in a directory. Those
/// in memory are gone.
fn without_place(said: &str) -> &str {
    match said.rsplit_once("\nkennel: the changes are kept: ") {
        Some((said, _)) if env::var_os(UPPERS).is_some() => said,
        place => {
            let is_quiet = !crate::support::quiet().is_empty();
            assert!(place.is_none() && (is_quiet || env::var_os(UPPERS).is_none()), "{said}");
            said
        }
    }
}

/// A policy with the overlay of this pass.
fn with_overlay(policy: Policy) -> Policy {
    policy.overlay(Overlay { upper: upper(), ..Overlay::default() })
}

/// A world whose sessions have the overlay of this pass.
fn overlaid() -> World {
    overlay_of(workspace())
}

fn overlay_of(workspace: TempDir) -> World {
    World::of(workspace).with(with_overlay)
}

/// Changes as people see them.
fn lines(changes: &[Change]) -> Vec<String> {
    changes.iter().map(Change::to_string).collect()
}

async fn changes(session: &Session) -> Vec<String> {
    lines(&session.changes().await.expect("changes"))
}

/// Commits everything. Returns the applied changes.
async fn commit(session: &Session) -> Vec<String> {
    let committed = session.commit().await.expect("a commit");
    assert!(committed.refused.is_empty(), "{:?}", committed.refused);
    lines(&committed.applied)
}

/// Commits what it can. Returns the refused changes, each with its reason.
async fn refusals(session: &Session) -> Vec<String> {
    let committed = session.commit().await.expect("a commit");
    committed.refused.iter().map(|refused| format!("{}: {}", refused.change, refused.refusal)).collect()
}

/// Whether a directory has no temporary file of ours, at any depth.
fn is_without_temporaries(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").flatten().all(|entry| {
        let is_ours = entry.file_name().to_string_lossy().starts_with(".kennel-");
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        !is_ours && (!is_dir || fs::read_dir(entry.path()).is_err() || is_without_temporaries(&entry.path()))
    })
}

const CONFLICT: &str = "the workspace changed there meanwhile";
