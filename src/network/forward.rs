//! Forwards HTTP requests in absolute form. It parses each message and writes a new one, so the origin reads
//! exactly the request that was checked.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::network::dial;
use crate::network::gate::Route;
use crate::network::http::{Body, noted, shown};
use crate::network::metered::{Metered, Passage};
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::stream::{Allowance, Bounded};
use crate::policy::destination::Destination;
use crate::report::failure;

/// Hop-by-hop headers, which are not forwarded (RFC 9110, 7.6.1), besides those that `Connection` names.
const OF_ONE_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    // A proxy on the way may answer OPTIONS because of it, with information meant only for the proxy.
    header::MAX_FORWARDS,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The connection to an origin that a client connection keeps for its next request.
#[derive(Default)]
pub(crate) struct KeptConnection {
    origin: Option<Origin>,
}

struct Origin {
    destination: Destination,
    sender: SendRequest<Incoming>,
    /// If it leads to another proxy: the credentials for it.
    through: Option<Option<HeaderValue>>,
    /// Limits how much the origin may send before the head of its answer is complete.
    allowance: Allowance,
    /// The connection task; it ends with this value.
    _driver: JoinSet<()>,
}

impl KeptConnection {
    /// Forwards one request.
    pub(crate) async fn forward(
        &mut self,
        proxy: &Arc<Proxy>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, ProxyRefusal> {
        let destination = match destination(&request) {
            Ok(destination) => destination,
            Err(refusal) => return Err(noted(proxy, refusal).await),
        };
        // Each request is decided anew: the embedding program may have denied the destination meanwhile.
        let permit = dial::permit(proxy, destination).await?;
        let destination = &permit.destination;
        let mut is_new = false;
        loop {
            let mut origin = match self.reusable(destination).await {
                Some(origin) => origin,
                None => {
                    is_new = true;
                    Origin::connect(proxy, &permit).await?
                }
            };
            rewrite(&mut request, destination, origin.through.as_ref());
            let limits = &proxy.gate.settings().limits;
            origin.allowance.grant(limits.header_size * 4);
            let answer = origin.sender.try_send_request(request).await;
            origin.allowance.lift();
            match answer {
                Ok(mut response) => {
                    if let Some(reason) = not_for_the_client(&response, origin.through.is_some()) {
                        return Err(noted(proxy, ProxyRefusal::of(destination, reason)).await);
                    }
                    self.origin = Some(origin);
                    strip(response.headers_mut());
                    return Ok(response.map(BodyExt::boxed_unsync));
                }
                Err(mut error) => match error.take_message() {
                    // The origin has closed the kept connection, and nothing of the request was sent.
                    Some(unsent) if !is_new => request = unsent,
                    _ => {
                        let error = error.into_error();
                        let reason = match error.is_user() {
                            true => Reason::Malformed("the body of the request is malformed or breaks off"),
                            false => unanswered(&error),
                        };
                        return Err(noted(proxy, ProxyRefusal::of(destination, reason)).await);
                    }
                },
            }
        }
    }

    /// The kept connection, if it leads to the same origin and is still open.
    async fn reusable(&mut self, destination: &Destination) -> Option<Origin> {
        let mut origin = self.origin.take().filter(|origin| origin.destination == *destination)?;
        origin.sender.ready().await.is_ok().then_some(origin)
    }
}

impl Origin {
    async fn connect(
        proxy: &Arc<Proxy>,
        permit: &crate::network::gate::Permit,
    ) -> Result<Self, ProxyRefusal> {
        let (stream, address) = dial::first_hop(proxy, permit).await?;
        let destination = permit.destination.clone();
        let passage = Passage::new(proxy, &destination, address, permit.by.word());
        let metered = Metered::new(stream, Arc::clone(proxy), passage);
        let limits = &proxy.gate.settings().limits;
        let mut builder = http1::Builder::new();
        let allowance = Allowance::default();
        let stream = TokioIo::new(Bounded::new(metered, allowance.clone()));
        let handshake = builder.max_buf_size(limits.header_size).handshake(stream).await;
        let (sender, connection) = match handshake {
            Ok(both) => both,
            Err(error) => {
                let reason = Reason::Unreachable(failure::words(&error));
                return Err(noted(proxy, ProxyRefusal::of(&destination, reason)).await);
            }
        };
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to an origin");
            }
        });
        let through = match &permit.route {
            Route::Upstream(upstream) => {
                let value = upstream.authorization.as_deref();
                Some(value.and_then(|value| HeaderValue::from_str(value).ok()))
            }
            _ => None,
        };
        Ok(Self { destination, sender, through, allowance, _driver: driver })
    }
}

/// Why there is no answer. `Metered` ends a silent connection; a long upload is no timeout.
fn unanswered(error: &hyper::Error) -> Reason {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Reason::Timeout("its answer"),
        _ => Reason::Unreachable(failure::words(error)),
    }
}

/// Why an answer must not be forwarded.
fn not_for_the_client(response: &Response<Incoming>, through: bool) -> Option<Reason> {
    match response.status() {
        // The upstream proxy asks for credentials. If the client saw this, it would send its own.
        StatusCode::PROXY_AUTHENTICATION_REQUIRED if through => {
            Some(Reason::Unreachable(format!("the proxy before it answered {}", response.status())))
        }
        // The request had no `Upgrade` header, because that is hop-by-hop.
        StatusCode::SWITCHING_PROTOCOLS => {
            Some(Reason::Unreachable("it switched protocols unasked".to_owned()))
        }
        _ => None,
    }
}

/// The destination of a request. Its Host header is ignored (RFC 9112, 3.2.2).
fn destination(request: &Request<Incoming>) -> Result<Destination, ProxyRefusal> {
    let uri = request.uri();
    let refuse = |reason| Err(ProxyRefusal::request(shown(uri), reason));
    if request.method() == Method::TRACE {
        return refuse(Reason::Method("method TRACE is not served"));
    }
    if uri.scheme().is_none() {
        return refuse(Reason::Malformed(
            "this is a proxy: write the request in absolute form, or use CONNECT",
        ));
    }
    if uri.scheme() != Some(&Scheme::HTTP) {
        return refuse(Reason::Malformed(
            "only http:// is passed on in absolute form; use CONNECT for others",
        ));
    }
    if !is_framed_plainly(request.headers()) {
        return refuse(Reason::Malformed("the only transfer encoding that is passed on is chunked, once"));
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let with_port = if has_port(authority) { authority.to_owned() } else { format!("{authority}:80") };
    Destination::parse(&with_port).map_err(|malformed| ProxyRefusal::malformed(shown(uri), &malformed))
}

/// Whether every hop finds the same end of the body. hyper removes only the outer encoding; a server that looks
/// at another one would read the rest as a second request (request smuggling).
fn is_framed_plainly(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => true,
        (Some(only), None) => only.as_bytes().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    }
}

/// Whether a port follows the host, which may be an IPv6 address in brackets.
fn has_port(authority: &str) -> bool {
    authority.rsplit_once(']').map_or(authority, |(_, rest)| rest).contains(':')
}

/// Rewrites a request for its origin: sets target and Host, and removes headers meant for the proxy.
fn rewrite(
    request: &mut Request<Incoming>,
    destination: &Destination,
    through: Option<&Option<HeaderValue>>,
) {
    strip(request.headers_mut());
    let authority = match destination.port {
        80 => destination.host.to_string(),
        _ => destination.to_string(),
    };
    if let Ok(host) = HeaderValue::from_str(&authority) {
        request.headers_mut().insert(header::HOST, host);
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    // If a fragment follows the host directly, the path is empty and would be written as such.
    let path = parts.path_and_query.take().and_then(|path| PathAndQuery::try_from(path.as_str()).ok());
    let path = path.unwrap_or(PathAndQuery::from_static("/"));
    parts.path_and_query = Some(path);
    (parts.scheme, parts.authority) = match through {
        Some(_) => (Some(Scheme::HTTP), Authority::try_from(authority).ok()),
        None => (None, None),
    };
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    if let Some(Some(value)) = through {
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, value.clone());
    }
}

/// Removes hop-by-hop headers.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // hyper needs these to frame the message.
        .filter(|name| {
            *name != header::CONTENT_LENGTH && *name != header::TRANSFER_ENCODING && *name != header::HOST
        })
        .collect();
    for name in named.iter().chain(&OF_ONE_HOP) {
        headers.remove(name);
    }
}
