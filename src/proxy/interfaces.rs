//! The addresses of this host: what listens there trusts who comes from here.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::ifaddrs::getifaddrs;

/// How long they are taken for what they were.
const FRESH: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Interfaces(Mutex<Option<(Instant, Vec<IpAddr>)>>);

impl Interfaces {
    /// Whether an interface of this host has the address. Where nobody can tell, it has.
    pub(super) fn have(&self, address: IpAddr) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_ours_and_the_rest_of_the_world_is_not() {
        let interfaces = Interfaces::default();
        assert!(interfaces.have(std::net::Ipv4Addr::LOCALHOST.into()));
        assert!(!interfaces.have([192, 0, 2, 1].into()));
    }
}
