//! What only macOS has of it.

pub use crate::macos::record::{HeldSession, RecordedSession, SessionLife, SessionRecord, recorded_sessions};
pub use crate::macos::work_tree::work_tree;
pub use crate::sys::ignored_signals::ignored_signals;
