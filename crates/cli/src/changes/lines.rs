//! A line for each change of an overlay.

use kennel::{
    internal::escape::harmless,
    overlay::{Change, ChangeKind},
};

use crate::{
    report,
    terminal::style::{self, Paint},
};

/// Prints one change of an overlay.
pub(crate) fn change(change: &Change) {
    report::show(&change_line(change, Paint::stderr()));
}

/// One change of an overlay, escaped.
pub(crate) fn change_line(change: &Change, paint: Paint) -> String {
    let style = match change.kind {
        ChangeKind::Added => style::ADDED,
        ChangeKind::Deleted => style::REMOVED,
        _ => style::HUNK,
    };
    paint.paint(style, &harmless(&change.to_string()))
}
