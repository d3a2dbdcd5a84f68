//! Which addresses do not belong to the public internet, and how networks are written. The rules decide
//! whether the proxy may connect to such an address.
//!
//! The tables follow IANA's registries of special-purpose addresses (RFC 6890 and its updates), as of 2025:
//! <https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>, and the two registries of address space for
//! multicast, reserved and deprecated blocks. The tables leave out blocks that IANA calls globally reachable
//! (AS112, AMT), with two exceptions: blocks within protocol assignments, and blocks that embed another
//! address, because a translator on the way extracts it. Nothing here can know translators with an operator's
//! own prefix (RFC 6052).

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// Special ranges of IPv4. The first range that contains an address gives the word for it.
const SPECIAL_V4: &[(Ipv4Net, &str)] = &[
    // Metadata services of clouds: they hand out credentials. Azure's 168.63.129.16 is outside every special
    // range.
    (v4([169, 254, 169, 254], 32), "cloud metadata"),
    (v4([169, 254, 170, 2], 32), "cloud metadata"), // AWS, containers
    (v4([100, 100, 100, 200], 32), "cloud metadata"), // Alibaba
    (v4([192, 0, 0, 192], 32), "cloud metadata"),   // Oracle
    (v4([168, 63, 129, 16], 32), "cloud metadata"), // Azure
    (v4([0, 0, 0, 0], 32), "unspecified"),
    (v4([0, 0, 0, 0], 8), "this network"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared (CGNAT)"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "protocol assignments"),
    (v4([192, 0, 2, 0], 24), "documentation"),
    (v4([192, 88, 99, 0], 24), "6to4"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "benchmarking"),
    (v4([198, 51, 100, 0], 24), "documentation"),
    (v4([203, 0, 113, 0], 24), "documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([255, 255, 255, 255], 32), "broadcast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// Special ranges of IPv6, in the same form.
const SPECIAL_V6: &[(Ipv6Net, &str)] = &[
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), "cloud metadata"), // AWS
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "cloud metadata"),  // Google
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "NAT64"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discard-only"),
    (v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64), "dummy"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), "benchmarking"),
    (v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28), "ORCHID"),
    (v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28), "ORCHID"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "protocol assignments"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "segment routing"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique-local"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

/// `::a.b.c.d`: deprecated by RFC 4291, but some network stacks still extract the IPv4 address.
const IPV4_COMPATIBLE: Ipv6Net = v6([0, 0, 0, 0, 0, 0, 0, 0], 96);

/// The block that IANA allocates public addresses from. Everything else is reserved, even if no table names
/// it.
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const fn v4(address: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = address;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(address: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = address;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// The name of the special range that contains the address. `None`: a public address.
pub(crate) fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    SPECIAL_V4.iter().find(|(range, _)| range.contains(&address)).map(|&(_, words)| words)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(&(_, words)) = SPECIAL_V6.iter().find(|(range, _)| range.contains(&address)) {
        return Some(words);
    }
    let [.., e, f, g, h] = address.segments();
    if IPV4_COMPATIBLE.contains(&address) {
        let [a, b] = g.to_be_bytes();
        let [c, d] = h.to_be_bytes();
        return special_v4(Ipv4Addr::new(a, b, c, d)).or(Some("IPv4-compatible"));
    }
    // An ISATAP interface identifier contains an IPv4 address (RFC 5214, section 6.1); two bits of its prefix
    // vary.
    if e & 0xfcff == 0 && f == 0x5efe {
        return Some("ISATAP");
    }
    if GLOBAL_UNICAST.contains(&address) { None } else { Some("reserved") }
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NetworkError {
    #[error("neither an address nor a network, such as 10.0.0.0/8 or fd00::/8")]
    Address,
    #[error("the prefix of a network is a number, at most 32 for IPv4 and at most 128 for IPv6")]
    Prefix,
    #[error("the address has bits beyond the prefix; the network is {0}")]
    Beyond(IpNet),
}

/// Parses a list of networks.
///
/// # Errors
/// The index of the first text that is not a network, and the reason.
pub(crate) fn networks<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<IpNet>, (usize, String)> {
    let numbered = texts.into_iter().enumerate();
    numbered.map(|(index, text)| network(text).map_err(|error| (index, error.to_string()))).collect()
}

/// Parses a network, or an address as a network of one. IPv6 has no brackets here.
pub(crate) fn network(text: &str) -> Result<IpNet, NetworkError> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
    let Some(prefix) = prefix else { return Ok(address.to_canonical().into()) };
    // `str::parse` also accepts `+8`.
    let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|_| digits).ok_or(NetworkError::Prefix)?;
    let network = IpNet::new(address, prefix).map_err(|_| NetworkError::Prefix)?;
    if network.addr() != network.network() {
        return Err(NetworkError::Beyond(canonical(network.trunc())));
    }
    Ok(canonical(network))
}

/// Turns a network of IPv4-mapped IPv6 addresses into an IPv4 network, as `IpAddr::to_canonical` does with
/// addresses.
fn canonical(network: IpNet) -> IpNet {
    let IpAddr::V4(address) = network.addr().to_canonical() else { return network };
    let prefix = network.prefix_len().saturating_sub(network.max_prefix_len() - 32);
    Ipv4Net::new(address, prefix).map_or(network, IpNet::V4)
}
