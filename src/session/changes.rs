//! Changes of a workspace that are kept apart from it: listed, committed, discarded.
//!
//! What commands wrote is hostile: any name, any link, any mode, any size. And the workspace is not ours alone: others
//! may change it at any time. So everything is opened from a directory that is held, through no link (`tree`); what is
//! put in its place or taken away is looked at once more when nobody finds it any longer (`place`).

use std::path::PathBuf;
use std::sync::Arc;

use crate::overlay::ledger::Ledger;
use crate::overlay::tree::ReadableTree;
use crate::overlay::{apply, clock, scan};
use crate::report::change::{Change, Committed};
use crate::report::error::Error;
use crate::report::overlay_error::OverlayError;
use crate::session::Session;
use crate::session::files::blocking;
use crate::sys::dirfd;

/// # Changes of an overlay
///
/// With [`Policy::overlay`](crate::policy::Policy::overlay) commands see the workspace with their changes, but the workspace itself
/// stays unchanged until you commit. Changes are gone when the last handle of the session is dropped; after
/// [`Session::shutdown`] they can still be listed and committed.
///
/// ```
/// # async fn example() -> Result<(), kennel::Error> {
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let workspace = directory.path();
/// use kennel::{ChangeKind, Overlay, Policy, Profile, Session};
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
/// # if kennel::Host::detect().kernel >= kennel::Version(6, 6) {
/// #     tokio::runtime::Runtime::new().expect("a runtime").block_on(example()).expect("works");
/// # }
/// ```
impl Session {
    /// The changes that were not committed, by path. May be called at any time; changes of a running command may be listed
    /// in part.
    ///
    /// A file that was only opened for writing, or whose times alone differ, is not a change.
    ///
    /// # Errors
    /// [`OverlayError`]: a session without an overlay, more changes than 128 MiB hold (some 300,000 of ordinary paths),
    /// what cannot be read.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn changes(&self) -> Result<Vec<Change>, Error> {
        let ledger = self.live().ledger()?;
        let listed = blocking(move || {
            dirfd::of_a_command(|| {
                let (mut state, changed) = (ledger.state(), ReadableTree::new(ledger.upper()));
                let found = scan::scan(&mut state, &changed, &ReadableTree::new(ledger.workspace()))?;
                Ok(found.into_iter().map(scan::ChangedEntry::into_change).collect())
            })
        });
        Ok(listed.await.map_err(OverlayError::list)?)
    }

    /// Applies the changes to the workspace, each file atomically: others see the old one or the new one.
    ///
    /// A change that cannot be applied is refused alone, with the reason, and kept: the workspace was changed there
    /// meanwhile, a protected path, a FIFO or socket, a full disk. Applied are contents, permission bits, user attributes
    /// and modification times, never owners, set-user-id bits, capabilities of files or devices. Idempotent.
    ///
    /// No command starts meanwhile. If the future is dropped, the commit continues in the background.
    ///
    /// # Errors
    /// [`OverlayError::Running`] while a command runs, and those of [`Session::changes`]; nothing was applied then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn commit(&self) -> Result<Committed, Error> {
        let ledger = self.live().ledger()?;
        let settling = self.live().settle().await?;
        let committed = blocking(move || {
            // Until the last file is in its place, whoever waits for it.
            let _settling = settling;
            dirfd::of_a_command(|| {
                let (mut state, changed) = (ledger.state(), ReadableTree::new(ledger.upper()));
                let found = scan::scan(&mut state, &changed, &ReadableTree::new(ledger.workspace()))?;
                let committed = apply::commit(&ledger, &mut state, &changed, found);
                // What was refused may have been moved there and back, which changes its directory.
                if !(committed.applied.is_empty() && committed.refused.is_empty()) {
                    clock::wait_for_tick();
                }
                Ok(committed)
            })
        });
        Ok(committed.await.map_err(OverlayError::list)?)
    }

    /// Leaves changes that are kept in a directory ([`Overlay::upper`](crate::policy::overlay::Overlay::upper)) there when the session ends,
    /// and returns the directory; `None` if they are in memory, and so are lost.
    ///
    /// They lie there as overlayfs keeps them: whole files, and a device 0:0 for what was deleted. No other session can
    /// use the directory until it is emptied.
    ///
    /// # Errors
    /// [`OverlayError::None`] for a session without an overlay.
    pub fn leave_changes(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.live().ledger()?.keep())
    }

    /// Discards the changes, and ends the session: the kernel cannot empty an overlay that is in use. Prepare another
    /// session to go on.
    ///
    /// # Errors
    /// [`OverlayError::None`] for a session without an overlay.
    pub async fn discard(&self) -> Result<(), Error> {
        self.live().ledger()?;
        self.shutdown().await;
        self.live().forget_changes();
        Ok(())
    }
}

impl scan::ChangedEntry {
    fn into_change(self) -> Change {
        Change { path: self.path, kind: self.kind, file: self.file }
    }

    pub(crate) fn change(&self) -> Change {
        Change { path: self.path.clone(), kind: self.kind, file: self.file }
    }
}

/// A ledger that several may use.
pub(crate) type Shared = Arc<Ledger>;

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::report::change::ChangeKind;
    use crate::sys::inode::FileKind;

    #[test]
    fn what_is_not_seen_is_told() {
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
        let told = |name: &[u8]| {
            let path = std::ffi::OsStr::from_bytes(name).into();
            Change { path, kind: ChangeKind::Added, file: FileKind::File }.to_string()
        };
        assert_eq!(told(b"a\xffb\xc3"), r"A a\xffb\xc3");
        assert_eq!(told(br"a\xffb"), r"A a\\xffb");
        assert_eq!(told("a\u{fffd}".as_bytes()), "A a\u{fffd}");
    }
}
