//! Rules such as `crates.io:443`, and lists of them. A rule only matches or not; the owner of a list uses it
//! to allow or to deny.
//!
//! ```text
//! host:port  *.host:port  host:*  *:port  *:*        *.host is any depth below host, but not host itself
//! 192.0.2.1:443  10.0.0.0/8:5432                     addresses, networks
//! [2001:db8::1]:443  [fd00::/8]:443                  IPv6: the brackets include the prefix
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::policy::network::address;
use crate::policy::network::address::NetworkError;
use crate::policy::network::destination;
use crate::policy::network::destination::{Destination, DestinationHost, DnsName, Malformed};
use crate::policy::network::preset;
use crate::policy::network::preset::UnknownPreset;

/// Why a text is not a rule. Some variants hold a valid rule that the caller may have meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RuleError {
    #[error("the port is missing; write `{0}`")]
    NoPort(String),
    #[error("port `{0}` is neither * nor a number from 1 to 65535")]
    Port(String),
    #[error("an IPv6 address needs brackets, which include its prefix; write `{0}`")]
    Brackets(String),
    #[error("a rule is a host and a port, not a URL; write `{0}`")]
    Url(String),
    #[error("* is a whole host or a whole port, or comes with a dot before a name, as in *.example.com:443")]
    Wildcard,
    #[error(transparent)]
    Host(#[from] Malformed),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Preset(#[from] UnknownPreset),
}

/// One rule: a host pattern and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    host: Pattern,
    /// `None`: any port.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    Any,
    Name(DnsName),
    Below(DnsName),
    /// A single address is a network with one address.
    Network(IpNet),
}

/// The addresses by which programs connect to their own host. The unspecified address leads there too.
const LOOPBACK: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// A list of rules, in the order of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<Rule>);

impl Rule {
    pub(crate) fn matches(&self, destination: &Destination) -> bool {
        self.matches_port(destination.port) && self.host.matches(&destination.host)
    }

    /// Whether the rule names `localhost` and the address is a loopback address: RFC 6761, section 6.3,
    /// resolves `localhost` to loopback addresses only.
    fn matches_as_localhost(&self, ip: IpAddr, port: u16) -> bool {
        let is_localhost = matches!(&self.host, Pattern::Name(name) if name.as_str() == "localhost");
        is_localhost && ip.to_canonical().is_loopback() && self.matches_port(port)
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether the rule names this host. `*` names none.
    fn names(&self, host: &DestinationHost) -> bool {
        self.host != Pattern::Any && self.host.matches(host)
    }

    fn matches_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl Pattern {
    /// Whether the pattern names an address of loopback, or `localhost`.
    fn is_loopback(&self) -> bool {
        match self {
            Self::Any | Self::Below(_) => false,
            Self::Name(name) => name.as_str() == "localhost",
            Self::Network(network) => {
                network.addr().is_loopback() || LOOPBACK.iter().any(|address| network.contains(address))
            }
        }
    }

    fn matches(&self, host: &DestinationHost) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), DestinationHost::Name(asked)) => name == asked,
            (Self::Below(parent), DestinationHost::Name(asked)) => asked.is_below(parent),
            (Self::Network(network), DestinationHost::Address(address)) => {
                network.contains(&address.to_canonical())
            }
            // The proxy checks the addresses of a name after it has resolved the name.
            (Self::Network(_), DestinationHost::Name(_))
            | (Self::Name(_) | Self::Below(_), DestinationHost::Address(_)) => false,
        }
    }
}

impl Rules {
    /// Parses a list. A preset, such as `@cargo`, stands for its own list.
    ///
    /// # Errors
    /// The index of the first text that is not a rule, and the reason.
    pub(crate) fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, (usize, RuleError)> {
        let mut rules = Vec::new();
        for (index, text) in texts.into_iter().enumerate() {
            let failed = |error| (index, error);
            match preset::of(text) {
                Some(preset) => {
                    let preset = preset.map_err(|error| failed(error.into()))?;
                    for rule in preset.rules {
                        rules.push(rule.parse().map_err(failed)?);
                    }
                }
                None => rules.push(text.parse().map_err(failed)?),
            }
        }
        Ok(Self(rules))
    }

    /// The first rule that matches.
    pub(crate) fn find(&self, destination: &Destination) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.matches(destination))
    }

    /// The first rule that matches an address. `localhost` matches every loopback address.
    pub(crate) fn find_address(&self, ip: IpAddr, port: u16) -> Option<&Rule> {
        let destination = Destination { host: DestinationHost::of(ip), port };
        self.0.iter().find(|rule| rule.matches(&destination) || rule.matches_as_localhost(ip, port))
    }

    /// Whether a rule matches the host at some port.
    pub(crate) fn may_match(&self, host: &DestinationHost) -> bool {
        self.0.iter().any(|rule| rule.host.matches(host))
    }

    /// Whether a rule matches the host at one of these ports.
    pub(crate) fn may_match_at(&self, host: &DestinationHost, ports: &[u16]) -> bool {
        let has_port = |rule: &Rule| rule.port.is_none_or(|port| ports.contains(&port));
        self.0.iter().any(|rule| rule.host.matches(host) && has_port(rule))
    }

    /// Whether a rule names the address: by itself, within a network, or as `localhost`. `*` names no
    /// address, because it means the internet and not the caller's own network.
    pub(crate) fn lists(&self, ip: IpAddr, port: u16) -> bool {
        let destination = Destination { host: DestinationHost::of(ip), port };
        let names = |rule: &Rule| matches!(rule.host, Pattern::Network(_)) && rule.matches(&destination);
        self.0.iter().any(|rule| names(rule) || rule.matches_as_localhost(ip, port))
    }

    /// Whether a rule other than `*` names the host at a port that is not one of these.
    pub(crate) fn name_elsewhere(&self, host: &DestinationHost, ports: &[u16]) -> bool {
        let is_elsewhere = |rule: &Rule| rule.port.is_none_or(|port| !ports.contains(&port));
        self.0.iter().any(|rule| rule.names(host) && is_elsewhere(rule))
    }

    /// The rules that name loopback at a port that is not one of these.
    pub(crate) fn loopback_elsewhere(&self, ports: &[u16]) -> impl Iterator<Item = &Rule> {
        let is_elsewhere = |rule: &&Rule| rule.port.is_none_or(|port| !ports.contains(&port));
        self.0.iter().filter(|rule| rule.host.is_loopback()).filter(is_elsewhere)
    }

    /// The ports at which rules other than `*` name loopback, each once.
    pub(crate) fn loopback_ports(&self) -> BTreeSet<u16> {
        self.0.iter().filter(|rule| rule.host.is_loopback()).filter_map(|rule| rule.port).collect()
    }

    /// The host that an address of the sandbox's loopback stands for, at a port where the proxy listens: the
    /// one by which a rule other than `*` names the loopback of the host. `localhost`, 127.0.0.1, and `::1`
    /// stand for each other, because a program that asks for one may connect to another.
    pub(crate) fn loopback_host(&self, address: IpAddr, port: u16) -> Option<DestinationHost> {
        let asked = DestinationHost::of(address);
        let same = LOOPBACK.contains(&address.to_canonical());
        let others = LOOPBACK.into_iter().filter(|_| same).map(DestinationHost::of);
        let localhost = DnsName::parse("localhost").ok().filter(|_| same).map(DestinationHost::Name);
        let mut hosts = localhost.into_iter().chain([asked]).chain(others);
        hosts.find(|host| self.0.iter().any(|rule| rule.matches_port(port) && rule.names(host)))
    }

    /// The ports below 1024 that rules name, each once. Only a privileged process can listen on them.
    pub(crate) fn low_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports: BTreeSet<u16> = self.0.iter().filter_map(|rule| rule.port).collect();
        ports.into_iter().take_while(|&port| port < 1024)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ports, if every rule is `*:port`: Landlock can restrict only by port.
    pub(crate) fn ports_of_any_host(&self) -> Option<Vec<u16>> {
        let port = |rule: &Rule| rule.port.filter(|_| rule.host == Pattern::Any);
        self.0.iter().map(port).collect()
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return Err(url_error(scheme, rest));
        }
        if let Some(suggestion) = with_brackets(text) {
            return Err(RuleError::Brackets(suggestion));
        }
        let Some((host, port)) = destination::split_port(text) else { return Err(missing_port(text)) };
        let port = match port {
            "*" => None,
            _ => Some(
                destination::parse_port(port)
                    .ok_or_else(|| RuleError::Port(port.escape_debug().to_string()))?,
            ),
        };
        Ok(Self { host: host.parse()?, port })
    }
}

impl FromStr for Pattern {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(parent) = text.strip_prefix("*.").filter(|parent| !parent.contains('*')) {
            let DestinationHost::Name(parent) = DestinationHost::parse(parent)? else {
                return Err(RuleError::Wildcard);
            };
            return Ok(Self::Below(parent));
        }
        if text.contains('*') {
            return Err(RuleError::Wildcard);
        }
        if text.contains('/') {
            return network(text).map(Self::Network);
        }
        Ok(match DestinationHost::parse(text)? {
            DestinationHost::Name(name) => Self::Name(name),
            DestinationHost::Address(address) => Self::Network(address.into()),
        })
    }
}

/// Parses the network of a rule: IPv6 needs brackets, IPv4 must not have them.
fn network(text: &str) -> Result<IpNet, RuleError> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let network = address::network(inner.unwrap_or(text))?;
    if inner.is_some() == text.contains(':') { Ok(network) } else { Err(NetworkError::Address.into()) }
}

/// The rule that is probably meant by an IPv6 address without brackets, or with its prefix behind the
/// brackets.
fn with_brackets(text: &str) -> Option<String> {
    let guess = if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]/")) {
        let (prefix, port) = rest.split_once(':').unwrap_or((rest, "443"));
        rule(&format!("[{address}/{prefix}]:{port}"))
    } else if !text.starts_with('[') && text.matches(':').count() > 1 {
        // The end of `fd00::1:443` is a port, or a part of an address without a port.
        let with_port = text.rsplit_once(':').and_then(|(host, port)| rule(&format!("[{host}]:{port}")));
        with_port.or_else(|| rule(&format!("[{text}]:443")))
    } else {
        None
    };
    guess.map(|rule| rule.to_string())
}

/// The error for a rule without a port.
fn missing_port(text: &str) -> RuleError {
    match format!("{text}:443").parse::<Rule>() {
        Ok(rule) => RuleError::NoPort(rule.to_string()),
        // More than the port is wrong.
        Err(error) => error,
    }
}

/// The error for a URL, with the rule for its host and port.
fn url_error(scheme: &str, rest: &str) -> RuleError {
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let port = match scheme {
        "http" | "ws" => 80,
        "ssh" => 22,
        "git" => 9418,
        _ => 443,
    };
    let suggestion = rule(host).or_else(|| rule(&format!("{host}:{port}")));
    RuleError::Url(suggestion.map_or_else(|| "example.com:443".to_owned(), |rule| rule.to_string()))
}

fn rule(text: &str) -> Option<Rule> {
    text.parse().ok()
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Pattern::Any => f.write_str("*")?,
            Pattern::Name(name) => name.fmt(f)?,
            Pattern::Below(parent) => write!(f, "*.{parent}")?,
            Pattern::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                DestinationHost::of(network.addr()).fmt(f)?;
            }
            Pattern::Network(IpNet::V4(network)) => network.fmt(f)?,
            Pattern::Network(IpNet::V6(network)) => write!(f, "[{network}]")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.0.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
