//! A session shows what is at the paths of its policy now. Its zygote mounts each of them once. If somebody outside has
//! replaced one, another zygote takes over before the next command.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::command::detached::DetachedCommands;
use crate::command::source::{Entered, Turn, WorkerSource, Workers};
use crate::launch::prepared::Prepared;
use crate::network::serving::BoxFuture;
use crate::plan::mount_state::replaced;
use crate::report::denial::shown;
use crate::report::enforcement::Note;
use crate::report::error::Error;
use crate::report::remedy::{Remedy, remedy};
use crate::session::live::Live;
use crate::session::mount_state::{MountCheck, SettlingFor, new_session};
use crate::session::shell::StateLock;
use crate::session::worker::MOST_TRIES;
use crate::sys::locked;

/// How long to wait for killed commands to be gone.
const PATIENCE: Duration = Duration::from_millis(100);

/// The zygote of a session, and its successors.
#[derive(Debug)]
pub(crate) struct Renewable {
    live: Mutex<Arc<Live>>,
    /// Held while a successor is prepared.
    renewing: tokio::sync::Mutex<()>,
    ended: AtomicBool,
    /// The shells that exist.
    shells: Mutex<Vec<Weak<StateLock>>>,
    /// Those that run keep the zygote from being replaced.
    pub(crate) detached: Arc<DetachedCommands>,
}

impl Renewable {
    pub(crate) fn new(live: Live) -> Self {
        let live = Mutex::new(Arc::new(live));
        Self {
            live,
            renewing: tokio::sync::Mutex::default(),
            ended: AtomicBool::new(false),
            detached: Arc::default(),
            shells: Mutex::default(),
        }
    }

    /// Has this shell ended when it keeps the session from showing what is there now.
    pub(crate) fn add_shell(&self, state: &Arc<StateLock>) {
        let mut shells = locked(&self.shells);
        shells.retain(|shell| shell.strong_count() > 0);
        shells.push(Arc::downgrade(state));
    }

    /// Ends the shells that run no snippet. Their next call tells.
    fn end_idle_shells(&self) {
        for shell in locked(&self.shells).iter().filter_map(Weak::upgrade) {
            if let Ok(mut state) = shell.try_lock() {
                state.end();
            }
        }
    }

    /// The zygote that takes commands, with its workers.
    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&locked(&self.live))
    }

    /// Checks the host's files before a command or a file call. Replaces the zygote if it cannot show what is there now.
    ///
    /// # Errors
    /// A replaced path that cannot be shown anew; everything that keeps a session from being prepared.
    pub(crate) async fn enter(&self) -> Result<(Arc<Live>, Entered), Error> {
        let mut tries = 0;
        loop {
            let live = self.live();
            live.drop_ended_background();
            match live.mounts().enter()? {
                MountCheck::Entered(entered) => {
                    live.mount_again(&entered).await?;
                    return Ok((live, entered));
                }
                // Somebody outside replaces it all the time.
                MountCheck::Outdated(what, path) if tries == MOST_TRIES => {
                    return Err(outdated(what, path, new_session()));
                }
                MountCheck::Outdated(what, path) => self.renew(&live, what, path).await?,
            }
            tries += 1;
        }
    }

    /// Replaces `old`, unless another command has done so meanwhile.
    async fn renew(&self, old: &Arc<Live>, what: &'static str, path: PathBuf) -> Result<(), Error> {
        let _alone = self.renewing.lock().await;
        if self.ended.load(SeqCst) {
            return Err(Error::SessionEnded);
        }
        if !Arc::ptr_eq(old, &self.live()) {
            return Ok(());
        }
        if !old.mounts().is_renewable() {
            return Err(outdated(what, path, new_session()));
        }
        self.end_idle_shells();
        let reason = SettlingFor::Renewal(what, path.clone());
        let Some(_settling) = old.settle(&reason, PATIENCE).await else {
            return Err(outdated(what, path, in_use()));
        };
        tracing::info!(path = %path.display(), "was replaced outside: the session gets another zygote");
        let news = news(old, &path);
        let new = Arc::new(old.successor().await.map_err(|error| match error {
            Error::Grant { what, path, .. } => outdated(what, path, new_session()),
            error => error,
        })?);
        *locked(&new.news) = news;
        {
            let mut live = locked(&self.live);
            if self.ended.load(SeqCst) {
                new.retire();
                return Err(Error::SessionEnded);
            }
            *live = new;
        }
        old.retire();
        Ok(())
    }

    /// Starts no more commands, asks every process to end, and waits a moment until they have.
    pub(crate) async fn terminate(&self) {
        let live = {
            let live = locked(&self.live);
            self.ended.store(true, SeqCst);
            live.close();
            Arc::clone(&live)
        };
        live.terminate().await;
    }

    /// Kills every process of the session.
    pub(crate) fn end(&self) {
        let live = locked(&self.live);
        self.ended.store(true, SeqCst);
        live.end();
    }

    /// Waits until the session has no zygote any more, for whatever reason.
    pub(crate) async fn closed(&self) {
        loop {
            let live = self.live();
            live.closed().await;
            // A successor takes over before the old zygote is killed.
            if Arc::ptr_eq(&live, &self.live()) {
                return;
            }
        }
    }
}

/// What the next command's report says about the change of the zygote. A layer in memory is lost with it.
fn news(old: &Live, path: &Path) -> Option<Note> {
    let has_layers = !old.prepared().compiled.view.layers.all.is_empty();
    let text =
        "was replaced outside and is shown anew; what commands installed or cached in memory before is gone";
    has_layers.then(|| Note::new(&shown(path), text, None))
}

/// What helps if commands keep the zygote from being replaced.
fn in_use() -> Remedy {
    remedy![
        "commands of this session still use the one before: wait until they have ended, or ",
        new_session()
    ]
}

/// The error for a path that the zygote cannot show anew. `remedy` helps if another file is there.
pub(crate) fn outdated(what: &'static str, path: PathBuf, remedy: Remedy) -> Error {
    match fs::symlink_metadata(&path) {
        Ok(_) => replaced(what, path, remedy),
        Err(source) => {
            let remedy =
                remedy!["it was there when the session began: have it there again, or ", new_session()];
            Error::Grant { what, path, source, remedy: Some(remedy) }
        }
    }
}

impl WorkerSource for Renewable {
    fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(self.live().prepared())
    }

    fn turn(self: Arc<Self>) -> BoxFuture<'static, Result<Turn, Error>> {
        Box::pin(async move {
            let (live, entered) = self.enter().await?;
            let prepared = Arc::clone(live.prepared());
            Ok(Turn { prepared, workers: live as Arc<dyn Workers>, entered: Some(entered) })
        })
    }

    fn detached(&self) -> Option<&Arc<DetachedCommands>> {
        Some(&self.detached)
    }

    fn is_shared(&self) -> bool {
        self.live().shared.is_some()
    }
}
