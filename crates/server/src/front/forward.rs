//! Passing requests on to a host, and answers back: streamed, with upgrades.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::upgrade::on;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tower_service::Service;

use crate::front::hosts::Hosts;
use crate::wire::StateDirectory;
use crate::wire::failure::Failure;

/// How long a connection to a host is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// Bytes of a stream that its reader may be behind, of those that have left the host.
const WINDOW: u32 = 128 << 10;

/// Bytes of all streams together: as many as the protocol can say.
const ALL_WINDOWS: u32 = (1 << 31) - 1;

/// Asks hosts. The authority of a URI is the number of the host.
pub(crate) type HostClient = Client<HostConnector, Body>;

pub(crate) fn client(state: StateDirectory) -> HostClient {
    builder().build(HostConnector(state))
}

/// For streams of events: all share one connection to a host, so that an open one costs little. Large files
/// are quicker with a connection of their own.
pub(crate) fn stream_client(state: StateDirectory) -> HostClient {
    let mut builder = builder();
    builder.http2_only(true).http2_initial_stream_window_size(WINDOW);
    // Slow readers must not stop others.
    builder.http2_initial_connection_window_size(ALL_WINDOWS);
    builder.build(HostConnector(state))
}

fn builder() -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).pool_idle_timeout(IDLE).set_host(false);
    builder
}

/// Connects to the socket of a host.
#[derive(Clone)]
pub(crate) struct HostConnector(StateDirectory);

impl Service<Uri> for HostConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().and_then(|host| host.parse().ok());
        let path = host.map(|host| self.0.host_socket(host));
        Box::pin(async move {
            let path = path.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            UnixStream::connect(path).await.map(TokioIo::new)
        })
    }
}

/// Passes a request on, and both directions after an upgrade.
pub(crate) async fn forward(
    hosts: &Hosts,
    host: u8,
    mut request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let is_upgrade = request.headers().contains_key(UPGRADE);
    let of_client = is_upgrade.then(|| on(&mut request));
    // Whether a connection stays is a matter of each side.
    request.headers_mut().remove(CONNECTION);
    if is_upgrade {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let mut response = hosts.ask(host, request).await?;
    match (response.status(), of_client) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(of_client)) => {
            let of_host = on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(host)) = tokio::join!(of_client, of_host) else { return };
                // An end of either side is the end of both.
                let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(host)).await;
            });
        }
        _ => {
            response.headers_mut().remove(CONNECTION);
        }
    }
    Ok(response.map(Body::new))
}
