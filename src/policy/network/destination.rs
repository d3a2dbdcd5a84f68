//! Destinations that a client of the proxy asks for, in one canonical form for every spelling. Nothing here
//! resolves a name; `rule` and `address` decide what the proxy may reach.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use idna::AsciiDenyList;
use thiserror::Error;

/// ASCII characters that no name may contain. Letters, digits, dots, hyphens and underscores remain. STD 3
/// forbids underscores, but names in use contain them, such as those of storage buckets.
const DENIED_IN_NAMES: AsciiDenyList = AsciiDenyList::new(true, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~");

/// The longest text that is accepted as a name, in bytes. A name has at most 253 bytes, but its form before
/// IDNA may be longer. The bound limits the time that IDNA takes.
const NAME_INPUT_MAX: usize = 1024;

/// Why a text is not a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// A DNS name in lower-case ASCII, without a dot at the end. Never an IP address in any spelling.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DnsName(Arc<str>);

/// The host that a client asks for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum DestinationHost {
    Name(DnsName),
    /// Never an IPv4-mapped IPv6 address; create it with [`DestinationHost::of`].
    Address(IpAddr),
}

/// A host and a port.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) host: DestinationHost,
    pub(crate) port: u16,
}

impl DnsName {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        check_characters(text)?;
        if text.len() > NAME_INPUT_MAX {
            return Err(Malformed("a name has at most 253 characters"));
        }
        // The result is lower-case ASCII, and every kind of dot has become the ASCII dot.
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), DENIED_IN_NAMES)
            .map_err(|_| Malformed("a name is letters, digits, hyphens and dots, and valid IDNA"))?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        check_ascii_name(name)?;
        Ok(Self(name.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name is a subdomain of `parent`. No name is below itself.
    pub(crate) fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(&*parent.0).is_some_and(|labels| labels.ends_with('.'))
    }
}

fn check_ascii_name(name: &str) -> Result<(), Malformed> {
    if name.len() > 253 {
        return Err(Malformed("a name has at most 253 characters"));
    }
    if name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err(Malformed("a label of a name has 1 to 63 characters"));
    }
    // IDNA has already checked this. The rest of the proxy relies on it, so it is checked again.
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if !name.bytes().all(is_allowed) {
        return Err(Malformed("a name is letters, digits, hyphens and dots, and valid IDNA"));
    }
    if ends_in_number(name) {
        return Err(Malformed(
            "a name does not end in a number, and an IPv4 address is four decimal numbers",
        ));
    }
    Ok(())
}

/// Whether the resolver of the C library or a browser may read the name as an IPv4 address: 127.1,
/// 0x7f000001. The same check as <https://url.spec.whatwg.org/#ends-in-a-number-checker>, where `0x` alone is
/// also a number.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex =
        last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hex || last.bytes().all(|byte| byte.is_ascii_digit())
}

impl DestinationHost {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        check_characters(text)?;
        if let Some(rest) = text.strip_prefix('[') {
            let inner =
                rest.strip_suffix(']').ok_or(Malformed("a bracket is not closed, or not at the end"))?;
            let address: Ipv6Addr =
                inner.parse().map_err(|_| Malformed("the brackets contain no IPv6 address"))?;
            return Ok(Self::of(address.into()));
        }
        if text.contains(':') {
            return Err(Malformed("an IPv6 address needs brackets, and no other host contains a colon"));
        }
        match text.parse::<Ipv4Addr>() {
            Ok(address) => Ok(Self::of(address.into())),
            Err(_) => DnsName::parse(text).map(Self::Name),
        }
    }

    /// Whether it is an address of loopback, or `localhost`.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name.as_str() == "localhost",
            Self::Address(address) => address.is_loopback() || address.is_unspecified(),
        }
    }

    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl Destination {
    pub(crate) fn parse(authority: &str) -> Result<Self, Malformed> {
        check_characters(authority)?;
        let (host, port) =
            split_port(authority).ok_or(Malformed("the port is missing; expected host:port"))?;
        let host = DestinationHost::parse(host)?;
        let port = parse_port(port).ok_or(Malformed("a port is a number from 1 to 65535"))?;
        Ok(Self { host, port })
    }
}

/// Splits the text into host and port. `None`: there is no colon outside of brackets.
pub(crate) fn split_port(authority: &str) -> Option<(&str, &str)> {
    authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'))
}

/// A port from 1 to 65535.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    // `str::parse` also accepts `+80`.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port != 0)
}

/// Refuses characters that have a special meaning in URLs, in headers or for resolvers, each with its own
/// message.
pub(crate) fn check_characters(text: &str) -> Result<(), Malformed> {
    if text.is_empty() {
        return Err(Malformed("the host is missing"));
    }
    let reason = text.chars().find_map(|c| match c {
        c if c.is_control() => Some("control characters are not allowed in a destination"),
        c if c.is_whitespace() => Some("whitespace is not allowed in a destination"),
        '@' => Some("userinfo is not allowed in a destination"),
        '/' | '\\' => Some("a path is not allowed in a destination"),
        '%' => Some("neither escapes nor zones are allowed in a destination"),
        _ => None,
    });
    reason.map_or(Ok(()), |reason| Err(Malformed(reason)))
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for DestinationHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for DestinationHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
