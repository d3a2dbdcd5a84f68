//! Lists, commits and discards the changes of an overlay.
//!
//! Commands are hostile: a change may have any name, link, mode and size. Others may change the workspace at
//! any time. So Kennel opens everything from a directory that it holds and follows no links
//! (`overlay::tree`). Before it replaces or removes a file, it moves the file aside and looks at it once more
//! (`overlay::place`).

use std::path::{Path, PathBuf};

use crate::launch::inside::PATIENCE;
use crate::overlay::scan::ChangedEntry;
use crate::overlay::{apply, kept_changes};
use crate::report::change::{Change, Committed, Conflicts};
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::session::Session;
use crate::sys::blocking;
use crate::sys::inode::Identity;

/// # Changes of an overlay
///
/// With [`Policy::overlay`](crate::policy::Policy::overlay), commands see the workspace with their changes,
/// but the workspace itself stays unchanged until you commit. Dropping the last handle of the session
/// discards the changes. After [`Session::shutdown`], you can still list and commit them.
///
/// ```
/// # async fn example() -> Result<(), kennel::Error> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let workspace = directory.path();
/// use kennel::{Overlay, Policy, Profile, Session, overlay::ChangeKind};
///
/// let policy = Policy::profile(Profile::NoNetwork, workspace).overlay(Overlay::default());
/// let session = Session::prepare(&policy).await?;
/// session.command("touch").arg("new").status().await?;
/// assert!(!workspace.join("new").exists());
///
/// let changes = session.changes().await?;
/// assert_eq!((changes[0].kind, changes[0].to_string()), (ChangeKind::Added, "A new".to_owned()));
///
/// let committed = session.commit().await?;
/// assert!(committed.refused.is_empty() && workspace.join("new").exists());
/// # Ok(())
/// # }
/// # if kennel::probe::Host::detect().kernel >= kennel::probe::Version(6, 6) {
/// #     tokio::runtime::Runtime::new().expect("a runtime").block_on(example()).expect("works");
/// # }
/// ```
impl Session {
    /// The changes that were not committed, sorted by path. You can call it at any time; it may list the
    /// changes of a running command in part.
    ///
    /// A file is not a change if a command only opened it for writing, or if only its times differ.
    ///
    /// # Errors
    /// [`OverlayError`]: the session has no overlay; the list needs more than 128 MiB (some 300,000 changes
    /// with ordinary paths); a change cannot be read.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn changes(&self) -> Result<Vec<Change>, Error> {
        let ledger = self.live().log().ledger()?;
        let listed = blocking(move || {
            apply::found(&ledger).map(|found| found.iter().map(ChangedEntry::change).collect())
        });
        Ok(listed.await.map_err(OverlayError::list)?)
    }

    /// Applies the changes to the workspace. Each file changes atomically: others see the old file or the new
    /// one.
    ///
    /// If a change cannot be applied, Kennel refuses only this change, gives the reason and keeps it.
    /// Reasons: the workspace has changed there meanwhile, a protected path, a FIFO or socket, a full disk. A
    /// commit applies contents, permission bits, user attributes and modification times. It never applies
    /// owners, set-user-id bits, file capabilities or devices. Idempotent.
    ///
    /// No command can start during the commit. If you drop the future, the commit continues in the
    /// background.
    ///
    /// # Errors
    /// [`OverlayError::Running`] while a command runs, and as for [`Session::changes`]. Nothing was applied
    /// then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn commit(&self) -> Result<Committed, Error> {
        self.commit_part(&[], Conflicts::Refuse).await
    }

    /// Like [`commit`](Self::commit), for the changes at `paths` and below them, or all changes if there are
    /// no paths. Paths are relative to the workspace. With [`Conflicts::Overwrite`], it replaces what others
    /// changed there meanwhile.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Panics
    /// As [`commit`](Self::commit).
    pub async fn commit_part(&self, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
        let live = self.live();
        let ledger = live.log().ledger()?;
        // They count as commands, which may change something at any time.
        live.interpreters().end_waiting();
        let settling = live.zygote().settle(PATIENCE).await.ok_or(OverlayError::Running)?;
        let paths = paths.to_vec();
        let committed = blocking(move || {
            // Held until the last file is in place, even if the caller no longer waits.
            let _settling = settling;
            Ok(kept_changes::commit(&ledger, &paths, conflicts))
        });
        committed.await.map_err(OverlayError::list)?
    }

    /// Whether the changes are in this directory.
    pub(crate) fn keeps_changes_in(&self, directory: &Path) -> bool {
        let own =
            self.live().log().ledger().ok().and_then(|ledger| Identity::at(ledger.claim()?.path()).ok());
        own.is_some() && own == Identity::at(directory).ok()
    }

    /// Keeps the changes when the session ends, if they are in a directory
    /// ([`Overlay::upper`](crate::policy::overlay::Overlay::upper)), and returns the directory. Returns
    /// `None` if the changes are in memory: they will be lost.
    ///
    /// The directory has the format of overlayfs: whole files, and a device 0:0 for each deleted name. No
    /// other session can use it until it is empty.
    ///
    /// # Errors
    /// [`OverlayError::None`] for a session without an overlay.
    pub fn leave_changes(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.live().log().ledger()?.keep())
    }

    /// Discards the changes and ends the session: the kernel cannot empty an overlay in use. To go on,
    /// prepare another session.
    ///
    /// # Errors
    /// [`OverlayError::None`] for a session without an overlay.
    pub async fn discard(&self) -> Result<(), Error> {
        let ledger = self.live().log().ledger()?;
        self.shutdown().await;
        // Those that were left there on purpose stay.
        if let Some(claim) = ledger.claim().filter(|claim| claim.record().is_some()) {
            claim.give_up();
        }
        drop(ledger);
        self.live().log().forget_changes();
        Ok(())
    }
}

impl ChangedEntry {
    pub(crate) fn change(&self) -> Change {
        Change { path: self.path.clone(), kind: self.kind, file: self.file }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::report::change::ChangeKind;
    use crate::sys::inode::FileKind;

    #[test]
    fn invisible_characters_are_escaped() {
        for c in
            ['\u{ad}', '\u{61c}', '\u{180e}', '\u{202e}', '\u{fff9}', '\u{fffb}', '\u{e0041}', '\u{e007f}']
        {
            let path = format!("a{c}b").into();
            let change = Change { path, kind: ChangeKind::Added, file: FileKind::File };
            assert_eq!(change.to_string(), format!("A a\\u{{{:x}}}b", u32::from(c)));
        }
    }

    #[test]
    fn no_two_names_look_alike() {
        let shown = |name: &[u8]| {
            let path = std::ffi::OsStr::from_bytes(name).into();
            Change { path, kind: ChangeKind::Added, file: FileKind::File }.to_string()
        };
        assert_eq!(shown(b"a\xffb\xc3"), r"A a\xffb\xc3");
        assert_eq!(shown(br"a\xffb"), r"A a\\xffb");
        assert_eq!(shown("a\u{fffd}".as_bytes()), "A a\u{fffd}");
    }
}
