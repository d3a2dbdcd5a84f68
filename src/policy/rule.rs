//! What may be reached: rules such as `crates.io:443`, and lists of them. Pure: a rule says whether it matches; whether
//! that allows or denies is for who holds the list.
//!
//! ```text
//! host:port  *.host:port  host:*  *:port  *:*        any depth below host, but not host itself
//! 192.0.2.1:443  10.0.0.0/8:5432                     addresses, networks
//! [2001:db8::1]:443  [fd00::/8]:443                  IPv6: brackets around the prefix as well
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::policy::address::NetworkError;
use crate::policy::destination::{Destination, Host, Malformed, Name};
use crate::policy::{address, destination};

/// Why a text is no rule. Where there is a text that is one, and that may have been meant, it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RuleError {
    #[error("the port is missing; write `{0}`")]
    NoPort(String),
    #[error("port `{0}` is neither * nor a number from 1 to 65535")]
    Port(String),
    #[error("brackets go around an IPv6 address, its prefix included; write `{0}`")]
    Brackets(String),
    #[error("a rule is a host and a port, not a URL; write `{0}`")]
    Url(String),
    #[error("* is a whole host, a whole port, or stands with a dot before a name, as in *.example.com:443")]
    Wildcard,
    #[error(transparent)]
    Host(#[from] Malformed),
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    host: Pattern,
    /// `None`: any.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    Any,
    Name(Name),
    Below(Name),
    /// An address is a network of one.
    Network(IpNet),
}

/// A list, in the order in which it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules(Vec<Rule>);

impl Rule {
    pub(crate) fn matches(&self, destination: &Destination) -> bool {
        self.is_at(destination.port) && self.host.covers(&destination.host)
    }

    /// Whether it says `localhost` and means this address. RFC 6761, 6.3: a name of loopback wherever it is asked for.
    fn is_for_localhost(&self, ip: IpAddr, port: u16) -> bool {
        let is_localhost = matches!(&self.host, Pattern::Name(name) if name.as_str() == "localhost");
        is_localhost && ip.to_canonical().is_loopback() && self.is_at(port)
    }

    fn is_at(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl Pattern {
    fn covers(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), Host::Name(asked)) => name == asked,
            (Self::Below(parent), Host::Name(asked)) => asked.is_below(parent),
            (Self::Network(network), Host::Address(address)) => network.contains(&address.to_canonical()),
            // What a name resolves to is judged when it has been resolved, and never by its spelling.
            (Self::Network(_), Host::Name(_)) | (Self::Name(_) | Self::Below(_), Host::Address(_)) => false,
        }
    }
}

impl Rules {
    /// # Errors
    ///
    /// Which of the texts is no rule, and why.
    pub(crate) fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, (usize, RuleError)> {
        let numbered = texts.into_iter().enumerate();
        let rules = numbered.map(|(at, text)| text.parse().map_err(|error| (at, error)));
        rules.collect::<Result<_, _>>().map(Self)
    }

    /// The first rule that matches.
    pub(crate) fn find(&self, destination: &Destination) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.matches(destination))
    }

    /// The first rule that matches an address, as that or, where it is one of loopback, as `localhost`.
    pub(crate) fn find_address(&self, ip: IpAddr, port: u16) -> Option<&Rule> {
        let destination = Destination { host: Host::of(ip), port };
        self.0.iter().find(|rule| rule.matches(&destination) || rule.is_for_localhost(ip, port))
    }

    /// Whether there is a port at which a rule matches the host.
    pub(crate) fn may_match(&self, host: &Host) -> bool {
        self.0.iter().any(|rule| rule.host.covers(host))
    }

    /// Whether there is one of these ports at which a rule matches the host.
    pub(crate) fn may_match_at(&self, host: &Host, ports: &[u16]) -> bool {
        let at = |rule: &Rule| rule.port.is_none_or(|port| ports.contains(&port));
        self.0.iter().any(|rule| rule.host.covers(host) && at(rule))
    }

    /// Whether somebody wrote the address down, by itself, within a network, or as `localhost`. `*` is not that: who writes
    /// it means the internet, not his own network.
    pub(crate) fn lists(&self, ip: IpAddr, port: u16) -> bool {
        let destination = Destination { host: Host::of(ip), port };
        let names = |rule: &Rule| matches!(rule.host, Pattern::Network(_)) && rule.matches(&destination);
        self.0.iter().any(|rule| names(rule) || rule.is_for_localhost(ip, port))
    }

    /// Whether somebody wrote down a host, at whatever port. `*` is not that.
    pub(crate) fn name(&self, host: &str) -> bool {
        let is_meant = |rule: &Rule, host: &Host| rule.host != Pattern::Any && rule.host.covers(host);
        Host::parse(host).is_ok_and(|host| self.0.iter().any(|rule| is_meant(rule, &host)))
    }

    /// The ports of rules that only a privileged process can listen at, each once.
    pub(crate) fn low_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports: BTreeSet<u16> = self.0.iter().filter_map(|rule| rule.port).collect();
        ports.into_iter().take_while(|&port| port < 1024)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ports, where every rule is about one port of any host: what Landlock can tell apart.
    pub(crate) fn ports_of_any_host(&self) -> Option<Vec<u16>> {
        let port = |rule: &Rule| rule.port.filter(|_| rule.host == Pattern::Any);
        self.0.iter().map(port).collect()
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return Err(not_a_url(scheme, rest));
        }
        if let Some(meant) = bracketed(text) {
            return Err(RuleError::Brackets(meant));
        }
        let Some((host, port)) = destination::split(text) else { return Err(portless(text)) };
        let port = match port {
            "*" => None,
            _ => Some(
                destination::port_of(port).ok_or_else(|| RuleError::Port(port.escape_debug().to_string()))?,
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
            let Host::Name(parent) = Host::parse(parent)? else { return Err(RuleError::Wildcard) };
            return Ok(Self::Below(parent));
        }
        if text.contains('*') {
            return Err(RuleError::Wildcard);
        }
        if text.contains('/') {
            return network(text).map(Self::Network);
        }
        Ok(match Host::parse(text)? {
            Host::Name(name) => Self::Name(name),
            Host::Address(address) => Self::Network(address.into()),
        })
    }
}

/// A network as a rule has it: in brackets if, and only if, it is written as IPv6.
fn network(text: &str) -> Result<IpNet, RuleError> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let network = address::network(inner.unwrap_or(text))?;
    if inner.is_some() == text.contains(':') { Ok(network) } else { Err(NetworkError::Address.into()) }
}

/// The rule that was meant by an IPv6 address with no brackets, or with its prefix after them.
fn bracketed(text: &str) -> Option<String> {
    let guess = if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]/")) {
        let (prefix, port) = rest.split_once(':').unwrap_or((rest, "443"));
        rule(&format!("[{address}/{prefix}]:{port}"))
    } else if !text.starts_with('[') && text.matches(':').count() > 1 {
        // The end of `fd00::1:443` is a port, or part of an address with no port.
        let with_port = text.rsplit_once(':').and_then(|(host, port)| rule(&format!("[{host}]:{port}")));
        with_port.or_else(|| rule(&format!("[{text}]:443")))
    } else {
        None
    };
    guess.map(|rule| rule.to_string())
}

fn portless(text: &str) -> RuleError {
    match format!("{text}:443").parse::<Rule>() {
        Ok(rule) => RuleError::NoPort(rule.to_string()),
        // It lacks more than a port.
        Err(error) => error,
    }
}

fn not_a_url(scheme: &str, rest: &str) -> RuleError {
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let port = match scheme {
        "http" | "ws" => 80,
        "ssh" => 22,
        "git" => 9418,
        _ => 443,
    };
    let meant = rule(host).or_else(|| rule(&format!("{host}:{port}")));
    RuleError::Url(meant.map_or_else(|| "example.com:443".to_owned(), |rule| rule.to_string()))
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
                Host::of(network.addr()).fmt(f)?;
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
        for (at, rule) in self.0.iter().enumerate() {
            write!(f, "{}{rule}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
