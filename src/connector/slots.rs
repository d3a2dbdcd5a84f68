//! Slots for calls, of a runtime or of one connector: as many calls as there are slots run at once. Closing
//! waits for all of them.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::report::failure::{Boundary, Class, Details, Failure};

/// Slots for calls.
pub(crate) struct Slots {
    free: Semaphore,
    count: u32,
    /// What messages call their owner.
    owner: &'static str,
}

impl Slots {
    pub(crate) fn new(owner: &'static str, count: u32) -> Self {
        Self { free: Semaphore::new(count as usize), count, owner }
    }

    /// Waits for a slot, which is free again when the permit is dropped.
    ///
    /// # Errors
    /// They are closed.
    pub(crate) async fn take(&self) -> Result<SemaphorePermit<'_>, Failure> {
        self.free.acquire().await.map_err(|_| self.closed())
    }

    /// # Errors
    /// They are closed.
    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        if self.free.is_closed() { Err(self.closed()) } else { Ok(()) }
    }

    /// Refuses further calls, and waits until those that run have ended.
    pub(crate) async fn close(&self) {
        // Each call holds a permit until it ends. Nothing but this waits for all of them.
        let all = self.free.acquire_many(self.count).await;
        self.free.close();
        drop(all);
    }

    fn closed(&self) -> Failure {
        let message = format!("the {} is closed", self.owner);
        Failure::new(Class::Cancelled, Boundary::Runtime, message, Details::None)
    }
}
