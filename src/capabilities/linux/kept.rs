//! Sessions that are kept for more commands, each with the socket of its clients. A plain list, without a
//! lock of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::runtime;

use crate::capabilities::linux::granted::Granted;
use crate::serve::Listening;
use crate::session::{Session, WeakSession};

/// Most idle sessions to keep.
pub(crate) const MOST_IDLE: usize = 16;

/// Two commands with an equal key may run in the same session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) granted: Granted,
    /// The runtime that serves the session. The session ends with it.
    pub(crate) runtime: runtime::Id,
    /// Variables of the caller that decide what the sandbox shows.
    pub(crate) deciding: Vec<(&'static str, OsString)>,
    /// Secret files to hide. A session hides only those that existed when it was prepared.
    pub(crate) secrets: Vec<PathBuf>,
}

/// A session and its socket. The session ends when this is dropped or when its runtime ends.
#[derive(Debug)]
pub(crate) struct Served {
    key: Key,
    /// Weak, because the tasks that serve the clients hold the session. So a session is gone once its runtime
    /// has ended.
    session: WeakSession,
    listening: Listening,
}

impl Served {
    pub(crate) fn new(key: Key, session: &Session, listening: Listening) -> Self {
        Self { key, session: session.downgrade(), listening }
    }

    /// The session; `None` if it has ended.
    fn session(&self) -> Option<Session> {
        self.session.upgrade().filter(|session| !session.has_ended() && self.listening.is_open())
    }

    pub(crate) fn client(&self) -> &Path {
        self.listening.client()
    }

    /// Ends it, and waits until nothing of it is left.
    pub(crate) async fn end(self) {
        let session = self.session.upgrade();
        drop(self.listening);
        if let Some(session) = session {
            session.shutdown().await;
        }
    }

    fn is_idle(&self) -> bool {
        self.session().is_none_or(|session| session.stats().running == 0)
    }
}

/// A session, and the paths that a command needs to reach it.
#[derive(Clone, Debug)]
pub(crate) struct SessionPath {
    pub(crate) session: Session,
    pub(crate) client: PathBuf,
    pub(crate) socket: PathBuf,
}

/// Kept sessions, the most recently used last.
#[derive(Debug)]
pub(crate) struct KeptSessions(Vec<Served>);

impl KeptSessions {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The session for `key`, if there is one. Removes sessions that have ended.
    pub(crate) fn find(&mut self, key: &Key) -> Option<SessionPath> {
        self.0.retain(|served| served.session().is_some());
        let at = self.0.iter().position(|served| served.key == *key)?;
        let served = self.0.remove(at);
        let way = served.session().map(|session| SessionPath {
            session,
            client: served.listening.client().to_owned(),
            socket: served.listening.socket().to_owned(),
        });
        self.0.push(served);
        way
    }

    /// Keeps a session, unless there already is one with the same key. If there are more than [`MOST_IDLE`],
    /// removes the idle sessions that were used least recently. Returns the removed sessions.
    pub(crate) fn keep(&mut self, served: Served) -> Vec<Served> {
        if self.find(&served.key).is_some() {
            return vec![served];
        }
        self.0.push(served);
        let mut gone = Vec::new();
        while self.0.len() > MOST_IDLE {
            let last = self.0.len() - 1;
            let Some(at) = self.0.iter().take(last).position(Served::is_idle) else { break };
            gone.push(self.0.remove(at));
        }
        gone
    }

    /// The number of sessions that have not ended.
    pub(crate) fn len(&mut self) -> usize {
        self.0.retain(|served| served.session().is_some());
        self.0.len()
    }

    /// Removes and returns all sessions.
    pub(crate) fn take(&mut self) -> Vec<Served> {
        std::mem::take(&mut self.0)
    }
}
