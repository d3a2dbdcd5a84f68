//! How a reader of output tells that a command has written more than is kept of it, where the policy says that this
//! ends it. The reader may be in another task or thread than who ends the command.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::ending::Cause;

/// Told once, by the stream that is beyond its cap first.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    cause: OnceLock<Cause>,
    told: Notify,
}

impl Flood {
    /// A stream of which `cap` bytes are kept has had `seen` by now.
    pub(crate) fn tell(&self, seen: u64, cap: u64) {
        if self.cause.set(Cause::Flooded { seen, cap }).is_ok() {
            self.told.notify_one();
        }
    }

    /// What was told.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Waits until it is told; not at all where it was. For one who waits.
    pub(crate) async fn wait(&self) {
        while self.cause.get().is_none() {
            self.told.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_first_word_counts_and_wakes_who_waits() {
        let flood = Arc::new(Flood::default());
        let waiting = tokio::spawn({
            let flood = Arc::clone(&flood);
            async move { flood.wait().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && flood.cause().is_none());
        std::thread::spawn({
            let flood = Arc::clone(&flood);
            move || flood.tell(11, 10)
        })
        .join()
        .expect("a thread");
        waiting.await.expect("woken");
        flood.tell(21, 20);
        flood.wait().await;
        assert_eq!(flood.cause(), Some(Cause::Flooded { seen: 11, cap: 10 }));
    }
}
