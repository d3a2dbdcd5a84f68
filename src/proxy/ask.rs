//! Asking the embedding program about what no list decides.

use std::{collections::HashMap, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::timeout};

use super::destination::{Destination, Host};

/// More decisions than that are not remembered; whoever makes up names cannot fill the memory.
const MOST: usize = 4096;

/// A connection that a command wants and no list of the policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkRequest {
    /// The host's name in lower-case ASCII, or its address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// What the embedding program says to a [`NetworkRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This connection may be made.
    Allow,
    /// This one and every other to the same host and port, as long as the session lives.
    AllowForSession,
    /// This connection is refused.
    Deny,
    /// This one and every other to the same host and port, as long as the session lives.
    DenyForSession,
}

type Answer = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// Whom to ask, and what is remembered of the answers.
#[derive(Clone)]
pub(crate) struct Ask {
    callback: Arc<dyn Fn(NetworkRequest) -> Answer + Send + Sync>,
    patience: Duration,
    remembered: Arc<std::sync::Mutex<HashMap<Destination, bool>>>,
    /// One question at a time: twenty connections to one host are one question where the answer is remembered.
    turn: Arc<Mutex<()>>,
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

impl Ask {
    /// An answer that takes longer than `patience` is no.
    pub(crate) fn new<F, A>(patience: Duration, callback: F) -> Self
    where
        F: Fn(NetworkRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Decision> + Send + 'static,
    {
        Self {
            callback: Arc::new(move |request| Box::pin(callback(request))),
            patience,
            remembered: Arc::default(),
            turn: Arc::default(),
        }
    }

    /// The same callback with nothing remembered: for another session.
    pub(crate) fn anew(&self) -> Self {
        Self { remembered: Arc::default(), turn: Arc::default(), ..self.clone() }
    }

    /// Whether the connection may be made.
    pub(super) async fn allows(&self, destination: &Destination) -> bool {
        let asked = async {
            let _turn = self.turn.lock().await;
            if let Some(remembered) = self.recall(destination) {
                return remembered;
            }
            let host = match &destination.host {
                Host::Name(name) => name.as_str().to_owned(),
                Host::Address(address) => address.to_string(),
            };
            let request = NetworkRequest { host, port: destination.port };
            let decision = timeout(self.patience, (self.callback)(request)).await;
            let (allowed, keep) = match decision {
                Ok(Decision::Allow) => (true, false),
                Ok(Decision::AllowForSession) => (true, true),
                Ok(Decision::Deny) | Err(_) => (false, false),
                Ok(Decision::DenyForSession) => (false, true),
            };
            if keep {
                self.remember(destination, allowed);
            }
            allowed
        };
        match self.recall(destination) {
            Some(remembered) => remembered,
            None => asked.await,
        }
    }

    fn recall(&self, destination: &Destination) -> Option<bool> {
        self.lock().get(destination).copied()
    }

    fn remember(&self, destination: &Destination, allowed: bool) {
        let mut remembered = self.lock();
        if remembered.len() < MOST {
            remembered.insert(destination.clone(), allowed);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Destination, bool>> {
        self.remembered.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn destination(text: &str) -> Destination {
        Destination::parse(text).expect(text)
    }

    /// Someone who always says the same, and how often he was asked.
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
            ask.anew().allows(&destination("a.example:1")).await;
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
    async fn no_answer_is_no() {
        let ask = Ask::new(Duration::from_secs(5), |_| std::future::pending());
        assert!(!ask.allows(&destination("a.example:1")).await);
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
