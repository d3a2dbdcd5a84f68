//! What the commands of a sandbox can reach over the network. Plain data: the proxy resolves names and opens
//! sockets.

pub(crate) mod address;
pub(crate) mod destination;
pub(crate) mod preset;
pub(crate) mod proxy_variables;
pub(crate) mod publish;
pub(crate) mod rule;
pub(crate) mod settings;
pub(crate) mod upstream;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::network::publish::{MOST_PUBLISHED, Publish};
use crate::policy::network::rule::Rules;
use crate::policy::network::upstream::{LEFT_OUT, Upstream};
use crate::policy::path::check_text;
use crate::policy::profile::{Profile, Reach};
use crate::policy::units::{Size, Span, check_size, check_span};
use crate::report::error::policy::PolicyError;
use crate::report::error::policy::policy_words;

/// The network of a sandbox.
///
/// ```
/// use kennel::{Network, NetworkMode};
///
/// let network = Network {
///     mode: Some(NetworkMode::Proxy),
///     allow: vec!["crates.io:443".into(), "*.crates.io:443".into()],
///     ..Network::default()
/// };
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// `None`: the mode of the profile; see
    /// [`Policy::effective_network`](crate::policy::Policy::effective_network).
    pub mode: Option<NetworkMode>,
    /// What the proxy allows: `host:port`, `*.host:port` (everything below `host`), `host:*`, `*:port`. A
    /// host is a name, an address (`192.0.2.1:80`, `[2001:db8::1]:80`) or a network (`192.0.2.0/24:80`).
    /// Empty: nothing. The proxy then refuses at once, and the denials name what was asked for.
    ///
    /// A preset stands for the hosts of a registry: `@cargo`, `@npm`, `@pypi` and others. `docs/network.md`
    /// lists them.
    ///
    /// `localhost:port` or `127.0.0.1:port` is a service of the host: every program inside reaches it at that
    /// port of its own loopback.
    ///
    /// In mode `host`, only `*:port` is possible: Landlock refuses TCP connections to other ports.
    pub allow: Vec<String>,
    /// What the proxy refuses even if `allow` matches it, in the same forms.
    pub deny: Vec<String>,
    /// Ranges of non-public addresses that names may resolve to, such as `10.0.0.0/8`. Without it, the proxy
    /// connects to loopback, private, link-local and other special addresses only if `allow` names them.
    pub allow_addresses: Vec<String>,
    /// Another proxy instead of Kennel's own.
    pub proxy: Option<ForeignProxy>,
    /// The HTTP proxy that Kennel's own proxy connects through: `http://host:port`, or `environment` for
    /// `https_proxy` and `no_proxy` of the caller. It resolves names itself, so Kennel checks no addresses.
    /// `None`: no such proxy.
    pub upstream: Option<String>,
    /// Name servers that the proxy asks instead of those of the system: `address` or `address:port`.
    pub name_servers: Vec<String>,
    /// Whether Kennel also serves programs without proxy support. A name server in the sandbox resolves
    /// allowed names, and listeners take connections on ports 80, 443 and every other port below 1024 that
    /// `allow` names. Default: true.
    pub transparent: Option<bool>,
    /// TCP ports of the sandbox that programs outside can connect to, as `[ADDR:]PORT[:INSIDE]`: they connect
    /// to `PORT` of the host and reach a server at `INSIDE` of the sandbox's loopback. Default for `ADDR` is
    /// `127.0.0.1`, and for `INSIDE` the same port. With `PORT` 0, the kernel chooses one; see
    /// [`Child::published`](crate::command::child::Child::published) and
    /// [`Session::published`](crate::session::Session::published).
    ///
    /// In modes `proxy` and `none`. Each command of a [`Sandbox`](crate::session::sandbox::Sandbox) publishes
    /// them for itself.
    pub publish: Vec<String>,
    /// How much of the proxy the commands of a sandbox may use.
    pub limits: NetworkLimits,
}

/// Leaves out the credentials of an upstream proxy.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("mode", &self.mode)
            .field("allow", &self.allow)
            .field("deny", &self.deny)
            .field("allow_addresses", &self.allow_addresses)
            .field("proxy", &self.proxy)
            .field("upstream", &self.upstream.as_deref().map(without_credentials))
            .field("name_servers", &self.name_servers)
            .field("transparent", &self.transparent)
            .field("publish", &self.publish)
            .field("limits", &self.limits)
            .finish()
    }
}

/// A URL with its credentials replaced.
fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{LEFT_OUT}@{host}"),
        (None, Some((_, host))) => format!("{LEFT_OUT}@{host}"),
        _ => url.to_owned(),
    }
}

/// A proxy outside Kennel that alone decides what passes: Kennel only forwards connections to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignProxy {
    /// The Unix socket on the host where it accepts HTTP proxy connections.
    pub unix: PathBuf,
}

/// How much of the proxy the commands of one sandbox may use. `None`: the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkLimits {
    /// Connections at the same time; further ones wait. Default: 4096, but at most a quarter of the
    /// descriptors that the embedding program may open.
    pub connections: Option<u32>,
    /// Size of a request line with its headers, from 8 KiB to 1 MiB. Default: 64 KiB.
    pub header_size: Option<Size>,
    /// How long a client may take to send a request line with its headers. Default: 10 seconds.
    pub header_time: Option<Span>,
    /// How long a connection may carry no data. Default: 15 minutes.
    pub idle_time: Option<Span>,
    /// Bytes in both directions together, over the life of the sandbox. Default: no limit.
    pub bytes: Option<Size>,
    /// Bytes in both directions together, per second. Default: no limit.
    pub rate: Option<Size>,
}

policy_words! {
    /// How much of the network a sandbox has.
    pub enum NetworkMode as "network.mode" {
        /// Only a private loopback interface.
        None = "none",
        /// A private loopback interface with a proxy that lets allowed connections through.
        Proxy = "proxy",
        /// The network of the host; a policy can restrict only TCP ports.
        Host = "host",
    }
}

impl Network {
    /// The same network for display: every preset in full, and without the credentials of an upstream proxy.
    /// A policy with credentials left out is not valid.
    #[must_use]
    pub fn shown(&self) -> Self {
        Self {
            allow: preset::expanded(&self.allow),
            deny: preset::expanded(&self.deny),
            upstream: self.upstream.as_deref().map(without_credentials),
            ..self.clone()
        }
    }

    pub(crate) fn effective(&self, profile: Profile) -> NetworkMode {
        self.mode.unwrap_or(match profile.meaning().reach {
            Reach::Allowed => NetworkMode::Proxy,
            Reach::Nowhere => NetworkMode::None,
            Reach::Everywhere => NetworkMode::Host,
        })
    }

    /// Whether the policy leaves the network to the profile. The proxy then allows nothing: it only answers.
    pub(crate) fn is_unset(&self) -> bool {
        *self == Self { publish: self.publish.clone(), ..Self::default() }
    }

    /// The ports to publish, of a policy that was validated.
    pub(crate) fn published(&self) -> Vec<Publish> {
        self.publish.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Whether Kennel also serves programs without proxy support.
    pub(crate) fn is_transparent(&self) -> bool {
        self.transparent.unwrap_or(true)
    }

    pub(crate) fn check(&self, profile: Profile) -> Result<(), PolicyError> {
        self.check_values()?;
        self.check_mode(profile)?;
        self.check_publish(profile)?;
        if profile.meaning().reach == Reach::Nowhere {
            let reason = format!("profile {profile} has no network; remove it or choose profile repo-write");
            return self.refuse_proxy_keys(true, &reason);
        }
        match self.effective(profile) {
            NetworkMode::Proxy => self.check_foreign_proxy(),
            // Nothing would enforce the list.
            NetworkMode::None => {
                self.refuse_proxy_keys(true, "network.mode is none; remove it or choose mode proxy")
            }
            NetworkMode::Host => {
                const BY_PORT: &str = "the host's network is filtered by port only, as in `*:443`; remove it or choose mode proxy";
                const NO_PROXY: &str = "with the host's network nothing passes through Kennel's proxy; remove it or \
                                        choose mode proxy";
                if rules("network.allow", &self.allow)?.ports_of_any_host().is_none() {
                    self.refuse_proxy_keys(true, BY_PORT)?;
                }
                self.refuse_proxy_keys(false, NO_PROXY)
            }
        }
    }

    /// Checks each value for itself, in every mode.
    fn check_values(&self) -> Result<(), PolicyError> {
        rules("network.allow", &self.allow)?;
        rules("network.deny", &self.deny)?;
        address::networks(self.allow_addresses.iter().map(String::as_str)).map_err(|(index, reason)| {
            PolicyError::value("network.allow_addresses", &self.allow_addresses[index], reason)
        })?;
        if let Some(text) = self.name_servers.iter().find(|text| name_server(text).is_none()) {
            let reason = "expected an address, or address:port, such as 192.0.2.53 or [2001:db8::53]:5353";
            return Err(PolicyError::value("network.name_servers", text, reason));
        }
        if let Some(upstream) = &self.upstream {
            // The value may contain a password, so the message does not repeat it.
            Upstream::check(upstream)
                .map_err(|reason| PolicyError::value("network.upstream", "…", reason))?;
        }
        if let Some(proxy) = &self.proxy {
            check_text("network.proxy.unix", &proxy.unix)?;
        }
        self.limits.check()
    }

    /// Refuses the first given key that only Kennel's own proxy could obey.
    fn refuse_proxy_keys(&self, with_allow: bool, reason: &str) -> Result<(), PolicyError> {
        let allow = if with_allow { self.allow.first() } else { None };
        let unix = self.proxy.as_ref().map(|proxy| proxy.unix.display().to_string());
        let limits = (self.limits != NetworkLimits::default()).then(|| "…".to_owned());
        let given = [
            ("network.allow", allow.cloned()),
            ("network.deny", self.deny.first().cloned()),
            ("network.allow_addresses", self.allow_addresses.first().cloned()),
            ("network.proxy.unix", unix),
            ("network.upstream", self.upstream.as_ref().map(|_| "…".to_owned())),
            ("network.name_servers", self.name_servers.first().cloned()),
            ("network.transparent", self.transparent.filter(|&is| is).map(|is| is.to_string())),
            ("network.limits", limits),
        ];
        match given.into_iter().find_map(|(key, value)| Some((key, value?))) {
            Some((key, value)) => Err(PolicyError::value(key, value, reason)),
            None => Ok(()),
        }
    }

    /// With a foreign proxy, no key may ask Kennel's proxy for decisions.
    fn check_foreign_proxy(&self) -> Result<(), PolicyError> {
        if self.proxy.is_none() {
            return Ok(());
        }
        let alone = Self { proxy: None, transparent: None, ..self.clone() };
        alone.refuse_proxy_keys(true, "network.proxy alone decides what passes; remove one of them")
    }

    fn check_publish(&self, profile: Profile) -> Result<(), PolicyError> {
        let refuse = |text: &str, reason: &str| Err(PolicyError::value("network.publish", text, reason));
        let mut seen: Vec<Publish> = Vec::new();
        for text in &self.publish {
            let publish = publish(text)?;
            if self.effective(profile) == NetworkMode::Host {
                return refuse(text, NO_NAMESPACE);
            }
            if publish.outside.port() != 0 && seen.iter().any(|other| other.outside == publish.outside) {
                return refuse(
                    text,
                    "its port of the host is published already; remove one, or choose another port",
                );
            }
            if seen.len() == MOST_PUBLISHED {
                return refuse(
                    text,
                    &format!("at most {MOST_PUBLISHED} ports are published; remove the others"),
                );
            }
            seen.push(publish);
        }
        Ok(())
    }

    fn check_mode(&self, profile: Profile) -> Result<(), PolicyError> {
        let reason = match (profile, self.mode) {
            (Profile::NoNetwork, Some(NetworkMode::Proxy | NetworkMode::Host)) => {
                "profile no-network has no network; remove it or choose another profile"
            }
            (Profile::CiOnly, Some(NetworkMode::Host)) => {
                "profile ci-only reaches only what is allowed; choose mode proxy or another profile"
            }
            _ => return Ok(()),
        };
        Err(PolicyError::value("network.mode", self.effective(profile), reason))
    }
}

/// Why nothing can be published without a network namespace.
pub(crate) const NO_NAMESPACE: &str = "with the host's network, a server of the command listens on the host itself; remove it or \
                                       choose mode proxy or none";

/// # Errors
/// The text is no port to publish.
pub(crate) fn publish(text: &str) -> Result<Publish, PolicyError> {
    text.parse().map_err(|reason: String| PolicyError::value("network.publish", text, reason))
}

fn rules(key: &str, texts: &[String]) -> Result<Rules, PolicyError> {
    Rules::parse(texts.iter().map(String::as_str))
        .map_err(|(index, error)| PolicyError::value(key, &texts[index], error.to_string()))
}

/// Room for a request line, a host and some cookies, in bytes. The HTTP library does not accept less.
const HEADER_MIN: u64 = 8 << 10;
/// The largest request line with headers, in bytes.
const HEADER_MAX: u64 = 1 << 20;

impl NetworkLimits {
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        if self.connections == Some(0) {
            return Err(PolicyError::value("network.limits.connections", 0, "must be at least 1"));
        }
        if let Some(size) = self.header_size.filter(|size| !(HEADER_MIN..=HEADER_MAX).contains(&size.bytes()))
        {
            return Err(PolicyError::value("network.limits.header_size", size, "must be from 8K to 1M"));
        }
        check_span("network.limits.header_time", self.header_time)?;
        check_span("network.limits.idle_time", self.idle_time)?;
        check_size("network.limits.bytes", self.bytes)?;
        check_size("network.limits.rate", self.rate)
    }
}

/// Parses a name server: `address` or `address:port`.
pub(crate) fn name_server(text: &str) -> Option<SocketAddr> {
    let plain = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, NAME_SERVER));
    text.parse().or_else(|_| plain()).ok()
}

/// The port of DNS. The name server in the sandbox listens on it, at 127.0.0.1.
pub(crate) const NAME_SERVER: u16 = 53;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn network(mode: Option<NetworkMode>, allow: &[&str]) -> Network {
        Network { mode, allow: allow.iter().map(|&rule| rule.to_owned()).collect(), ..Network::default() }
    }

    #[test]
    fn profile_decides_when_no_mode_is_given() {
        use NetworkMode as Mode;
        let listed = network(None, &["a:1"]);
        for (profile, without, with) in [
            (Profile::ReadOnly, Mode::None, Mode::None),
            (Profile::RepoWrite, Mode::Proxy, Mode::Proxy),
            (Profile::NoNetwork, Mode::None, Mode::None),
            (Profile::FullDev, Mode::Host, Mode::Host),
            (Profile::CiOnly, Mode::Proxy, Mode::Proxy),
        ] {
            assert_eq!(Network::default().effective(profile), without, "{profile}");
            assert_eq!(listed.effective(profile), with, "{profile}");
            for mode in Mode::ALL {
                assert_eq!(network(Some(mode), &[]).effective(profile), mode);
            }
        }
    }

    #[test]
    fn list_without_a_proxy_is_refused() {
        for (profile, mode, words) in [
            (Profile::NoNetwork, None, "profile no-network"),
            (Profile::ReadOnly, None, "profile read-only"),
            (Profile::ReadOnly, Some(NetworkMode::Proxy), "profile read-only"),
            (Profile::RepoWrite, Some(NetworkMode::None), "network.mode is none"),
            (Profile::FullDev, None, "by port only"),
            (Profile::RepoWrite, Some(NetworkMode::Host), "by port only"),
        ] {
            let error = network(mode, &["crates.io:443"]).check(profile).expect_err(words).to_string();
            assert!(error.starts_with("network.allow `crates.io:443`: ") && error.contains(words), "{error}");
        }
        network(Some(NetworkMode::Proxy), &["crates.io:443"]).check(Profile::FullDev).expect("filtered");
        network(None, &["crates.io:443"]).check(Profile::CiOnly).expect("filtered");
    }

    #[test]
    fn mode_that_contradicts_the_profile_is_refused() {
        for (profile, mode) in [
            (Profile::NoNetwork, NetworkMode::Host),
            (Profile::NoNetwork, NetworkMode::Proxy),
            (Profile::CiOnly, NetworkMode::Host),
        ] {
            let error = network(Some(mode), &[]).check(profile).expect_err("contradiction").to_string();
            assert!(error.contains(mode.as_str()) && error.contains(profile.as_str()), "{error}");
        }
        network(Some(NetworkMode::None), &[]).check(Profile::NoNetwork).expect("the same said twice");
    }

    #[test]
    fn each_value_is_checked() {
        let check = |change: fn(&mut Network)| {
            let mut network = network(None, &["crates.io:443"]);
            change(&mut network);
            network.check(Profile::RepoWrite).map_err(|error| error.to_string())
        };
        check(|_| ()).expect("plain");
        check(|network| network.deny.push("*.crates.io:80".into())).expect("deny");
        check(|network| network.allow_addresses.push("203.0.113.0/24".into())).expect("addresses");
        check(|network| network.upstream = Some("environment".into())).expect("upstream");
        check(|network| network.upstream = Some("http://u:p@proxy.example:3128".into())).expect("upstream");
        check(|network| {
            network.upstream = Some("http://u:p@proxy.example:3128".into());
            *network = network.shown();
        })
        .expect_err("`…` is no password");
        for (change, start) in [
            ((|network| network.allow.push("x".into())) as fn(&mut Network), "network.allow `x`: "),
            (|network| network.deny.push("a b:1".into()), "network.deny `a b:1`: "),
            (|network| network.allow_addresses.push("10.0.0.0/33".into()), "network.allow_addresses `10"),
            (|network| network.upstream = Some("secret".into()), "network.upstream `…`: "),
            (|network| network.name_servers.push("dns".into()), "network.name_servers `dns`"),
            (|network| network.limits.connections = Some(0), "network.limits.connections `0`"),
            (
                |network| network.limits.header_size = Some(Size::from_bytes(1)),
                "network.limits.header_size `1`",
            ),
            (|network| network.limits.rate = Some(Size::from_bytes(0)), "network.limits.rate `0`"),
            (
                |network| network.limits.idle_time = Some(Duration::ZERO.into()),
                "network.limits.idle_time `0s`",
            ),
            (
                |network| network.proxy = Some(ForeignProxy { unix: "/p".into() }),
                "network.allow `crates.io:443`",
            ),
            (
                |network| {
                    *network = Network { proxy: Some(ForeignProxy { unix: "".into() }), ..Network::default() }
                },
                "network.proxy.unix:",
            ),
        ] {
            let error = check(change).expect_err(start);
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn keys_of_the_proxy_without_one_are_refused() {
        let changes: [fn(&mut Network); 5] = [
            |network| network.deny.push("a:1".into()),
            |network| network.allow_addresses.push("10.0.0.0/8".into()),
            |network| network.upstream = Some("environment".into()),
            |network| network.limits.connections = Some(3),
            |network| network.transparent = Some(true),
        ];
        for change in changes {
            for mode in [NetworkMode::None, NetworkMode::Host] {
                let mut network = network(Some(mode), &[]);
                change(&mut network);
                network.check(Profile::RepoWrite).expect_err("no proxy would obey it");
            }
        }
    }

    #[test]
    fn the_host_network_is_restricted_by_port() {
        network(Some(NetworkMode::Host), &["*:443", "*:80"]).check(Profile::RepoWrite).expect("ports");
        network(None, &["*:443"]).check(Profile::FullDev).expect("ports");
        for rule in ["*:*", "a.example:443", "192.0.2.1:443"] {
            network(Some(NetworkMode::Host), &["*:443", rule]).check(Profile::RepoWrite).expect_err(rule);
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let upstream = Some("http://alice:s3@cret@proxy.example:3128".to_owned());
        let network = Network { upstream, ..Network::default() };
        for text in [format!("{network:?}"), format!("{:?}", network.shown().upstream)] {
            assert!(text.contains("http://…@proxy.example:3128") && !text.contains("s3"), "{text}");
        }
    }

    #[test]
    fn a_foreign_proxy_selects_mode_proxy() {
        let network =
            Network { proxy: Some(ForeignProxy { unix: "/run/p.sock".into() }), ..Network::default() };
        network.check(Profile::RepoWrite).expect("foreign");
        assert_eq!(network.effective(Profile::RepoWrite), NetworkMode::Proxy);
        network.check(Profile::NoNetwork).expect_err("no network at all");
    }
}
