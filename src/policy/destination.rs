//! What a client of the proxy asks for, in one form however it was spelt. Pure: resolves nothing, and decides nothing;
//! what may be reached is for `rule` and `address`.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use idna::AsciiDenyList;
use thiserror::Error;

/// All of ASCII that is in no name, so letters, digits, dots, hyphens and underscores are left. Underscores are in
/// names that people reach, such as those of storage buckets, though STD 3 has none.
const IN_NO_NAME: AsciiDenyList = AsciiDenyList::new(true, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~");

/// A name is 253 bytes at most. Before IDNA it may be longer, but not without end: IDNA takes time for each byte.
const LONGEST: usize = 1024;

/// Why a text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// A DNS name: lower case, ASCII, without the dot at its end. Never an address, in no spelling of it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name(Arc<str>);

/// Whom a client asks for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    Name(Name),
    /// Never an IPv4 address in the dress of IPv6; made by [`Host::of`].
    Address(IpAddr),
}

/// A host and a port.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Name {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        presentable(text)?;
        if text.len() > LONGEST {
            return Err(Malformed("a name has 253 characters at most"));
        }
        // After it there is nothing but ASCII, dots are the ASCII dot, and letters are small.
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), IN_NO_NAME)
            .map_err(|_| Malformed("a name is letters, digits, hyphens and dots, and valid IDNA"))?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        well_formed(name)?;
        Ok(Self(name.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this name has labels before those of `parent`. No name is below itself.
    pub(crate) fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(&*parent.0).is_some_and(|labels| labels.ends_with('.'))
    }
}

fn well_formed(name: &str) -> Result<(), Malformed> {
    if name.len() > 253 {
        return Err(Malformed("a name has 253 characters at most"));
    }
    if name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err(Malformed("a label of a name has 1 to 63 characters"));
    }
    // What the list above lets pass, said once more: everything after this relies on it.
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if !name.bytes().all(plain) {
        return Err(Malformed("a name is letters, digits, hyphens and dots, and valid IDNA"));
    }
    if ends_in_number(name) {
        return Err(Malformed(
            "a name does not end in a number, and an IPv4 address is four decimal numbers",
        ));
    }
    Ok(())
}

/// Whether a resolver of the C library or a browser may take the name for an IPv4 address: 127.1, 0x7f000001.
/// As in <https://url.spec.whatwg.org/#ends-in-a-number-checker>, where 0x alone is a number as well.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex =
        last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hex || last.bytes().all(|byte| byte.is_ascii_digit())
}

impl Host {
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        presentable(text)?;
        if let Some(rest) = text.strip_prefix('[') {
            let inner =
                rest.strip_suffix(']').ok_or(Malformed("a bracket is not closed, or not at the end"))?;
            let address: Ipv6Addr =
                inner.parse().map_err(|_| Malformed("there is no IPv6 address in the brackets"))?;
            return Ok(Self::of(address.into()));
        }
        if text.contains(':') {
            return Err(Malformed("an IPv6 address stands in brackets, and no other host has a colon"));
        }
        match text.parse::<Ipv4Addr>() {
            Ok(address) => Ok(Self::of(address.into())),
            Err(_) => Name::parse(text).map(Self::Name),
        }
    }

    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl Destination {
    pub(crate) fn parse(authority: &str) -> Result<Self, Malformed> {
        presentable(authority)?;
        let (host, port) = split(authority).ok_or(Malformed("a port is missing, as in example.com:443"))?;
        let host = Host::parse(host)?;
        let port = port_of(port).ok_or(Malformed("a port is a number from 1 to 65535"))?;
        Ok(Self { host, port })
    }
}

/// Host and port as they stand in the text. No port: none of the colons is outside of brackets.
pub(crate) fn split(authority: &str) -> Option<(&str, &str)> {
    authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'))
}

pub(crate) fn port_of(text: &str) -> Option<u16> {
    // The parser of std takes `+80`.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port != 0)
}

/// Refuses what has a meaning of its own to somebody on the way, each with its own words.
pub(crate) fn presentable(text: &str) -> Result<(), Malformed> {
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

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
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

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
