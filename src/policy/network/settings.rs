//! The settings of the proxy: what a policy says about the network, in the forms that decisions need. Plain
//! data, made from a policy before anything starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::policy::network::rule::Rules;
use crate::policy::network::upstream::Upstream;
use crate::policy::network::{Network, NetworkLimits, address, name_server};
use crate::report::error::policy::PolicyError;
use crate::report::remedy::Wording;
use crate::sys::inode::Identity;

/// The port of the proxy on 127.0.0.1 in the sandbox. The namespace is new, so no other program has it.
pub(crate) const PORT: u16 = 3128;

/// The network part of a policy, in the forms that decisions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) allow: Rules,
    pub(crate) deny: Rules,
    /// Special address ranges that names may resolve to.
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) upstream: ProxyUpstream,
    /// The upstream proxy that the caller's environment names, if the policy names none.
    pub(crate) unused_upstream: Option<Upstream>,
    /// Whether to note which package registries were reached: what came from there is gone with the sandbox.
    pub(crate) notes_registries: bool,
    /// Name servers that the proxy asks instead of the system's.
    pub(crate) name_servers: Vec<SocketAddr>,
    pub(crate) limits: ProxyLimits,
    /// Ports on which programs that know no proxy are served.
    pub(crate) ports: Vec<u16>,
    /// How many sockets each sandbox hands out.
    pub(crate) sockets: usize,
    /// Whether an answer of the embedding program opens no special address, also if the request names it.
    pub(crate) guards_answers: bool,
    /// The words for settings in answers to refused requests.
    pub(crate) wording: Wording,
    /// Whether nothing but CONNECT is served.
    pub(crate) connect_only: bool,
    pub(crate) decides: AllowListOwner,
}

/// Whose list of allowed hosts it is: what a person changes to allow one more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AllowListOwner {
    #[default]
    Policy,
    Manifest,
}

impl Settings {
    /// The settings of a network, without what only a sandbox has. `environment` is the caller's, which may
    /// name an upstream proxy.
    ///
    /// # Errors
    /// The environment names an upstream proxy that is invalid.
    pub(crate) fn of(
        network: &Network,
        environment: &BTreeMap<OsString, OsString>,
    ) -> Result<Self, PolicyError> {
        let upstream = match &network.upstream {
            Some(upstream) => Upstream::of(upstream, environment)
                .map_err(|reason| PolicyError::value("network.upstream", "…", reason))?
                .map_or(ProxyUpstream::Direct, ProxyUpstream::Upstream),
            None => ProxyUpstream::Direct,
        };
        let unused_upstream = match upstream {
            ProxyUpstream::Direct => Upstream::of_environment(environment).ok().flatten(),
            _ => None,
        };
        let addresses = address::networks(network.allow_addresses.iter().map(String::as_str));
        let rules = |texts: &[String]| Rules::parse(texts.iter().map(String::as_str)).unwrap_or_default();
        Ok(Self {
            allow: rules(&network.allow),
            deny: rules(&network.deny),
            addresses: addresses.unwrap_or_default(),
            upstream,
            unused_upstream,
            name_servers: network.name_servers.iter().filter_map(|text| name_server(text)).collect(),
            limits: ProxyLimits::of(&network.limits),
            ..Self::default()
        })
    }
}

/// How the proxy connects to allowed destinations.
#[derive(Clone, Debug, Default)]
pub(crate) enum ProxyUpstream {
    #[default]
    Direct,
    /// Through an HTTP proxy.
    Upstream(Upstream),
    /// Through another program's proxy on a Unix socket. That proxy decides what passes.
    Foreign {
        path: PathBuf,
        /// The identity of the socket when the policy was compiled.
        identity: Identity,
    },
}

/// [`NetworkLimits`] with the defaults filled in that no process decides.
#[derive(Clone, Debug)]
pub(crate) struct ProxyLimits {
    /// `None`: what the descriptors of the process that serves them suffice for.
    pub(crate) connections: Option<usize>,
    pub(crate) header_size: usize,
    pub(crate) header_time: Duration,
    pub(crate) idle_time: Duration,
    pub(crate) bytes: Option<u64>,
    pub(crate) rate: Option<u64>,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self::of(&NetworkLimits::default())
    }
}

impl ProxyLimits {
    pub(crate) fn of(limits: &NetworkLimits) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            connections: limits.connections.map(|count| size(count.into())),
            header_size: limits.header_size.map_or(64 << 10, |bytes| size(bytes.bytes())),
            header_time: limits.header_time.map_or(Duration::from_secs(10), |span| span.duration()),
            idle_time: limits.idle_time.map_or(Duration::from_secs(15 * 60), |span| span.duration()),
            bytes: limits.bytes.map(|size| size.bytes()),
            rate: limits.rate.map(|size| size.bytes()),
        }
    }
}
