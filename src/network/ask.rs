//! Asks the embedding program about connections that no list of the policy decides.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::policy::network::destination::{Destination, DestinationHost};
use crate::sys::locked;

/// Remembered and open questions at most. Beyond that the answer is no, so that made-up names cannot fill the
/// memory.
const MAX_QUESTIONS: usize = 4096;

/// A connection that a command wants to make and that no list of the policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkRequest {
    /// The host name in lower-case ASCII, or the address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// The answer of the embedding program to a [`NetworkRequest`]. A callback that panics means
/// [`Deny`](Self::Deny).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allows this connection, and those to the same host and port requested while the question was open.
    Allow,
    /// Allows this connection and all others to the same host and port for the rest of the session.
    AllowForSession,
    /// Refuses this connection, and those to the same host and port requested while the question was open.
    Deny,
    /// Refuses this connection and all others to the same host and port for the rest of the session.
    DenyForSession,
}

/// Open questions at most. Beyond that the answer is no.
const MAX_OPEN: usize = 16;

type Answer = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// The callback, and the answers to remember.
#[derive(Clone)]
pub(crate) struct Ask {
    callback: Arc<dyn Fn(NetworkRequest) -> Answer + Send + Sync>,
    time_limit: Duration,
    questions: Arc<Mutex<HashMap<Destination, Question>>>,
}

/// What is known about a destination.
enum Question {
    Answered(bool),
    /// The callback is running. Later requests wait for the same answer.
    Open(watch::Receiver<Option<bool>>),
}

/// How a request gets its answer.
enum Next {
    Answer(bool),
    Wait(watch::Receiver<Option<bool>>),
    Ask(watch::Sender<Option<bool>>),
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

impl Ask {
    /// If the callback takes longer than `time_limit`, the answer is no.
    pub(crate) fn new<F, A>(time_limit: Duration, callback: F) -> Self
    where
        F: Fn(NetworkRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Decision> + Send + 'static,
    {
        Self {
            callback: Arc::new(move |request| Box::pin(callback(request))),
            time_limit,
            questions: Arc::default(),
        }
    }

    /// The same callback without any remembered answers, for another session.
    pub(crate) fn for_new_session(&self) -> Self {
        Self { questions: Arc::default(), ..self.clone() }
    }

    /// Whether the connection is allowed.
    pub(crate) async fn allows(&self, destination: &Destination) -> bool {
        loop {
            match self.next(destination) {
                Next::Answer(answer) => return answer,
                Next::Ask(sender) => return self.ask(destination, &sender).await,
                Next::Wait(mut answer) => {
                    // The asking task was cancelled without an answer: ask again.
                    if let Ok(answer) = answer.wait_for(Option::is_some).await.map(|answer| *answer) {
                        return answer == Some(true);
                    }
                }
            }
        }
    }

    fn next(&self, destination: &Destination) -> Next {
        let mut questions = self.lock();
        match questions.get(destination) {
            Some(Question::Answered(answer)) => return Next::Answer(*answer),
            Some(Question::Open(answer)) if answer.has_changed().is_ok() => {
                return Next::Wait(answer.clone());
            }
            _ => {}
        }
        let open = questions.values().filter(|question| matches!(question, Question::Open(_))).count();
        // Do not flood the user with questions.
        if questions.len() >= MAX_QUESTIONS || open >= MAX_OPEN {
            return Next::Answer(false);
        }
        let (sender, receiver) = watch::channel(None);
        questions.insert(destination.clone(), Question::Open(receiver));
        Next::Ask(sender)
    }

    async fn ask(&self, destination: &Destination, sender: &watch::Sender<Option<bool>>) -> bool {
        let host = match &destination.host {
            DestinationHost::Name(name) => name.as_str().to_owned(),
            DestinationHost::Address(address) => address.to_string(),
        };
        let request = NetworkRequest { host, port: destination.port };
        let decision = timeout(self.time_limit, self.run_callback(request)).await;
        let (allowed, keep) = match decision {
            Ok(Some(Decision::Allow)) => (true, false),
            Ok(Some(Decision::AllowForSession)) => (true, true),
            Ok(Some(Decision::Deny) | None) | Err(_) => (false, false),
            Ok(Some(Decision::DenyForSession)) => (false, true),
        };
        let mut questions = self.lock();
        if keep {
            questions.insert(destination.clone(), Question::Answered(allowed));
        } else {
            questions.remove(destination);
        }
        sender.send_replace(Some(allowed));
        allowed
    }

    /// Runs the callback. `None` if it panics; the program's panic hook has reported the panic.
    async fn run_callback(&self, request: NetworkRequest) -> Option<Decision> {
        let mut answer = catch_unwind(AssertUnwindSafe(|| (self.callback)(request))).ok()?;
        poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, Question>> {
        locked(&self.questions)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn destination(text: &str) -> Destination {
        Destination::parse(text).expect(text)
    }

    /// A callback that always gives the same answer, and the number of its calls.
    fn always(decision: Decision) -> (Ask, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let ask = Ask::new(Duration::from_secs(5), move |_| {
            count.fetch_add(1, Relaxed);
            async move { decision }
        });
        (ask, asked)
    }

    #[tokio::test]
    async fn decisions_for_the_session_are_asked_for_once() {
        for (decision, allowed, times) in [
            (Decision::Allow, true, 2),
            (Decision::AllowForSession, true, 1),
            (Decision::Deny, false, 2),
            (Decision::DenyForSession, false, 1),
        ] {
            let (ask, asked) = always(decision);
            for _ in 0..2 {
                assert_eq!(ask.allows(&destination("a.example:1")).await, allowed, "{decision:?}");
            }
            assert_eq!(asked.load(Relaxed), times, "{decision:?}");
            ask.allows(&destination("a.example:2")).await;
            assert_eq!(asked.load(Relaxed), times + 1, "another port is another question");
            ask.for_new_session().allows(&destination("a.example:1")).await;
            assert_eq!(asked.load(Relaxed), times + 2, "another session knows nothing");
        }
    }

    #[tokio::test]
    async fn many_at_once_are_one_question() {
        let (ask, asked) = always(Decision::AllowForSession);
        let waiting = (0..20).map(|_| {
            let ask = ask.clone();
            tokio::spawn(async move { ask.allows(&destination("a.example:1")).await })
        });
        for answer in waiting.collect::<Vec<_>>() {
            assert!(answer.await.expect("an answer"));
        }
        assert_eq!(asked.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_question_to_the_next() {
        let count = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&count);
        let ask = Ask::new(Duration::from_secs(60), move |_| {
            let first = asked.fetch_add(1, Relaxed) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
                Decision::Allow
            }
        });
        let at = destination("a.example:1");
        let first = tokio::spawn({
            let (ask, at) = (ask.clone(), at.clone());
            async move { ask.allows(&at).await }
        });
        tokio::task::yield_now().await;
        let second = tokio::spawn({
            let (ask, at) = (ask.clone(), at.clone());
            async move { ask.allows(&at).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(count.load(Relaxed), 1, "the second waits");
        assert!(ask.allows(&destination("b.example:1")).await, "another question is not held up");
        first.abort();
        assert!(second.await.expect("an answer"));
        assert_eq!(count.load(Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_is_no() {
        let ask = Ask::new(Duration::from_secs(5), |_| std::future::pending());
        assert!(!ask.allows(&destination("a.example:1")).await);
    }

    #[tokio::test]
    async fn a_panic_is_no_and_the_next_is_asked_again() {
        for at_once in [true, false] {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let ask = Ask::new(Duration::from_secs(5), move |_| {
                let first = count.fetch_add(1, Relaxed) == 0;
                assert!(!(first && at_once), "meant");
                async move {
                    assert!(!first, "meant");
                    Decision::Allow
                }
            });
            assert!(!ask.allows(&destination("a.example:1")).await);
            assert!(ask.allows(&destination("a.example:1")).await);
        }
    }

    #[tokio::test]
    async fn the_question_names_host_and_port() {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let ask = Ask::new(Duration::from_secs(5), move |request: NetworkRequest| {
            log.lock().expect("a log").push((request.host, request.port));
            async { Decision::Deny }
        });
        for text in ["EXAMPLE.com.:443", "[::1]:80", "192.0.2.1:1"] {
            ask.allows(&destination(text)).await;
        }
        let expected = [("example.com", 443), ("::1", 80), ("192.0.2.1", 1)];
        let expected: Vec<_> = expected.map(|(host, port)| (host.to_owned(), port)).into();
        assert_eq!(*seen.lock().expect("a log"), expected);
    }
}
