//! What the proxy has to know, made of a policy by `compile`. Plain data.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::policy::network::NetworkLimits;
use crate::policy::rule::Rules;
use crate::policy::upstream::Upstream;
use crate::sys::inode::Identity;

/// Where the proxy listens inside, on 127.0.0.1. The namespace is new, so nothing else can be there.
pub(crate) const PORT: u16 = 3128;

/// What the policy says of the network, in the forms that decisions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) allow: Rules,
    pub(crate) deny: Rules,
    /// Special ranges that names may resolve to.
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) way: Way,
    /// Name servers to ask instead of the system's.
    pub(crate) name_servers: Vec<SocketAddr>,
    pub(crate) limits: ProxyLimits,
    /// Ports on which programs that know no proxy are served.
    pub(crate) ports: Vec<u16>,
    /// How many sockets come out of each sandbox.
    pub(crate) sockets: usize,
}

/// How what passes is reached.
#[derive(Clone, Debug, Default)]
pub(crate) enum Way {
    #[default]
    Direct,
    /// Through an HTTP proxy.
    Upstream(Upstream),
    /// Through somebody else's proxy on a Unix socket, which decides by itself.
    Foreign {
        path: PathBuf,
        /// That of the socket that was looked at.
        identity: Identity,
    },
}

/// [`NetworkLimits`] with the defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct ProxyLimits {
    pub(crate) connections: usize,
    pub(crate) header_size: usize,
    pub(crate) header_time: Duration,
    pub(crate) idle_time: Duration,
    pub(crate) bytes: Option<u64>,
    pub(crate) rate: Option<u64>,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self::of(&NetworkLimits::default(), u64::MAX)
    }
}

impl ProxyLimits {
    /// `descriptors` is how many the embedding program may have open.
    pub(crate) fn of(limits: &NetworkLimits, descriptors: u64) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        // Each connection takes two, and the program has other needs.
        let most = size(descriptors / 4).clamp(16, 4096);
        Self {
            connections: limits.connections.map_or(most, |count| size(count.into())),
            header_size: limits.header_size.map_or(64 << 10, |bytes| size(bytes.bytes())),
            header_time: limits.header_time.map_or(Duration::from_secs(10), |span| span.duration()),
            idle_time: limits.idle_time.map_or(Duration::from_secs(15 * 60), |span| span.duration()),
            bytes: limits.bytes.map(|size| size.bytes()),
            rate: limits.rate.map(|size| size.bytes()),
        }
    }
}
