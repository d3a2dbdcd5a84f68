//! What the commands of a session share, and callers use beside them: the proxy, published ports, the view
//! for file calls, sockets of the network namespace, and the commands that stay.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpStream;

use crate::audit::trail::Trail;
use crate::command::detached::DetachedCommands;
use crate::command::source::Ticket;
use crate::network::namespace::publish::Publishing;
use crate::network::namespace::socket::NamespaceSockets;
use crate::network::serving::{DenialCursor, Serving};
use crate::plan::network;
use crate::policy::network::publish::Publish;
use crate::report::error::Error;
use crate::session::files::view_fd::{FileCall, ViewFd};
use crate::session::zygote::Zygote;
use crate::session::zygote::worker::{MOST_TRIES, is_replaced};
use crate::sys::locked;

/// What commands of a session share.
pub(crate) struct SessionServices {
    /// The view for file calls, once the first call has made it.
    view: Mutex<Option<Arc<ViewFd>>>,
    /// What connects to servers of the commands, once the first connection has made it.
    sockets: tokio::sync::Mutex<Option<Arc<NamespaceSockets>>>,
    /// The published ports.
    published: Publishing,
    /// The proxy, if the policy needs one.
    proxy: Option<Serving>,
    /// The commands that stay.
    detached: Arc<DetachedCommands>,
}

impl SessionServices {
    pub(crate) fn new(trail: &Arc<Trail>, proxy: Option<Serving>) -> Self {
        Self {
            view: Mutex::default(),
            sockets: tokio::sync::Mutex::default(),
            published: Publishing::new(trail),
            proxy,
            detached: Arc::default(),
        }
    }

    pub(crate) fn published(&self) -> &Publishing {
        &self.published
    }

    pub(crate) fn detached(&self) -> &Arc<DetachedCommands> {
        &self.detached
    }

    /// Serves the proxy again if it has stopped, and collects what it refuses from now on. `None` if there is
    /// no proxy.
    pub(crate) fn renew_proxy(&self) -> Option<DenialCursor> {
        let proxy = self.proxy.as_ref()?;
        proxy.renew();
        Some(proxy.denial_cursor())
    }

    /// Ends them when the session ends.
    pub(crate) fn end(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.end();
        }
        self.view().take();
        // Whoever has the lock looks whether the session has ended.
        if let Ok(mut sockets) = self.sockets.try_lock() {
            sockets.take();
        }
    }

    /// Waits for their end.
    pub(crate) async fn gone(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.gone().await;
        }
    }

    /// A view for a file call, which has this ticket.
    pub(crate) async fn file_call(&self, zygote: &Zygote, mut ticket: Ticket) -> Result<FileCall, Error> {
        if zygote.is_gone() {
            return Err(Error::SessionEnded);
        }
        let mut tries = 0;
        loop {
            match self.view_for(zygote, &ticket).await {
                // Somebody outside is replacing a file right now.
                Err(Error::Step { source, .. }) if tries < MOST_TRIES && is_replaced(&source) => {
                    tries += 1;
                    drop(ticket);
                    ticket = zygote.enter().await?;
                }
                Err(Error::Lost) => return Err(zygote.lost()),
                view => {
                    let directory = zygote.prepared().compiled.commands.directory.clone();
                    return Ok(FileCall::new(view?, zygote.watches(), directory, ticket.hold));
                }
            }
        }
    }

    async fn view_for(&self, zygote: &Zygote, ticket: &Ticket) -> Result<Arc<ViewFd>, Error> {
        if let Some(view) = zygote.shared_view() {
            return Ok(Arc::clone(view));
        }
        if let Some(view) = self.view().as_ref().filter(|view| view.generation() >= ticket.generation) {
            return Ok(Arc::clone(view));
        }
        let view = Arc::new(zygote.new_view().await?);
        *self.view() = Some(Arc::clone(&view));
        // The session may have ended meanwhile. Then nothing may keep the view.
        if zygote.is_closed() {
            self.view().take();
            return Err(Error::SessionEnded);
        }
        Ok(view)
    }

    fn view(&self) -> MutexGuard<'_, Option<Arc<ViewFd>>> {
        locked(&self.view)
    }

    /// Connects to a port inside.
    pub(crate) async fn connect(&self, zygote: &Zygote, port: u16) -> io::Result<TcpStream> {
        if !zygote.has_network_namespace() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the session has the network of the host",
            ));
        }
        network::check_publish(&zygote.inputs().policy, &Publish::inward(port))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let sockets = self.namespace_sockets(zygote).await.map_err(|error| match error {
            Error::SessionEnded => io::Error::new(io::ErrorKind::NotConnected, error),
            error => io::Error::other(error),
        })?;
        sockets.connect(port).await
    }

    /// What makes sockets of the session's network namespace. The first call orders it.
    async fn namespace_sockets(&self, zygote: &Zygote) -> Result<Arc<NamespaceSockets>, Error> {
        let mut sockets = self.sockets.lock().await;
        if zygote.is_gone() {
            return Err(Error::SessionEnded);
        }
        if let Some(sockets) = &*sockets {
            return Ok(Arc::clone(sockets));
        }
        let handed_out = zygote.new_sockets().await?;
        let made =
            NamespaceSockets::new(handed_out).await.map_err(Error::io("take the sockets of the session"))?;
        let made = Arc::new(made);
        *sockets = Some(Arc::clone(&made));
        // The session may have ended meanwhile. Then nothing may keep its network.
        if zygote.is_closed() {
            sockets.take();
            return Err(Error::SessionEnded);
        }
        Ok(made)
    }
}
