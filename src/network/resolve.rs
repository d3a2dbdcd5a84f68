//! Resolves names by the hosts file and by the name servers of the system or the policy. Knows the addresses
//! of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use hickory_proto::ProtoError;
use hickory_proto::rr::Name;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use nix::ifaddrs::getifaddrs;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

use crate::policy::network::destination::DnsName;
use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::sys::locked;

/// The time limit for one name.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Concurrent lookups; more have to wait.
const MAX_CONCURRENT: usize = 64;

/// Why a name does not lead to a host.
pub(crate) const NO_ADDRESS: &str = "its name does not resolve: it has no address";

/// The name server on this host, the default of resolv.conf(5). Even if none runs there, the hosts file is
/// read.
const LOCAL_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

/// Resolves names. It reads the configuration of the system at the first lookup.
pub(crate) struct Resolver {
    name_servers: Vec<SocketAddr>,
    resolver: OnceCell<TokioResolver>,
    slots: Semaphore,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("name_servers", &self.name_servers).finish_non_exhaustive()
    }
}

impl Resolver {
    pub(crate) fn new(name_servers: Vec<SocketAddr>) -> Self {
        Self { name_servers, resolver: OnceCell::new(), slots: Semaphore::new(MAX_CONCURRENT) }
    }

    /// Every address of a name.
    ///
    /// # Errors
    /// `TimedOut`, or the reason why there is no address.
    pub(crate) async fn resolve(&self, name: &DnsName) -> io::Result<Vec<IpAddr>> {
        let look_up = async {
            let _slot = self.slots.acquire().await;
            let resolver = self.resolver.get_or_try_init(|| async { self.build() }).await?;
            let dns_name = dns_name(name).map_err(io::Error::other)?;
            let found = resolver.lookup_ip(dns_name).await.map_err(|error| lookup_error(&error))?;
            Ok(found.iter().collect())
        };
        timeout(TIME_LIMIT, look_up).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn build(&self) -> io::Result<TokioResolver> {
        let named = match &*self.name_servers {
            [] if names_no_server(Path::new("/etc/resolv.conf")) => &[LOCAL_SERVER],
            named => named,
        };
        let builder = if named.is_empty() {
            TokioResolver::builder_tokio().map_err(io::Error::other)?
        } else {
            let servers = named.iter().map(name_server).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        builder.build().map_err(io::Error::other)
    }
}

/// Converts a name label by label. The text parser of the library rejects underscores and leading hyphens.
fn dns_name(name: &DnsName) -> Result<Name, ProtoError> {
    let text = name.as_str();
    let mut dns_name = Name::from_labels(text.split('.').map(str::as_bytes))?;
    // A fully qualified name gets no search domain.
    dns_name.set_fqdn(text.contains('.'));
    Ok(dns_name)
}

/// Whether a resolv.conf(5) file names no server or does not exist.
fn names_no_server(path: &Path) -> bool {
    match fs::read(path) {
        Ok(text) => {
            !text.split(|byte| *byte == b'\n').any(|line| line.trim_ascii().starts_with(b"nameserver"))
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn name_server(at: &SocketAddr) -> NameServerConfig {
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    connections.iter_mut().for_each(|connection| connection.port = at.port());
    NameServerConfig::new(at.ip(), true, connections)
}

fn lookup_error(error: &NetError) -> io::Error {
    if matches!(error, NetError::Timeout) {
        return io::ErrorKind::TimedOut.into();
    }
    if error.is_nx_domain() || error.is_no_records_found() {
        return io::Error::new(io::ErrorKind::NotFound, NO_ADDRESS);
    }
    io::Error::other(format!("resolving its name: {}", failure::words(error)))
}

// The addresses of this host. Its services may trust local connections, so the proxy must not connect to them
// unasked.

/// How long the list of addresses stays valid.
const MAX_AGE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Interfaces(Mutex<Option<(Instant, Vec<IpAddr>)>>);

impl Interfaces {
    /// Whether an address belongs to this host: an interface has it, or a local route leads to it. `true` if
    /// the kernel does not say.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.is_listed(address) || is_routed_here(address)
    }

    fn is_listed(&self, address: IpAddr) -> bool {
        let mut seen = locked(&self.0);
        let is_fresh = seen.as_ref().is_some_and(|(at, _)| at.elapsed() < MAX_AGE);
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

/// Whether the kernel would send from that address itself, or from loopback. Routes of the type `local` cover
/// more addresses than the interfaces have. It sends no packet.
fn is_routed_here(address: IpAddr) -> bool {
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
        // Without a route there is no connection either. A shortage may be over by then, so the address
        // counts as local.
        Err(error) => error.raw_os_error().is_some_and(is_shortage),
    }
}

#[cfg(test)]
mod interfaces_tests {
    use super::*;

    #[test]
    fn loopback_is_ours_and_the_rest_of_the_world_is_not() {
        let interfaces = Interfaces::default();
        assert!(interfaces.contains(Ipv4Addr::LOCALHOST.into()));
        assert!(interfaces.contains([127, 3, 2, 1].into()), "a route has it, and no interface");
        assert!(!interfaces.contains([192, 0, 2, 1].into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name_server_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("resolv.conf");
        assert!(names_no_server(&path), "it is not there");
        for (text, expected) in [
            ("", true),
            ("# nameserver 192.0.2.1\nsearch example.org\n", true),
            ("search example.org\n  nameserver 192.0.2.1", false),
        ] {
            fs::write(&path, text).expect("a file");
            assert_eq!(names_no_server(&path), expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn the_hosts_file_is_read_where_no_server_answers() {
        let resolver = Resolver::new(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9)]);
        let name = DnsName::parse("localhost").expect("a name");
        assert!(resolver.resolve(&name).await.expect("known").iter().all(IpAddr::is_loopback));
    }
}
