//! Requests for a port of a sandbox: to the server that a command has started there.

use std::io;

use axum::body::Body;
use axum::http::header::{CONNECTION, HOST, ORIGIN, UPGRADE};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::client::conn::http1::handshake;
use hyper::upgrade::on;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::sandboxes::Sandboxes;
use crate::wire::failure::Failure;
use crate::wire::headers::{OWNER, REASON, TO_PORT, TO_SANDBOX};

/// Passes a request on, whatever its method, and both directions after an upgrade.
pub(crate) async fn forward(
    sandboxes: &Sandboxes,
    port: u16,
    mut request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let id = request.headers().get(TO_SANDBOX).and_then(|id| id.to_str().ok()?.parse().ok());
    let sandbox = sandboxes.find(&id.ok_or_else(|| Failure::gone(None))?)?;
    let stream = match sandbox.session()?.connect(port).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(Failure::gone(None)),
        Err(error) => {
            let message = format!("The sandbox is running but port is not open: {port}: {error}");
            return Err(Failure::new(StatusCode::BAD_GATEWAY, message));
        }
    };
    prepare(&mut request, port);
    let upgrade = request.headers().contains_key(UPGRADE).then(|| on(&mut request));
    let broken = |error: hyper::Error| {
        Failure::new(StatusCode::BAD_GATEWAY, format!("The server at port {port} of the sandbox: {error}"))
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection.with_upgrades());
    let mut response = sender.send_request(request).await.map_err(broken)?;
    // Only Kennel says that a sandbox is gone.
    response.headers_mut().remove(REASON);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if let Some(of_client) = upgrade {
            let of_server = on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(server)) = tokio::join!(of_client, of_server) else { return };
                // An end of either side is the end of both.
                let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
            });
        }
    } else {
        // Whether the connection stays is between the front and its client.
        response.headers_mut().remove(CONNECTION);
    }
    Ok(response.map(Body::new))
}

/// What the server in the sandbox is told: a host that every development server accepts, and nothing of ours.
fn prepare(request: &mut Request<Body>, port: u16) {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri = path.parse().unwrap_or(Uri::from_static("/"));
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    for name in [OWNER, TO_PORT, TO_SANDBOX] {
        headers.remove(name);
    }
    let host = format!("localhost:{port}");
    if let Ok(host) = HeaderValue::from_str(&host) {
        headers.insert(HOST, host);
    }
    // A server that compares both finds what it expects of a page of its own.
    if headers.contains_key(ORIGIN)
        && let Ok(origin) = HeaderValue::from_str(&format!("http://{host}"))
    {
        headers.insert(ORIGIN, origin);
    }
    if !headers.contains_key(UPGRADE) {
        headers.remove(CONNECTION);
    }
}
