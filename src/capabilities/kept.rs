//! Sessions that wait for more commands, each with the socket that clients run them through. A plain list: whoever holds
//! it decides when it is looked at.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::runtime;

use crate::capabilities::granted::Granted;
use crate::serve::Listening;
use crate::session::{Session, WeakSession};

/// Sessions that are kept although nothing runs in them.
pub(crate) const MOST_IDLE: usize = 16;

/// What two commands must have in common to run in the same session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) granted: Granted,
    /// The session is served by this runtime, and ends with it.
    pub(crate) runtime: runtime::Id,
    /// Variables of the caller that decide what is visible.
    pub(crate) deciding: Vec<(&'static str, OsString)>,
    /// What it has to cover: a session covers what was there when it was prepared.
    pub(crate) secrets: Vec<PathBuf>,
}

/// A session, and the way to it. It ends when this is dropped, or its runtime ends.
#[derive(Debug)]
pub(crate) struct Served {
    key: Key,
    /// Held by whoever serves the clients: so nothing is left of a session whose runtime has ended.
    session: WeakSession,
    listening: Listening,
}

impl Served {
    pub(crate) fn new(key: Key, session: &Session, listening: Listening) -> Self {
        Self { key, session: session.downgrade(), listening }
    }

    /// The session; none where it has ended.
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

/// The way to a session.
#[derive(Clone, Debug)]
pub(crate) struct SessionPath {
    pub(crate) session: Session,
    pub(crate) client: PathBuf,
    pub(crate) socket: PathBuf,
}

/// Sessions, the one that was used last at the end.
#[derive(Debug)]
pub(crate) struct KeptSessions(Vec<Served>);

impl KeptSessions {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The session for `key`, if there is one. Those that have ended are let go.
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

    /// Keeps a session, unless there is one for the same already. Of more than [`MOST_IDLE`] those go that were not used
    /// for the longest time and in which nothing runs; answers them.
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

    /// How many there are.
    pub(crate) fn len(&mut self) -> usize {
        self.0.retain(|served| served.session().is_some());
        self.0.len()
    }

    /// Lets go of all.
    pub(crate) fn take(&mut self) -> Vec<Served> {
        std::mem::take(&mut self.0)
    }
}
