//! What is left when a sandbox was killed and nobody waits for its end.

use std::sync::Arc;

use crate::{
    cgroup::Leaf,
    compile::footing::Footing,
    session::Hold,
    watch::{self, Undone, Watch},
};

/// What an init that was killed leaves. Dropping this, after its end, undoes it.
pub(super) struct Remains {
    pub(super) watches: Arc<[Watch]>,
    pub(super) footing: Footing,
    /// Let go after the rest.
    pub(super) _hold: Option<Hold>,
    /// Removed after the rest, when nobody is in it any more.
    pub(super) _leaf: Option<Leaf>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        watch::log(&undo(&self.watches, &self.footing));
    }
}

/// Undoes what was done to watched paths, and tells of walls that somebody took away.
pub(super) fn undo(watches: &[Watch], footing: &Footing) -> Undone {
    let mut undone = watch::undo(watches);
    undone.denials.extend(footing.denials());
    undone
}
