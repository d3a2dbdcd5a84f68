//! Forwards HTTP requests in absolute form. It parses each message and writes a new one, so the origin reads
//! exactly the request that was checked.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::upgrade::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use crate::network::dial;
use crate::network::dial::Dialled;
use crate::network::gate::{Permit, Route};
use crate::network::metered::Metered;
use crate::network::proxy::{ConnectionRecord, Proxy};
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::stream::{Limited, ReadLimit, Stream};
use crate::network::upgrade::Offer;
use crate::policy::network::destination::Destination;
use crate::report::failure;
use crate::report::network_failure::NetworkCause;

/// The body of an answer: text of the proxy, or bytes of an origin.
pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Hop-by-hop headers, which are not forwarded (RFC 9110, 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
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

/// An answer to pass on, and the connection behind it if the server switched protocols.
pub(crate) struct Forwarded {
    pub(crate) response: Response<Body>,
    pub(crate) switched: Option<Dialled>,
}

/// The connection to an origin that a client connection keeps for its next request.
#[derive(Default)]
pub(crate) struct KeptConnection {
    origin: Option<Origin>,
}

struct Origin {
    destination: Destination,
    sender: SendRequest<Incoming>,
    next_hop: NextHop,
    /// Limits how much the origin may send before the head of its answer is complete.
    limit: ReadLimit,
    /// The connection task; it ends with this value.
    _driver: JoinSet<()>,
}

/// The server at the end of the connection.
enum NextHop {
    Origin,
    /// The upstream proxy, with the credentials for it.
    Proxy {
        authorization: Option<HeaderValue>,
    },
}

impl NextHop {
    fn of(route: &Route) -> Self {
        let Route::Upstream(upstream) = route else { return Self::Origin };
        let value = upstream.authorization.as_deref();
        Self::Proxy { authorization: value.and_then(|value| HeaderValue::from_str(value).ok()) }
    }

    fn is_proxy(&self) -> bool {
        matches!(self, Self::Proxy { .. })
    }
}

impl KeptConnection {
    /// Forwards one request.
    pub(crate) async fn forward(
        &mut self,
        proxy: &Arc<Proxy>,
        mut request: Request<Incoming>,
    ) -> Result<Forwarded, ProxyRefusal> {
        let destination = match destination(&request) {
            Ok(destination) => destination,
            Err(refusal) => return Err(proxy.recorded(refusal).await),
        };
        // Each request is decided anew: the embedding program may have denied the destination meanwhile.
        let permit = dial::permit(proxy, destination).await?;
        let destination = &permit.destination;
        let offer = Offer::of(&request);
        let mut is_new = false;
        loop {
            let mut origin = match self.reusable(destination).await.filter(|_| offer.is_none()) {
                Some(origin) => origin,
                None => {
                    is_new = true;
                    Origin::connect(proxy, &permit, offer.is_some()).await?
                }
            };
            rewrite(&mut request, destination, &origin.next_hop);
            if let Some(offer) = &offer {
                offer.write_to(request.headers_mut());
            }
            let limits = &proxy.gate.settings().limits;
            origin.limit.set(limits.header_size * 4);
            let answer = origin.sender.try_send_request(request).await;
            origin.limit.remove();
            match answer {
                Ok(mut response) => {
                    if let Some(reason) = reason_not_to_forward(&response, &origin.next_hop) {
                        return Err(proxy.recorded(ProxyRefusal::of(destination, reason)).await);
                    }
                    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                        let switched = origin.switch(response, offer.as_ref()).await;
                        let refused = |reason| ProxyRefusal::of(destination, reason);
                        return match switched.map_err(refused) {
                            Ok(forwarded) => Ok(forwarded),
                            Err(refusal) => Err(proxy.recorded(refusal).await),
                        };
                    }
                    self.origin = Some(origin);
                    strip_hop_by_hop(response.headers_mut());
                    return Ok(Forwarded { response: response.map(BodyExt::boxed_unsync), switched: None });
                }
                Err(mut error) => match error.take_message() {
                    // The origin has closed the kept connection, and nothing of the request was sent.
                    Some(unsent) if !is_new => request = unsent,
                    _ => {
                        let error = error.into_error();
                        let reason = if error.is_user() {
                            Reason::Malformed("the body of the request is malformed or incomplete")
                        } else {
                            unanswered(&error)
                        };
                        return Err(proxy.recorded(ProxyRefusal::of(destination, reason)).await);
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
    /// `switches`: the connection may become one of another protocol. An upstream proxy must not be a party
    /// of that: it would take what follows as requests of its own.
    async fn connect(proxy: &Arc<Proxy>, permit: &Permit, switches: bool) -> Result<Self, ProxyRefusal> {
        let destination = permit.destination.clone();
        let (stream, record, next_hop) = match &permit.route {
            Route::Upstream(_) if switches => match dial::through(proxy, permit).await? {
                Dialled { stream: Stream::Tcp(stream), early, record, .. } if early.is_empty() => {
                    (stream, record, NextHop::Origin)
                }
                _ => {
                    let words = "it spoke before the request".to_owned();
                    let reason = Reason::Unreachable(NetworkCause::Broken, words);
                    return Err(proxy.recorded(ProxyRefusal::of(&destination, reason)).await);
                }
            },
            route => {
                let (stream, address) = dial::first_hop(proxy, permit).await?;
                let record = ConnectionRecord::new(proxy, &destination, address, permit.by.word());
                (stream, record, NextHop::of(route))
            }
        };
        let metered = Metered::new(stream, Arc::clone(proxy), record);
        let limits = &proxy.gate.settings().limits;
        let mut builder = http1::Builder::new();
        let limit = ReadLimit::default();
        let stream = TokioIo::new(Limited::new(metered, limit.clone()));
        let handshake = builder.max_buf_size(limits.header_size).handshake(stream).await;
        let (sender, connection) = match handshake {
            Ok(both) => both,
            Err(error) => {
                let reason = Reason::Unreachable(NetworkCause::Broken, failure::words(&error));
                return Err(proxy.recorded(ProxyRefusal::of(&destination, reason)).await);
            }
        };
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to an origin");
            }
        });
        Ok(Self { destination, sender, next_hop, limit, _driver: driver })
    }

    /// Takes the connection out of HTTP, after an answer that switches to a protocol of the offer. hyper
    /// hands it over once the request is sent to its end, with the bytes that followed the answer.
    async fn switch(
        self,
        mut response: Response<Incoming>,
        offer: Option<&Offer>,
    ) -> Result<Forwarded, Reason> {
        let broken = |words: &str| Reason::Unreachable(NetworkCause::Broken, words.to_owned());
        let Some(offer) = offer else { return Err(broken("it switched protocols without a request to")) };
        let taken = offer.taken(response.headers());
        let taken = taken.ok_or_else(|| broken("it switched to a protocol that was not asked for"))?;
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(|error| unanswered(&error))?;
        let parts = upgraded.downcast::<TokioIo<Limited<Metered>>>();
        let Parts { io, read_buf, .. } = parts.map_err(|_| broken("unexpected stream type"))?;
        let (stream, record) = io.into_inner().into_inner().into_parts();
        strip_hop_by_hop(response.headers_mut());
        taken.write_to(response.headers_mut());
        let switched = Dialled { stream: Stream::Tcp(stream), early: read_buf, is_counted: true, record };
        Ok(Forwarded { response: response.map(BodyExt::boxed_unsync), switched: Some(switched) })
    }
}

/// Why there is no answer. `Metered` ends a silent connection; a long upload is no timeout.
fn unanswered(error: &hyper::Error) -> Reason {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Reason::Timeout("its answer"),
        _ => Reason::Unreachable(NetworkCause::Broken, failure::words(error)),
    }
}

/// Why an answer must not be forwarded.
fn reason_not_to_forward(response: &Response<Incoming>, next_hop: &NextHop) -> Option<Reason> {
    match response.status() {
        // The upstream proxy asks for credentials. If the client saw this, it would send its own.
        StatusCode::PROXY_AUTHENTICATION_REQUIRED if next_hop.is_proxy() => {
            let words = format!("the upstream proxy answered {}", response.status());
            Some(Reason::Unreachable(NetworkCause::Upstream, words))
        }
        _ => None,
    }
}

/// The destination of a request. Its Host header is ignored (RFC 9112, 3.2.2).
fn destination(request: &Request<Incoming>) -> Result<Destination, ProxyRefusal> {
    let uri = request.uri();
    let refuse = |reason| Err(ProxyRefusal::request(host_and_port(uri), reason));
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
            "only http:// is forwarded in absolute form; use CONNECT for other schemes",
        ));
    }
    if !has_one_framing(request.headers()) {
        return refuse(Reason::Malformed("the only supported transfer encoding is chunked, once"));
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let with_port = if has_port(authority) { authority.to_owned() } else { format!("{authority}:80") };
    Destination::parse(&with_port)
        .map_err(|malformed| ProxyRefusal::malformed(host_and_port(uri), &malformed))
}

/// The host and port of a target, for messages. Credentials, path and query stay out.
pub(crate) fn host_and_port(uri: &Uri) -> &str {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Whether every hop finds the same end of the body. hyper removes only the outer encoding; a server that
/// looks at another one would read the rest as a second request (request smuggling).
fn has_one_framing(headers: &HeaderMap) -> bool {
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
fn rewrite(request: &mut Request<Incoming>, destination: &Destination, next_hop: &NextHop) {
    strip_hop_by_hop(request.headers_mut());
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
    (parts.scheme, parts.authority) = match next_hop {
        NextHop::Proxy { .. } => (Some(Scheme::HTTP), Authority::try_from(authority).ok()),
        NextHop::Origin => (None, None),
    };
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    if let NextHop::Proxy { authorization: Some(value) } = next_hop {
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, value.clone());
    }
}

/// Removes hop-by-hop headers.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
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
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}
