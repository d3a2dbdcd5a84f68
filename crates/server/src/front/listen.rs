//! Connections of clients: accepted, counted, bounded in time, and with TLS where it is configured.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::Problem;
use crate::config::{Config, Listen, TlsFiles};
use crate::front::Front;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);

/// The pause after a failed accept: without descriptors, some will be free again.
const AGAIN: Duration = Duration::from_millis(50);

/// A socket that clients connect to.
pub(crate) struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
    connections: usize,
}

enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(crate) async fn bind(config: &Config) -> Result<Self, Problem> {
        let connections = config.connections;
        let tls = config.tls.as_ref().map(acceptor).transpose()?;
        let socket = match &config.listen {
            Listen::Tcp(address) => {
                let bound = TcpListener::bind(address)
                    .await
                    .map_err(Problem::about(format!("listen at {address}")))?;
                let address = bound.local_addr().map_err(Problem::about("the address"))?;
                Socket::Tcp(bound, address)
            }
            Listen::Unix(path) => {
                let about = || format!("listen at {}", path.display());
                remove_stale(path).map_err(Problem::about(about()))?;
                let bound = UnixListener::bind(path).map_err(Problem::about(about()))?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))
                    .map_err(Problem::about(about()))?;
                Socket::Unix(bound, path.clone())
            }
        };
        Ok(Self { socket, tls, connections })
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        match &self.socket {
            Socket::Tcp(_, address) if self.tls.is_some() => format!("https://{address}"),
            Socket::Tcp(_, address) => format!("http://{address}"),
            Socket::Unix(_, path) => format!("http+unix://{}", path.display()),
        }
    }

    /// Serves for ever. More connections than there may be are closed at once.
    pub(crate) async fn serve(self, front: Arc<Front>) {
        let free = Arc::new(Semaphore::new(self.connections));
        loop {
            let accepted = match &self.socket {
                Socket::Tcp(socket, _) => socket.accept().await.map(|(stream, _)| {
                    // Else every other answer waits 40 ms for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    Accepted::Tcp(stream)
                }),
                Socket::Unix(socket, _) => socket.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
            };
            let Ok(stream) = accepted else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let Ok(place) = Arc::clone(&free).try_acquire_owned() else { continue };
            let (front, tls) = (Arc::clone(&front), self.tls.clone());
            tokio::spawn(async move {
                match (stream, tls) {
                    (Accepted::Unix(stream), _) => connection(stream, front).await,
                    (Accepted::Tcp(stream), None) => connection(stream, front).await,
                    (Accepted::Tcp(stream), Some(tls)) => {
                        if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
                            connection(stream, front).await;
                        }
                    }
                }
                drop(place);
            });
        }
    }
}

enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// What speaks TLS with clients. Without HTTP/2: clients speak HTTP/1.1 as well, and hosts speak only that.
fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, Problem> {
    let TlsFiles { certificate, key } = files;
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(Problem::about(certificate.display()))?;
    let found = PrivateKeyDer::from_pem_file(key).map_err(Problem::about(key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(chain, found));
    let mut config = config.map_err(Problem::about(certificate.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &std::path::Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, front: Arc<Front>) {
    let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(request.map(Body::new)).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // A client that goes away, or speaks something else, is no event.
    let _ = http.serve_connection(TokioIo::new(stream), answer).with_upgrades().await;
}
