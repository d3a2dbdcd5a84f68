//! Why Kennel kills a command, and how a reader of its output tells that it has written too much.

use std::sync::OnceLock;

use tokio::sync::Notify;

/// Why Kennel killed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The wall time was over.
    TimedOut,
    /// The caller asked for it.
    Killed,
    /// It wrote more than the policy allows: Kennel had read `seen` bytes of one stream, and `cap` is the
    /// limit.
    Flooded { seen: u64, cap: u64 },
}

/// Tells whoever follows the command that it has written more than its cap, from a reader in any task or
/// thread. The first stream beyond its cap counts.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    cause: OnceLock<Cause>,
    reported: Notify,
}

impl Flood {
    /// Reports that a stream with a cap of `cap` bytes has carried `seen` bytes.
    pub(crate) fn report(&self, seen: u64, cap: u64) {
        if self.cause.set(Cause::Flooded { seen, cap }).is_ok() {
            self.reported.notify_one();
        }
    }

    /// What was reported first.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Waits for the first report. Only one task may wait.
    pub(crate) async fn wait(&self) -> Cause {
        loop {
            match self.cause() {
                Some(cause) => return cause,
                None => self.reported.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn the_first_report_counts_and_wakes_the_waiter() {
        let flood = Arc::new(Flood::default());
        let waiting = tokio::spawn({
            let flood = Arc::clone(&flood);
            async move { flood.wait().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && flood.cause().is_none());
        std::thread::spawn({
            let flood = Arc::clone(&flood);
            move || flood.report(11, 10)
        })
        .join()
        .expect("a thread");
        waiting.await.expect("woken");
        flood.report(21, 20);
        flood.wait().await;
        assert_eq!(flood.cause(), Some(Cause::Flooded { seen: 11, cap: 10 }));
    }
}
