//! Bounds the memory of messages: of calls that are not answered yet, and of answers that the client has not
//! read yet.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What all larger messages that are not answered yet may weigh together.
const MOST_REQUESTS: usize = 64 << 20;

/// Smaller messages are not weighed: the number of calls bounds them.
const SMALL: usize = 64 << 10;

/// How many bytes of answers may wait for the client. While there are more, no message is read and no call
/// begins.
const MOST_ANSWERS: usize = 16 << 20;

/// What is between the server and its client.
#[derive(Debug)]
pub(crate) struct Flow {
    requests: Arc<Semaphore>,
    answers: AtomicUsize,
    written: Notify,
}

/// The share of a message, while it is not answered; of a small one, nothing.
pub(crate) type Share = Arc<Option<OwnedSemaphorePermit>>;

impl Flow {
    pub(crate) fn new() -> Arc<Self> {
        let requests = Arc::new(Semaphore::new(MOST_REQUESTS));
        Arc::new(Self { requests, answers: AtomicUsize::new(0), written: Notify::new() })
    }

    /// A share for a message. `None` if there is no room for it now.
    pub(crate) fn share(&self, weight: usize) -> Option<Share> {
        if weight <= SMALL {
            return Some(Share::default());
        }
        let share = Arc::clone(&self.requests).try_acquire_many_owned(u32::try_from(weight).ok()?).ok()?;
        Some(Arc::new(Some(share)))
    }

    /// Counts an answer until it is dropped.
    pub(crate) fn answer(self: &Arc<Self>, bytes: usize) -> Unread {
        self.answers.fetch_add(bytes, Relaxed);
        Unread { flow: Arc::clone(self), bytes }
    }

    /// Waits until the client has read most answers.
    pub(crate) async fn room(&self) {
        loop {
            let written = self.written.notified();
            if self.answers.load(Relaxed) <= MOST_ANSWERS {
                return;
            }
            written.await;
        }
    }
}

/// An answer that the client has not read yet.
#[derive(Debug)]
pub(crate) struct Unread {
    flow: Arc<Flow>,
    bytes: usize,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.flow.answers.fetch_sub(self.bytes, Relaxed);
        self.flow.written.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Context};

    use super::*;

    #[test]
    fn large_messages_share_what_there_is_and_small_ones_always_pass() {
        let flow = Flow::new();
        let shares: Vec<_> = (0..5).map(|_| flow.share(15 << 20)).collect();
        assert_eq!(shares.iter().flatten().count(), 4);
        assert!(flow.share(SMALL).is_some() && flow.share(usize::MAX).is_none());
        drop(shares);
        assert!(flow.share(15 << 20).is_some());
    }

    #[test]
    fn answers_that_nobody_reads_stop_the_flow() {
        let flow = Flow::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let first = flow.answer(MOST_ANSWERS);
        assert!(pin!(flow.room()).poll(&mut context).is_ready());
        let second = flow.answer(1);
        let mut room = pin!(flow.room());
        assert!(room.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(room.as_mut().poll(&mut context).is_ready());
        drop(first);
    }
}
