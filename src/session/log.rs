//! What a session keeps about its work: its numbers, its audit trail and span, and the changes of its
//! overlay.

#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod stats;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use crate::audit::record::Record;
use crate::audit::trail::Trail;
use crate::launch::prepared::Prepared;
use crate::overlay::claim::Claim;
use crate::overlay::ledger::{Ledger, SharedLedger};
use crate::overlay::root_upper::RootUpper;
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::session::log::stats::Counts;
use crate::sys::locked;

/// Numbers, log and changes of a session.
pub(crate) struct SessionLog {
    counts: Arc<Counts>,
    trail: Arc<Trail>,
    span: tracing::Span,
    /// The changes of an overlay, until they are discarded.
    ledger: Mutex<Option<SharedLedger>>,
    /// What commands change in a root that is an overlay.
    root_changes: OnceLock<RootChanges>,
}

/// What commands change in another root.
struct RootChanges {
    upper: OwnedFd,
    /// The directory on a disk, which is emptied when this is dropped.
    _place: Option<RootUpper>,
}

impl SessionLog {
    pub(crate) fn new(trail: Arc<Trail>, span: tracing::Span) -> Self {
        Self { counts: Arc::default(), trail, span, ledger: Mutex::default(), root_changes: OnceLock::new() }
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub(crate) fn trail(&self) -> &Arc<Trail> {
        &self.trail
    }

    /// The parent span of everything in the session.
    pub(crate) fn span(&self) -> &tracing::Span {
        &self.span
    }

    /// Records the end of the session.
    pub(crate) fn record_end(&self) {
        tracing::info!(parent: &self.span, "ends");
        // The session ends even if this record cannot be written.
        let _ = self.trail.write(None, || Record::SessionEnd {});
    }

    /// The changes of the overlay.
    ///
    /// # Errors
    /// The session has no overlay, or its changes were discarded.
    pub(crate) fn ledger(&self) -> Result<SharedLedger, OverlayError> {
        locked(&self.ledger).clone().ok_or(OverlayError::None)
    }

    /// Opens the ledger of the changes in `upper`, if the session has an overlay.
    pub(crate) async fn open_ledger(
        &self,
        prepared: &Prepared,
        upper: Option<OwnedFd>,
        claim: Option<Claim>,
    ) -> Result<(), Error> {
        if let (Some(merged), Some(upper)) = (&prepared.compiled.overlay, upper) {
            let ledger = Ledger::open(merged, upper, claim).await?;
            *locked(&self.ledger) = Some(Arc::new(ledger));
        }
        Ok(())
    }

    /// Keeps what commands change in another root: in memory, or in a directory.
    pub(crate) fn keep_root_changes(
        &self,
        in_memory: Option<OwnedFd>,
        on_disk: Option<RootUpper>,
    ) -> Result<(), Error> {
        let upper = on_disk.as_ref().map(|place| place.claim.upper()).transpose();
        if let Some(upper) = upper.map_err(Error::io("open the changes of the root"))?.or(in_memory) {
            // It is set once, at the end of the set-up.
            let _ = self.root_changes.set(RootChanges { upper, _place: on_disk });
        }
        Ok(())
    }

    /// The upper directory of a root that is an overlay.
    pub(crate) fn root_upper(&self) -> Option<&OwnedFd> {
        self.root_changes.get().map(|changes| &changes.upper)
    }

    pub(crate) fn forget_changes(&self) {
        locked(&self.ledger).take();
    }
}
