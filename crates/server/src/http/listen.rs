//! Connections of clients: accepted, counted, bounded in time, and with TLS where it is configured.

use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::Problem;
use crate::wire::headers::{OWNER, TO_PORT, TO_SANDBOX};
use crate::wire::rest::SharedBody;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);

/// The pause after a failed accept: without descriptors, some will be free again.
const AGAIN: Duration = Duration::from_millis(50);

/// Where a certificate and its key are, in PEM.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// Reads `ADDRESS:PORT` or `unix:PATH`, whose PATH begins in a directory.
    pub(crate) fn parse(text: &str, directory: &Path) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(directory.join(path)));
        }
        let address = text.parse().map_err(|_| format!("{text:?}: ADDRESS:PORT or unix:PATH is expected"))?;
        Ok(Self::Tcp(address))
    }

    /// The address, if it can be reached from other machines.
    pub(crate) fn beyond_this_machine(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) if !address.ip().is_loopback() => Some(*address),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }
}

/// What answers requests.
pub(crate) trait Answer: Send + Sync + 'static {
    /// The answer to a request, without headers that only a front may send.
    fn answer(self: Arc<Self>, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

/// The place of a connection among those that there may be. Requests have it as an extension, so that it
/// stays taken after an upgrade.
#[derive(Clone)]
pub(crate) struct Place(#[expect(dead_code, reason = "it is dropped")] Arc<OwnedSemaphorePermit>);

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
    pub(crate) async fn bind(
        listen: &Listen,
        tls: Option<&TlsFiles>,
        connections: usize,
    ) -> Result<Self, Problem> {
        let tls = tls.map(acceptor).transpose()?;
        let socket = match listen {
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
    pub(crate) async fn serve(self, answer: Arc<impl Answer>) {
        let (_stop, stopped) = watch::channel(false);
        self.serve_until(answer, stopped).await;
    }

    /// Serves until it is told to stop. Then no connection is accepted, each ends with the request that it
    /// has, and this ends with the last of them.
    pub(crate) async fn serve_until(self, answer: Arc<impl Answer>, mut stopped: watch::Receiver<bool>) {
        let free = Arc::new(Semaphore::new(self.connections));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                _ = stopped.wait_for(|is_stopped| *is_stopped) => break,
            };
            let Ok(stream) = accepted else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let Ok(place) = Arc::clone(&free).try_acquire_owned() else { continue };
            let connection = Connection {
                answer: Arc::clone(&answer),
                place: Place(Arc::new(place)),
                stopped: stopped.clone(),
            };
            // Tasks of their own, as one for all would have the size of that with TLS.
            match (stream, self.tls.clone()) {
                (Accepted::Unix(stream), _) => tokio::spawn(connection.serve(stream)),
                (Accepted::Tcp(stream), None) => tokio::spawn(connection.serve(stream)),
                (Accepted::Tcp(stream), Some(tls)) => tokio::spawn(async move {
                    if let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await {
                        connection.serve(stream).await;
                    }
                }),
            };
        }
        let connections = self.connections;
        drop(self);
        // Others find out at once that nobody listens.
        let all = u32::try_from(connections).unwrap_or(u32::MAX);
        let _ = free.acquire_many(all).await;
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(socket, _) => {
                let (stream, _) = socket.accept().await?;
                // Else every other answer waits 40 ms for an acknowledgement.
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Tcp(stream))
            }
            Socket::Unix(socket, _) => socket.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
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
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

/// One connection of a client.
struct Connection<A> {
    answer: Arc<A>,
    place: Place,
    stopped: watch::Receiver<bool>,
}

impl<A: Answer> Connection<A> {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { answer, place, mut stopped } = self;
        let answer = service_fn(move |request: Request<Incoming>| {
            let (answer, place) = (Arc::clone(&answer), place.clone());
            async move {
                let mut request = request.map(Body::new);
                for ours in [OWNER, TO_PORT, TO_SANDBOX] {
                    request.headers_mut().remove(ours);
                }
                request.extensions_mut().insert(place);
                let rest = SharedBody::of(&mut request);
                let response = answer.answer(request).await;
                SharedBody::drop_rest_of(rest);
                Ok::<_, Infallible>(response)
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answer).with_upgrades());
        // A client that goes away, or speaks something else, is no event.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
