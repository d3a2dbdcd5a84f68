//! Finds, lists and commits the changes that an overlay keeps apart from the workspace.

pub(crate) mod apply;
pub(crate) mod claim;
pub(crate) mod clock;
pub(crate) mod compare;
pub(crate) mod contents;
pub(crate) mod image_review;
pub(crate) mod kept;
pub(crate) mod kept_changes;
pub(crate) mod ledger;
pub(crate) mod ledger_state;
pub(crate) mod make;
pub(crate) mod part;
pub(crate) mod place;
pub(crate) mod record;
pub(crate) mod review;
pub(crate) mod root_upper;
pub(crate) mod scan;
pub(crate) mod tree;

pub use crate::overlay::contents::{Contents, Side};
pub use crate::overlay::image_review::ImageReview;
pub use crate::overlay::kept::{KeptCache, clear_kept_caches, kept_caches};
pub use crate::overlay::kept_changes::KeptChanges;
pub use crate::overlay::review::Review;
pub use crate::report::change::{Change, ChangeKind, Committed, Conflicts, Discarded, Refusal, Refused};
pub use crate::report::error::overlay::OverlayError;
