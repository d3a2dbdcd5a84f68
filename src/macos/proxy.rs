//! The proxy of commands on macOS: that of every sandbox, at a port of loopback. Other programs of this
//! machine reach the port too, and get what the policy allows.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::audit::trail::Trail;
use crate::caller::Caller;
use crate::network::gate::Gate;
use crate::network::serving::{DenialCursor, ListeningSocket, Serving};
use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::policy::network::settings::{PORT, Settings};
use crate::report::error::Error;

/// A proxy that serves a port.
#[derive(Debug)]
pub(crate) struct LoopbackProxy {
    serving: Serving,
    pub(crate) port: u16,
}

impl LoopbackProxy {
    /// Starts the proxy of a policy; `None` if it asks for none.
    ///
    /// # Errors
    /// No port is free; the environment names an upstream proxy that is invalid.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub(crate) async fn start(
        policy: &Policy,
        caller: &Caller,
        trail: &Arc<Trail>,
    ) -> Result<Option<Self>, Error> {
        if policy.effective_network() != NetworkMode::Proxy {
            return Ok(None);
        }
        let settings = Settings::of(&policy.network, &caller.environment, caller.descriptors[0])?;
        let gate = Arc::new(Gate::new(Arc::new(Settings { wording: policy.wording, ..settings }))?);
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?.port(), OwnedFd::from(listener)))
        };
        let (port, socket) = listen().map_err(Error::io("listen for the proxy"))?;
        let serving = Serving::new(&gate, trail, None);
        // The port by which the proxy knows its own clients.
        serving.take(ListeningSocket { kind: libc::SOCK_STREAM, port: PORT, socket }).await?;
        Ok(Some(Self { serving, port }))
    }

    /// Starts to collect what the proxy refuses.
    pub(crate) fn denial_cursor(&self) -> DenialCursor {
        self.serving.renew();
        self.serving.denial_cursor()
    }
}
