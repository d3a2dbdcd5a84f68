//! Connections to a server: TCP, TLS and Unix sockets. Speaks no HTTP.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::error::Error;

/// How long a connection may take, with its TLS.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Clone)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(String, u16),
    Tls(String, u16, Arc<ClientConfig>),
}

impl Address {
    /// Reads `http+unix:///PATH`, `http://HOST:PORT` or `https://HOST:PORT`. Returns it with what URIs of
    /// requests begin with.
    pub(crate) fn parse(url: &str) -> Result<(Self, String), Error> {
        const EXPECTED: &str = "expected http+unix:///PATH, http://HOST:PORT or https://HOST:PORT";
        let wrong = || Error::invalid(url, EXPECTED);
        if let Some(path) = url.strip_prefix("http+unix://") {
            let is_path = path.starts_with('/') && path.len() > 1;
            let address = is_path.then(|| Self::Unix(path.into())).ok_or_else(wrong)?;
            return Ok((address, "http://localhost".to_owned()));
        }
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.filter(|_| uri.query().is_none()).ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16();
        let address = match uri.scheme_str() {
            Some("http") => Self::Tcp(host, port.unwrap_or(80)),
            Some("https") => Self::Tls(host, port.unwrap_or(443), tls(&[])?),
            _ => return Err(wrong()),
        };
        Ok((address, url.trim_end_matches('/').to_owned()))
    }

    /// Trusts these authorities, too.
    pub(crate) fn trust(&mut self, pem: &[u8]) -> Result<(), Error> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let found = found.ok().filter(|found| !found.is_empty());
        let found = found.ok_or_else(|| Error::invalid("certificates", "no certificate in PEM form"))?;
        if let Self::Tls(_, _, config) = self {
            *config = tls(&found)?;
        }
        Ok(())
    }

    async fn connect(self) -> io::Result<Box<dyn Io>> {
        match self {
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Tcp(host, port) => Ok(Box::new(tcp(&host, port).await?)),
            Self::Tls(host, port, config) => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
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
    Ok(stream)
}

/// The settings of TLS: the system's authorities, and further ones.
fn tls(further: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    // A file that cannot be read leaves out what is in it: its servers are then not trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots.add_parsable_certificates(further.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|_| Error::invalid("TLS", "no version of it is there"))?;
    Ok(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
}

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
    fn an_address_is_a_socket_or_a_host_and_a_port() {
        let of = |url| match Address::parse(url) {
            Ok((Address::Unix(path), base)) => format!("{} {base}", path.display()),
            Ok((Address::Tcp(host, port) | Address::Tls(host, port, _), base)) => {
                format!("{host} {port} {base}")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(of("http+unix:///run/a b.socket"), "/run/a b.socket http://localhost");
        assert_eq!(of("http://[::1]:4000/"), "::1 4000 http://[::1]:4000");
        assert_eq!(of("https://k.test/prefix/"), "k.test 443 https://k.test/prefix");
        for bad in ["", "k.test", "ftp://k.test", "http+unix://a", "http+unix:///", "http://u:p@k.test"] {
            assert!(of(bad).contains("expected http+unix"), "{bad}");
        }
    }
}
