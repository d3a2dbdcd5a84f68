//! A running session, in three parts: the zygote with its workers, what commands share, and the log.

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use tokio::net::TcpStream;

use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::command::source::{ReadyWorker, SessionUser, Ticket, WarmCall, Warmth, WorkerSource};
use crate::launch::inside::CommandInit;
use crate::launch::prepared::Prepared;
use crate::network::namespace::publish::{Bound, Inward};
use crate::network::serving::{BoxFuture, DenialCursor};
use crate::plan::Section;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::published::PublishedPort;
use crate::session::files::view_fd::FileCall;
use crate::session::log::SessionLog;
use crate::session::services::SessionServices;
use crate::session::warm::{Interpreters, When};
use crate::session::zygote::Zygote;

/// A session that has a handle or a running command.
pub(crate) struct Live {
    /// Dropped first: everything inside ends before what serves it.
    zygote: Zygote,
    services: SessionServices,
    interpreters: Interpreters,
    log: Arc<SessionLog>,
    /// For interpreters, which are commands of this session.
    own: Weak<Live>,
}

/// Shows the zygote and numbers only: policy and environment may hold secrets.
impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("zygote", &self.zygote)
            .field("counts", self.log.counts())
            .finish_non_exhaustive()
    }
}

impl Live {
    pub(crate) fn new(zygote: Zygote, services: SessionServices, log: Arc<SessionLog>) -> Arc<Self> {
        let interpreters = Interpreters::of(&zygote.inputs().policy);
        Arc::new_cyclic(|own| Self { zygote, services, interpreters, log, own: Weak::clone(own) })
    }

    /// Starts the interpreters that shall wait and do not.
    pub(crate) fn refill_interpreters(&self, when: When) {
        if !self.interpreters.is_empty()
            && !self.zygote.is_closed()
            && let Some(own) = self.own.upgrade()
        {
            let own: Arc<dyn WorkerSource> = own;
            self.interpreters.refill(&own, when);
        }
    }

    /// The interpreters of the policy.
    pub(crate) fn interpreters(&self) -> &Interpreters {
        &self.interpreters
    }

    pub(crate) fn zygote(&self) -> &Zygote {
        &self.zygote
    }

    pub(crate) fn services(&self) -> &SessionServices {
        &self.services
    }

    pub(crate) fn log(&self) -> &SessionLog {
        &self.log
    }

    /// A view for a file call, after the check of the host's files.
    pub(crate) async fn file_call(&self) -> Result<FileCall, Error> {
        self.services.file_call(&self.zygote, self.zygote.enter().await?).await
    }

    /// Connects to a port inside.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.services.connect(&self.zygote, port).await
    }

    /// Publishes ports.
    pub(crate) fn publish(self: &Arc<Self>, bound: Bound) -> Result<PublishedPort, Error> {
        if self.zygote.is_gone() {
            return Err(Error::SessionEnded);
        }
        let inward = Arc::new(ToSession(Arc::downgrade(self)));
        let published = self.services.published();
        let port = published.serve(bound, inward).map_err(Error::io("serve a published port"))?;
        // It may have ended meanwhile.
        if self.zygote.is_closed() {
            published.end();
            return Err(Error::SessionEnded);
        }
        Ok(port)
    }

    /// Takes no more commands.
    pub(crate) fn close(&self) {
        if self.zygote.close() {
            self.log.record_end();
        }
        self.services.published().end();
    }

    /// Kills every process of the session.
    pub(crate) fn end(&self) {
        self.close();
        self.interpreters.end();
        self.zygote.end();
        self.services.end();
    }

    /// Waits until every process is gone, and a commit is done. Then undoes changes at protected paths that
    /// no command has undone yet, before the caller uses the files.
    pub(crate) async fn gone(&self) {
        self.zygote.gone().await;
        self.services.gone().await;
        self.zygote.undo().await;
    }
}

/// Leads published ports to the session, and does not keep it alive.
struct ToSession(Weak<Live>);

impl Inward for ToSession {
    fn connect(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            let live = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            live.connect(port).await
        })
    }
}

impl WorkerSource for Live {
    fn prepared(&self) -> &Arc<Prepared> {
        self.zygote.prepared()
    }

    fn trail(&self) -> &Arc<Trail> {
        self.log.trail()
    }

    fn span(&self) -> Option<tracing::Id> {
        self.log.span().id()
    }

    fn detached(&self) -> &Arc<DetachedCommands> {
        self.services.detached()
    }

    fn is_shared(&self) -> bool {
        self.zygote.is_shared()
    }

    fn enter(&self) -> BoxFuture<'_, Result<Ticket, Error>> {
        Box::pin(self.zygote.enter())
    }

    fn worker<'s>(
        &'s self,
        ticket: Ticket,
        own_steps: Option<&'s Section>,
        fail_fast: bool,
    ) -> BoxFuture<'s, Result<ReadyWorker, Error>> {
        Box::pin(self.zygote.take_worker(ticket, own_steps, fail_fast))
    }

    fn has_interpreters(&self) -> bool {
        !self.interpreters.is_empty()
    }

    fn warm<'s>(&'s self, call: WarmCall<'s>) -> BoxFuture<'s, Warmth> {
        Box::pin(async move { self.interpreters.take(self, &call).await })
    }

    fn command_begins(&self, user: SessionUser) {
        if user != SessionUser::Interpreter {
            self.log.counts().command_begins(user == SessionUser::Keeper);
        }
        self.zygote.refill();
        if user == SessionUser::Command {
            self.refill_interpreters(When::AfterCommand);
        }
    }

    fn command_ends(&self, user: SessionUser) {
        if user != SessionUser::Interpreter {
            self.log.counts().command_ends(user == SessionUser::Keeper);
            self.interpreters.command_ends();
        }
        // Its worker may not have come back.
        if self.zygote.is_shared() && !self.zygote.is_closed() {
            self.zygote.refill();
        }
    }

    fn enforcement(&self) -> Enforcement {
        self.zygote.enforcement()
    }

    fn refilled(&self, took_us: u64) {
        self.log.counts().refilled(took_us);
    }

    fn keep(&self, init: CommandInit) {
        self.zygote.keep(init);
    }

    fn give_back(&self, init: CommandInit) {
        self.zygote.give_back(init);
    }

    fn published(&self) -> Vec<PublishedPort> {
        self.services.published().ports()
    }

    fn renew_proxy(&self) -> Option<DenialCursor> {
        // The proxy of a session that has ended is not served again.
        if self.zygote.is_closed() { None } else { self.services.renew_proxy() }
    }

    fn has_ended(&self) -> bool {
        self.zygote.is_closed()
    }
}
