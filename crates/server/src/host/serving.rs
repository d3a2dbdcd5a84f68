//! Connections of the front: requests for E2B's routes, and for ports of sandboxes.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use nix::unistd::getuid;
use tokio::net::{UnixListener, UnixStream};
use tower_service::Service;

use crate::e2b;
use crate::host::ports;
use crate::sandboxes::Sandboxes;
use crate::v1;
use crate::wire::ENVD_PORT;
use crate::wire::headers::TO_PORT;
use crate::wire::rest::SharedBody;

/// Streams of events at once on one connection of HTTP/2.
const MOST_STREAMS: u32 = 1 << 20;

/// Serves until the runtime ends.
pub(crate) async fn serve(listener: UnixListener, sandboxes: &Arc<Sandboxes>) {
    let routes = e2b::routes().merge(v1::routes()).with_state(Arc::clone(sandboxes));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_ours(&stream) => {
                tokio::spawn(connection(stream, routes.clone(), Arc::clone(sandboxes)));
            }
            // Somebody else, who got past the directory's mode.
            Ok(_) => {}
            // Without descriptors: some will be free again.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == getuid().as_raw())
}

async fn connection(stream: UnixStream, routes: axum::Router, sandboxes: Arc<Sandboxes>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut routes, sandboxes) = (routes.clone(), Arc::clone(&sandboxes));
        async move {
            let mut request = request.map(Body::new);
            let rest = SharedBody::of(&mut request);
            let port =
                request.headers().get(TO_PORT).and_then(|port| port.to_str().ok()?.parse::<u16>().ok());
            let response: Response<Body> = match port.filter(|port| *port != ENVD_PORT) {
                Some(port) => match ports::forward(&sandboxes, port, request).await {
                    Ok(response) => response,
                    Err(failure) => failure.into_response(),
                },
                None => match routes.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                },
            };
            SharedBody::drop_rest_of(rest);
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http2().max_concurrent_streams(MOST_STREAMS);
    // A front that goes away is no event.
    let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), answer).await;
}
