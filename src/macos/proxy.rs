//! The proxy of commands on macOS: that of every sandbox, at a port of loopback. Other programs of this
//! machine reach the port too, and get what the policy allows.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use crate::audit::trail::Trail;
use crate::caller::Caller;
use crate::network::gate::Gate;
use crate::network::serving::{DenialCursor, Serving};
use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::policy::network::settings::Settings;
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
    pub(crate) fn start(policy: &Policy, caller: &Caller, trail: &Arc<Trail>) -> Result<Option<Self>, Error> {
        if policy.effective_network() != NetworkMode::Proxy {
            return Ok(None);
        }
        let settings = Settings::of(&policy.network, &caller.environment)?;
        let gate = Arc::new(Gate::new(Arc::new(Settings { wording: policy.wording, ..settings }))?);
        let serving = Serving::new(&gate, trail, None);
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = listener.local_addr()?.port();
            serving.listen(listener.into())?;
            Ok(port)
        };
        let port = listen().map_err(Error::io("listen for the proxy"))?;
        Ok(Some(Self { serving, port }))
    }

    /// Starts to collect what the proxy refuses.
    pub(crate) fn denial_cursor(&self) -> DenialCursor {
        self.serving.renew();
        self.serving.denial_cursor()
    }
}
