//! The decision about a connection: whether it is allowed, and which addresses the proxy may connect to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::network::ask::Ask;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::resolve::{Interfaces, NO_ADDRESS, Resolver};
use crate::policy::network::address;
use crate::policy::network::destination::{Destination, DestinationHost, DnsName};
use crate::policy::network::settings::ProxyUpstream;
use crate::policy::network::settings::Settings;
use crate::policy::network::upstream::Upstream;
use crate::report::error::Error;
use crate::report::network_failure::NetworkCause;
use crate::sys::HELD;
use crate::sys::inode::Identity;

/// Decides for all sandboxes of one policy.
#[derive(Debug)]
pub(crate) struct Gate {
    settings: Arc<Settings>,
    ask: OnceLock<Ask>,
    resolver: Resolver,
    interfaces: Interfaces,
    /// The socket of a foreign proxy, checked to be the one that the policy was compiled with.
    foreign: Option<Arc<OwnedFd>>,
}

/// Permission for one connection: everything in it has been checked.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(crate) destination: Destination,
    pub(crate) route: Route,
    /// The reason why it is allowed.
    pub(crate) by: AllowedBy,
}

/// Why a connection is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedBy {
    /// The allow list has it.
    List,
    /// The embedding program answered yes.
    Answer,
    /// A foreign proxy decides.
    Foreign,
}

impl AllowedBy {
    /// The word for the audit log.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::List => "allowed",
            Self::Answer => "asked",
            Self::Foreign => "foreign",
        }
    }
}

/// How to reach a destination.
#[derive(Debug)]
pub(crate) enum Route {
    Direct(Vec<SocketAddr>),
    Upstream(Upstream),
    Foreign(Arc<OwnedFd>),
}

impl Gate {
    /// # Errors
    /// The socket of a foreign proxy is gone or is another one.
    pub(crate) fn new(settings: Arc<Settings>) -> Result<Self, Error> {
        let foreign = match &settings.upstream {
            ProxyUpstream::Foreign { path, identity } => Some(Arc::new(open_socket(path, *identity)?)),
            _ => None,
        };
        Ok(Self { foreign, ..Self::direct(settings) })
    }

    /// A gate without a foreign proxy.
    pub(crate) fn direct(settings: impl Into<Arc<Settings>>) -> Self {
        let settings = settings.into();
        Self {
            foreign: None,
            interfaces: Interfaces::default(),
            resolver: Resolver::new(settings.name_servers.clone()),
            settings,
            ask: OnceLock::new(),
        }
    }

    /// Sets the callback for what no list decides. Only the first call counts.
    pub(crate) fn set_ask(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Every address of a name, unchecked. Only for names in the policy itself.
    pub(crate) async fn resolve(&self, name: &DnsName) -> io::Result<Vec<IpAddr>> {
        self.resolver.resolve(name).await
    }

    /// Whether the DNS stub may answer for a name. A program without proxy support connects afterwards, and
    /// that connection is checked again. A name that is allowed only at ports without a transparent listener
    /// gets no address: otherwise another command could listen at that address and port. Without such
    /// listeners, nothing is asked either.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn check_name(&self, name: &DnsName) -> Result<(), ProxyRefusal> {
        let host = DestinationHost::Name(name.clone());
        let Settings { allow, ports, .. } = &*self.settings;
        let is_decided_later = self.ask.get().is_some() && !ports.is_empty() || self.foreign.is_some();
        if is_decided_later || allow.may_match_at(&host, ports) {
            return Ok(());
        }
        let reason = if allow.may_match(&host) { Reason::NotServed } else { Reason::NotAllowed };
        Err(ProxyRefusal { subject: name.to_string(), destination: None, reason })
    }

    /// Decides about a connection. It resolves the name once, here; the proxy connects only to the checked
    /// addresses.
    pub(crate) async fn permit(&self, destination: Destination) -> Result<Permit, ProxyRefusal> {
        if let Some(foreign) = &self.foreign {
            let route = Route::Foreign(Arc::clone(foreign));
            return Ok(Permit { destination, route, by: AllowedBy::Foreign });
        }
        let by = self.decide(&destination).await?;
        let route = match &self.settings.upstream {
            // The loopback of a rule is this host's.
            ProxyUpstream::Upstream(upstream)
                if !destination.host.is_loopback() && !upstream.passes_by(&destination.host) =>
            {
                if let DestinationHost::Address(address) = destination.host {
                    self.check(address, &destination, by)?;
                }
                Route::Upstream(upstream.clone())
            }
            _ => Route::Direct(self.addresses(&destination, by).await?),
        };
        Ok(Permit { destination, route, by })
    }

    /// Asks the lists, then the embedding program.
    async fn decide(&self, destination: &Destination) -> Result<AllowedBy, ProxyRefusal> {
        if let Some(rule) = self.settings.deny.find(destination) {
            return Err(ProxyRefusal::of(destination, Reason::Denied(rule.to_string())));
        }
        if self.settings.allow.find(destination).is_some() {
            return Ok(AllowedBy::List);
        }
        match self.ask.get() {
            Some(ask) if ask.allows(destination).await => Ok(AllowedBy::Answer),
            _ => Err(ProxyRefusal::of(destination, Reason::NotAllowed)),
        }
    }

    /// The addresses of a destination that the proxy may connect to.
    async fn addresses(
        &self,
        destination: &Destination,
        by: AllowedBy,
    ) -> Result<Vec<SocketAddr>, ProxyRefusal> {
        let found = match &destination.host {
            DestinationHost::Address(address) => vec![*address],
            DestinationHost::Name(name) => self.resolver.resolve(name).await.map_err(|error| match error
                .kind()
            {
                io::ErrorKind::TimedOut => {
                    ProxyRefusal::of(destination, Reason::Timeout("resolving its name"))
                }
                _ => {
                    ProxyRefusal::of(destination, Reason::Unreachable(NetworkCause::Name, error.to_string()))
                }
            })?,
        };
        let mut refused = None;
        let mut checked = Vec::with_capacity(found.len());
        for address in found {
            match self.check(address, destination, by) {
                Ok(address) => checked.push(SocketAddr::new(address, destination.port)),
                Err(refusal) => refused = Some(refusal),
            }
        }
        match (checked.is_empty(), refused) {
            (true, Some(refusal)) => Err(refusal),
            (true, None) => {
                let reason = Reason::Unreachable(NetworkCause::Name, NO_ADDRESS.to_owned());
                Err(ProxyRefusal::of(destination, reason))
            }
            (false, _) => Ok(checked),
        }
    }

    /// Checks one address, and returns it in the form that the proxy connects to.
    fn check(
        &self,
        address: IpAddr,
        destination: &Destination,
        by: AllowedBy,
    ) -> Result<IpAddr, ProxyRefusal> {
        // An IPv4-mapped IPv6 address is checked, and used, as IPv4.
        let address = address.to_canonical();
        for here in [address, effective_address(address)] {
            if let Some(rule) = self.settings.deny.find_address(here, destination.port) {
                return Err(ProxyRefusal::of(destination, Reason::Denied(rule.to_string())));
            }
        }
        // The question contained this very address. A program that says yes to everything does not mean it.
        let was_named = !self.settings.guards_answers
            && by == AllowedBy::Answer
            && matches!(destination.host, DestinationHost::Address(_));
        let is_open = was_named
            || self.settings.addresses.iter().any(|network| network.contains(&address))
            || self.settings.allow.lists(address, destination.port);
        if is_open {
            return Ok(address);
        }
        let own = || self.interfaces.contains(address).then_some("an address of this host");
        match address::special(address).or_else(own) {
            Some(range) => Err(ProxyRefusal::of(destination, Reason::AddressBlocked(address, range))),
            None => Ok(address),
        }
    }
}

/// Where connect(2) leads: the unspecified address means this host.
fn effective_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Opens the socket of a foreign proxy by descriptor, because a program that may write to its directory can
/// replace the path.
fn open_socket(path: &Path, identity: Identity) -> Result<OwnedFd, Error> {
    let open = || {
        let socket = nix::fcntl::open(path, HELD | OFlag::O_CLOEXEC, Mode::empty())?;
        if Identity::of_held(&socket)? == identity { Ok(socket) } else { Err(Errno::ESTALE) }
    };
    open().map_err(|errno| Error::Grant {
        what: "proxy socket",
        path: path.to_owned(),
        source: errno.into(),
        remedy: Some("start the proxy first, and name the Unix socket that it listens on".into()),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::ask::Decision;
    use crate::policy::network::address;
    use crate::policy::network::rule::Rules;

    fn gate(allow: &[&str], deny: &[&str], addresses: &[&str]) -> Gate {
        let rules = |texts: &[&str]| Rules::parse(texts.iter().copied()).expect("rules");
        let settings = Settings {
            allow: rules(allow),
            deny: rules(deny),
            addresses: address::networks(addresses.iter().copied()).expect("networks"),
            ..Settings::default()
        };
        Gate::new(Arc::new(settings)).expect("no socket")
    }

    async fn word(gate: &Gate, destination: &str) -> &'static str {
        match gate.permit(Destination::parse(destination).expect("valid")).await {
            Ok(permit) => permit.by.word(),
            Err(refusal) => refusal.word(),
        }
    }

    #[tokio::test]
    async fn lists_decide_and_deny_wins() {
        let gate = gate(&["192.0.2.0/24:*", "8.8.8.8:53", "*:443"], &["192.0.2.7:*", "9.9.9.9:443"], &[]);
        for (destination, expected) in [
            ("192.0.2.1:80", "allowed"),
            ("192.0.2.7:80", "denied"),
            ("8.8.8.8:53", "allowed"),
            ("8.8.8.8:54", "not-allowed"),
            ("1.1.1.1:443", "allowed"),
            ("9.9.9.9:443", "denied"),
            ("1.1.1.1:80", "not-allowed"),
            ("a.example:80", "not-allowed"),
            // `*` means the internet, not the local network.
            ("10.0.0.1:443", "address-blocked"),
            ("127.0.0.1:443", "address-blocked"),
            ("169.254.169.254:443", "address-blocked"),
            ("[::1]:443", "address-blocked"),
            ("[::ffff:127.0.0.1]:443", "address-blocked"),
            ("[64:ff9b::7f00:1]:443", "address-blocked"),
        ] {
            assert_eq!(word(&gate, destination).await, expected, "{destination}");
        }
    }

    #[tokio::test]
    async fn ranges_are_opened_by_name_only() {
        let open = gate(&["*:443"], &[], &["10.0.0.0/8"]);
        assert_eq!(word(&open, "10.1.2.3:443").await, "allowed");
        assert_eq!(word(&open, "10.1.2.3:80").await, "not-allowed");
        assert_eq!(word(&open, "192.168.0.1:443").await, "address-blocked");
        let listed = gate(&["127.0.0.1:8080"], &[], &[]);
        assert_eq!(word(&listed, "127.0.0.1:8080").await, "allowed");
        assert_eq!(word(&listed, "127.0.0.1:8081").await, "not-allowed");
        assert_eq!(word(&gate(&[], &[], &[]), "1.1.1.1:443").await, "not-allowed");
    }

    #[tokio::test]
    async fn the_unspecified_address_is_denied_as_loopback() {
        let wide = ["0.0.0.0/0:*", "[::/0]:*"];
        let denied = gate(&wide, &["127.0.0.0/8:*", "[::1]:*"], &[]);
        for destination in ["0.0.0.0:80", "[::]:80", "[::ffff:0.0.0.0]:80", "127.0.0.1:80", "[::1]:80"] {
            assert_eq!(word(&denied, destination).await, "denied", "{destination}");
        }
        assert_eq!(word(&gate(&wide, &[], &[]), "0.0.0.0:80").await, "allowed");
        assert_eq!(word(&gate(&wide, &["0.0.0.0:*"], &[]), "127.0.0.1:80").await, "allowed");
    }

    #[tokio::test]
    async fn who_denies_localhost_denies_its_addresses() {
        let gate = gate(&["0.0.0.0/0:*", "[::/0]:*"], &["localhost:80"], &[]);
        for destination in ["127.0.0.1:80", "127.3.2.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "0.0.0.0:80"]
        {
            assert_eq!(word(&gate, destination).await, "denied", "{destination}");
        }
        for destination in ["127.0.0.1:81", "10.0.0.1:80"] {
            assert_eq!(word(&gate, destination).await, "allowed", "{destination}");
        }
    }

    #[tokio::test]
    async fn who_is_asked_decides_what_no_list_does() {
        let gate = gate(&["8.8.8.8:53"], &["9.9.9.9:*"], &[]);
        gate.set_ask(Ask::new(Duration::from_secs(5), |request| async move {
            if request.port == 443 { Decision::Allow } else { Decision::Deny }
        }));
        for (destination, expected) in [
            ("8.8.8.8:53", "allowed"),
            ("1.1.1.1:443", "asked"),
            ("1.1.1.1:80", "not-allowed"),
            ("9.9.9.9:443", "denied"),
            // The question contained this address.
            ("10.0.0.1:443", "asked"),
        ] {
            assert_eq!(word(&gate, destination).await, expected, "{destination}");
        }
    }

    #[tokio::test]
    async fn a_yes_to_everything_opens_no_special_address() {
        let settings = Settings { guards_answers: true, ..Settings::default() };
        let gate = Gate::new(Arc::new(settings)).expect("no socket");
        gate.set_ask(Ask::new(Duration::from_secs(5), |_| async { Decision::Allow }));
        for (destination, expected) in [
            ("1.1.1.1:443", "asked"),
            ("10.0.0.1:443", "address-blocked"),
            ("127.0.0.1:443", "address-blocked"),
            ("[::1]:443", "address-blocked"),
            ("169.254.169.254:80", "address-blocked"),
        ] {
            assert_eq!(word(&gate, destination).await, expected, "{destination}");
        }
    }
}
