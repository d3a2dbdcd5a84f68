//! The proxy by itself, for programs that Kennel does not start: Kennel's gate and relay behind a listener of
//! the embedding program.

#[cfg(test)]
mod tests;

use std::fmt;
use std::path;
use std::sync::{Arc, OnceLock};

use crate::audit::log::Log;
use crate::audit::trail::{Origin, Trail};
use crate::network::gate::Gate;
use crate::network::hosts::HostPolicy;
use crate::network::serving::Serving;
use crate::network::stream::ProxyListener;
use crate::policy::audit::Audit;
use crate::policy::network::settings::{AllowListOwner, ProxyLimits, Settings};
use crate::policy::network::{NetworkLimits, address};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;

/// A proxy that lets through what a [`HostPolicy`] allows, on listeners of yours: for a program that an
/// executor of yours runs, in a sandbox of Kennel's or of another.
///
/// It is the proxy of Kennel's own sandboxes. A client asks with CONNECT, with a plain HTTP request, or with
/// SOCKS5. Names are resolved once, and an address that is not of the public internet is refused unless a
/// host of the policy names it. An HTTP refusal has the status 403 with the header `x-kennel-deny`, and says
/// in words what would allow it; 400 means malformed, 405 a method that is not served, 502 unreachable and
/// 504 too slow.
///
/// Whoever can connect to a listener can use it: give a Unix socket a directory that only the program sees.
///
/// ```
/// use std::net::TcpListener;
/// use kennel::network::{HostPolicy, SpawnProxy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = HostPolicy::new(["api.example.com:443"])?;
/// let proxy = SpawnProxy::new(policy, "my-connector").connect_only();
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let variable = format!("https_proxy=http://{}", listener.local_addr()?);
/// proxy.serve(listener)?;
/// // Run the program with that variable, and then:
/// proxy.close().await;
/// # Ok(())
/// # }
/// ```
pub struct SpawnProxy {
    /// What lines of the audit log name.
    origin: Origin,
    settings: Settings,
    log: Option<Arc<Log>>,
    /// Made for the first listener.
    serving: OnceLock<Serving>,
}

impl fmt::Debug for SpawnProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnProxy").field("connector", &self.origin.connector).finish_non_exhaustive()
    }
}

impl SpawnProxy {
    /// A proxy for the hosts of a policy. `name` is the connector that lines of the audit log name.
    #[must_use]
    pub fn new(policy: HostPolicy, name: impl Into<String>) -> Self {
        Self::of(policy, Origin { connector: Some(name.into().into()), spawn: None, root: None })
    }

    pub(crate) fn of(policy: HostPolicy, origin: Origin) -> Self {
        let settings =
            Settings { allow: policy.rules, decides: AllowListOwner::Manifest, ..Settings::default() };
        Self { origin, settings, log: None, serving: OnceLock::new() }
    }

    /// Serves CONNECT only: another method is answered with 405, and SOCKS5 is no protocol here.
    #[must_use]
    pub fn connect_only(mut self) -> Self {
        self.settings.connect_only = true;
        self
    }

    /// Opens special address ranges to names, such as `10.0.0.0/8`: see
    /// [`Network::allow_addresses`](crate::policy::network::Network::allow_addresses).
    ///
    /// # Errors
    /// One of them is not a range of addresses.
    pub fn allow_addresses(
        mut self,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, PolicyError> {
        for network in networks {
            let network = network.as_ref();
            let parsed = address::networks([network])
                .map_err(|(_, error)| PolicyError::value("allow_addresses", network, error.to_string()))?;
            self.settings.addresses.extend(parsed);
        }
        Ok(self)
    }

    /// Sets how much of the proxy clients may use, such as how many connections they have at the same time.
    ///
    /// ```
    /// use kennel::network::{HostPolicy, SpawnProxy};
    /// use kennel::NetworkLimits;
    ///
    /// let limits = NetworkLimits { connections: Some(64), ..NetworkLimits::default() };
    /// let proxy = SpawnProxy::new(HostPolicy::default(), "my-connector").limits(&limits)?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// One of them is out of its range.
    pub fn limits(mut self, limits: &NetworkLimits) -> Result<Self, PolicyError> {
        limits.check()?;
        self.settings.limits = ProxyLimits::of(limits);
        Ok(self)
    }

    /// Records every connection and every refusal in an audit log.
    ///
    /// # Errors
    /// The log cannot be opened.
    pub fn audit(mut self, audit: impl Into<Audit>) -> Result<Self, Error> {
        let mut audit = audit.into();
        audit.path = path::absolute(&audit.path).map_err(Error::io("find the current directory"))?;
        self.log = Some(Arc::new(Log::open(&audit)?));
        Ok(self)
    }

    /// Serves the clients of a listener, on the current runtime, until the proxy is closed or dropped. A
    /// proxy may have several listeners.
    ///
    /// # Errors
    /// The runtime does not accept the listener.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn serve(&self, listener: impl Into<ProxyListener>) -> Result<(), Error> {
        let serving = self.serving.get_or_init(|| {
            let gate = Arc::new(Gate::direct(self.settings.clone()));
            Serving::new(&gate, &Trail::new(self.log.as_ref(), self.origin.clone()), None)
        });
        serving.listen(listener.into()).map_err(Error::io("serve clients of the proxy"))
    }

    /// Accepts no more clients, and waits until the connections that are open have ended. Dropping the future
    /// ends them at once, so `timeout(limit, proxy.close())` closes within a limit. A listener on a Unix
    /// socket leaves its file.
    pub async fn close(self) {
        if let Some(serving) = self.serving.into_inner() {
            serving.finish().await;
        }
    }
}
