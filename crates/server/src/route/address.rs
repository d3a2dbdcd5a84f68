//! Addresses of workers: as they are written, and connections to them. Speaks no HTTP.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service;

/// How long a connection may take, with its TLS.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where one worker is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(String, u16),
    Tls(String, u16),
    Unix(PathBuf),
}

/// Where workers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    One(Address),
    /// At all addresses of a name.
    Name(String, u16),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "http://HOST:PORT, https://HOST:PORT, unix:PATH or dns+http://NAME:PORT is expected";
        let wrong = || format!("{text:?}: {EXPECTED}");
        // The second form is that in which a server greets.
        if let Some(path) = text.strip_prefix("http+unix://").or_else(|| text.strip_prefix("unix:")) {
            let path = std::path::absolute(path).map_err(|_| wrong())?;
            return Ok(Self::One(Address::Unix(path)));
        }
        let (scheme, place) = text.split_once("://").ok_or_else(wrong)?;
        let (host, port) = place.trim_end_matches('/').rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(wrong());
        }
        let host = host.to_owned();
        match scheme {
            "http" => Ok(Self::One(Address::Tcp(host, port))),
            "https" => Ok(Self::One(Address::Tls(host, port))),
            "dns+http" => Ok(Self::Name(host, port)),
            _ => Err(wrong()),
        }
    }
}

impl Source {
    /// The addresses as of now, in the same order in every process.
    ///
    /// # Errors
    /// The name has none, or nobody says so in time.
    pub(crate) async fn addresses(&self) -> io::Result<Vec<Address>> {
        let (name, port) = match self {
            Self::One(address) => return Ok(vec![address.clone()]),
            Self::Name(name, port) => (name, *port),
        };
        let found = timeout(PATIENCE, lookup_host((name.as_str(), port))).await??;
        let mut addresses: Vec<_> = found.map(|found| Address::Tcp(found.ip().to_string(), port)).collect();
        addresses.sort();
        addresses.dedup();
        Ok(addresses)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "dns+http://{name}:{port}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "http://{host}:{port}"),
            Self::Tls(host, port) => write!(f, "https://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    async fn connect(self) -> io::Result<Box<dyn Io>> {
        match self {
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Tcp(host, port) => Ok(Box::new(tcp(&host, port).await?)),
            Self::Tls(host, port) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let config = TLS.clone().ok_or_else(|| io::Error::other("no version of TLS is there"))?;
                let stream = tcp(&host, port).await?;
                Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Else every other request waits 40 ms for an acknowledgement.
    stream.set_nodelay(true)?;
    // A machine that has lost its power says nothing any more.
    setsockopt(&stream, KeepAlive, &true)?;
    setsockopt(&stream, TcpKeepIdle, &15)?;
    setsockopt(&stream, TcpKeepInterval, &5)?;
    setsockopt(&stream, TcpKeepCount, &3)?;
    Ok(stream)
}

/// The authorities that the system trusts, or those of `SSL_CERT_FILE`.
static TLS: LazyLock<Option<Arc<ClientConfig>>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    // A file that cannot be read leaves out what is in it: its workers are then not trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    Some(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
});

/// Connects for hyper.
#[derive(Clone)]
pub(crate) struct Connector(pub(crate) Address);

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let address = self.0.clone();
        Box::pin(async move { Ok(TokioIo::new(timeout(PATIENCE, address.connect()).await??)) })
    }
}

/// A stream of any kind.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Connection for Box<dyn Io> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_at_hosts_sockets_and_names() {
        let read = |text: &str| match text.parse::<Source>() {
            Ok(Source::One(address)) => address.to_string(),
            Ok(Source::Name(name, port)) => format!("name {name} {port}"),
            Err(error) => error,
        };
        for same in ["http://a.test:80", "https://a:8443", "http://[::1]:80", "unix:/run/a b"] {
            assert_eq!(read(same), same);
        }
        assert_eq!(read("http://a:80/"), "http://a:80");
        assert_eq!(read("http+unix:///run/a"), "unix:/run/a");
        assert_eq!(read("dns+http://kennel:49983"), "name kennel 49983");
        for bad in
            ["", "a:80", "http://a", "http://u:p@a:80", "http://a:80/x", "ftp://a:80", "http://:80", "unix:"]
        {
            assert!(read(bad).contains("is expected"), "{bad}: {}", read(bad));
        }
    }

    #[tokio::test]
    async fn a_name_has_all_its_addresses() {
        let source: Source = "dns+http://localhost:1".parse().expect("good");
        let found = source.addresses().await.expect("there");
        assert!(found.contains(&Address::Tcp("127.0.0.1".to_owned(), 1)), "{found:?}");
        let source: Source = "dns+http://no-such-name.invalid:1".parse().expect("good");
        source.addresses().await.expect_err("not there");
    }
}
