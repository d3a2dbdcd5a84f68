//! Connections to hosts: HTTP/1.1, and HTTP/2 for streams of events.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tower_service::Service;

use crate::http::forward::client_builder;
use crate::wire::StateDirectory;

/// Bytes of a stream that its reader may be behind, of those that have left the host.
const WINDOW: u32 = 128 << 10;

/// Bytes of all streams together: as many as the protocol can say.
const ALL_WINDOWS: u32 = (1 << 31) - 1;

/// Asks hosts. The authority of a URI is the number of the host.
pub(crate) type HostClient = Client<HostConnector, Body>;

pub(crate) fn client(state: StateDirectory) -> HostClient {
    client_builder().build(HostConnector(state))
}

/// For streams of events: all share one connection to a host, so that an open one costs little. Large files
/// are quicker with a connection of their own.
pub(crate) fn stream_client(state: StateDirectory) -> HostClient {
    let mut builder = client_builder();
    builder.http2_only(true).http2_initial_stream_window_size(WINDOW);
    // Slow readers must not stop others.
    builder.http2_initial_connection_window_size(ALL_WINDOWS);
    builder.build(HostConnector(state))
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
