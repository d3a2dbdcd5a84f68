//! Names to addresses: the hosts file, then the system's name servers, or those that the policy names. Judges nothing.

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use hickory_proto::{ProtoError, rr::Name as Asked};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::{NetError, runtime::TokioRuntimeProvider},
};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::timeout,
};

use super::destination::Name;
use crate::failure;

/// All questions about one name together.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names that are looked up at the same time; more wait.
const AT_ONCE: usize = 64;

/// resolv.conf(5): where none is named, the name server is that of the machine itself. It need not have one; the hosts file
/// is read all the same.
const OWN_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

/// Looks names up. It reads the system's configuration with the first name.
pub(super) struct Resolver {
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
    pub(super) fn new(name_servers: Vec<SocketAddr>) -> Self {
        Self { name_servers, resolver: OnceCell::new(), slots: Semaphore::new(AT_ONCE) }
    }

    /// Every address of a name.
    ///
    /// # Errors
    /// `TimedOut`, or why there is none.
    pub(super) async fn resolve(&self, name: &Name) -> io::Result<Vec<IpAddr>> {
        let look_up = async {
            let _slot = self.slots.acquire().await;
            let resolver = self.resolver.get_or_try_init(|| async { self.build() }).await?;
            let asked = asked(name).map_err(io::Error::other)?;
            let found = resolver.lookup_ip(asked).await.map_err(|error| explained(&error))?;
            Ok(found.iter().collect())
        };
        timeout(PATIENCE, look_up).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn build(&self) -> io::Result<TokioResolver> {
        let named = match &*self.name_servers {
            [] if names_no_server(Path::new("/etc/resolv.conf")) => &[OWN_SERVER],
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

/// A name as the library has it, label by label: out of a text it takes none with an underscore or a hyphen at its begin.
fn asked(name: &Name) -> Result<Asked, ProtoError> {
    let text = name.as_str();
    let mut asked = Asked::from_labels(text.split('.').map(str::as_bytes))?;
    // To a name of several labels no search domain is appended.
    asked.set_fqdn(text.contains('.'));
    Ok(asked)
}

/// Whether a file as resolv.conf(5) names no server, or is not there.
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

fn explained(error: &NetError) -> io::Error {
    if matches!(error, NetError::Timeout) {
        return io::ErrorKind::TimedOut.into();
    }
    if error.is_nx_domain() || error.is_no_records_found() {
        return io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    }
    io::Error::other(format!("looking its name up: {}", failure::words(error)))
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
        let name = Name::parse("localhost").expect("a name");
        assert!(resolver.resolve(&name).await.expect("known").iter().all(IpAddr::is_loopback));
    }
}
