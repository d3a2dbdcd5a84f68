//! The addresses of this host: what listens there trusts who comes from here.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::ifaddrs::getifaddrs;

use crate::{host::remedy::is_shortage, locked::locked};

/// How long they are taken for what they were.
const FRESH: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Interfaces(Mutex<Option<(Instant, Vec<IpAddr>)>>);

impl Interfaces {
    /// Whether the address is this host's: an interface has it, or a route keeps it here. Where nobody can tell, it is.
    pub(super) fn have(&self, address: IpAddr) -> bool {
        self.list(address) || stays_here(address)
    }

    fn list(&self, address: IpAddr) -> bool {
        let mut seen = locked(&self.0);
        let is_fresh = seen.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH);
        if !is_fresh {
            let Ok(interfaces) = getifaddrs() else { return true };
            let addresses = interfaces.filter_map(|interface| {
                let address = interface.address?;
                let four = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
                four.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
            });
            *seen = Some((Instant::now(), addresses.collect()));
        }
        seen.as_ref().is_some_and(|(_, addresses)| addresses.contains(&address))
    }
}

/// Whether who sends to that address sends from it, or from loopback: routes of the type `local` keep more here than interfaces
/// list. Nothing is sent.
fn stays_here(address: IpAddr) -> bool {
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let sent_from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    match sent_from {
        Ok(from) => from.ip() == address || from.ip().is_loopback(),
        // Nor can a connection be made, but where there may be room again in a moment.
        Err(error) => error.raw_os_error().is_some_and(is_shortage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_ours_and_the_rest_of_the_world_is_not() {
        let interfaces = Interfaces::default();
        assert!(interfaces.have(Ipv4Addr::LOCALHOST.into()));
        assert!(interfaces.have([127, 3, 2, 1].into()), "a route has it, and no interface");
        assert!(!interfaces.have([192, 0, 2, 1].into()));
    }
}
