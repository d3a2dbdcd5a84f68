//! Locks of this crate: somebody who panicked while he held one keeps nobody else from it. What they guard is whole between any
//! two lines of its holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, whoever panicked.
pub(crate) fn locked<T: ?Sized>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
