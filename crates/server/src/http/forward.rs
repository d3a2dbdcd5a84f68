//! Passing requests on, and answers back: streamed, with upgrades.

use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::on;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;

use crate::http::listen::Place;
use crate::wire::failure::Failure;

/// How long a connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// Of clients that ask hosts or workers. The name of the host stays what it was: it may name a sandbox.
pub(crate) fn client_builder() -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).pool_idle_timeout(IDLE).set_host(false);
    builder
}

/// Passes a request on to whom `ask` asks, and both directions after an upgrade.
pub(crate) async fn forward<F, A>(mut request: Request<Body>, ask: A) -> Result<Response<Body>, Failure>
where
    A: FnOnce(Request<Body>) -> F,
    F: Future<Output = Result<Response<Incoming>, Failure>>,
{
    let is_upgrade = request.headers().contains_key(UPGRADE);
    let of_client = is_upgrade.then(|| on(&mut request));
    let place = request.extensions_mut().remove::<Place>();
    // Whether a connection stays is a matter of each side.
    request.headers_mut().remove(CONNECTION);
    if is_upgrade {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let mut response = ask(request).await?;
    match (response.status(), of_client) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(of_client)) => {
            let of_server = on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(server)) = tokio::join!(of_client, of_server) else { return };
                // An end of either side is the end of both.
                let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
                drop(place);
            });
        }
        _ => {
            response.headers_mut().remove(CONNECTION);
        }
    }
    Ok(response.map(Body::new))
}

/// The path and the query of a request at another authority.
pub(crate) fn at(authority: &str, uri: &Uri) -> Result<Uri, Failure> {
    // `*` and the authority of CONNECT are no paths.
    let path = uri.path_and_query().map(|path| path.as_str());
    let path = path.filter(|path| path.starts_with('/')).unwrap_or("/");
    let uri = format!("http://{authority}{path}").parse();
    uri.map_err(|error| Failure::bad(format!("the path: {error}")))
}
