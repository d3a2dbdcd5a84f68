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
