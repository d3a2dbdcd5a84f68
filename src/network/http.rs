//! HTTP/1.1 on the proxy port: CONNECT, and requests in absolute form. It answers a refusal with an
//! explanation in plain text.

use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::network::dial;
use crate::network::dial::Dialled;
use crate::network::forward::{Body, Forwarded, KeptConnection, host_and_port};
use crate::network::metered::{ClientTraffic, Watched};
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::stream::Stream;
use crate::policy::network::destination::Destination;
use crate::policy::network::settings::AllowListOwner;
use crate::report::denial::ADD_TO_MANIFEST;
use crate::sys::locked;

/// An accepted CONNECT, or an `Upgrade` that the server took: what to relay once the answer has been sent.
type Tunnel = Mutex<Option<(OnUpgrade, Dialled)>>;

/// Serves one HTTP connection to its end.
pub(crate) async fn serve(proxy: Arc<Proxy>, stream: Stream) {
    let limits = &proxy.gate.settings().limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(limits.header_size)
        .half_close(true);
    let tunnel = Arc::new(Tunnel::default());
    let kept = Arc::new(tokio::sync::Mutex::new(KeptConnection::default()));
    let service = service_fn(|request| {
        let (proxy, tunnel, kept) = (Arc::clone(&proxy), Arc::clone(&tunnel), Arc::clone(&kept));
        async move { Ok::<_, hyper::Error>(answer(&proxy, request, &tunnel, &kept).await) }
    });
    let watch = Arc::new(ClientTraffic::new());
    let stream = Watched::new(stream, Arc::clone(&watch));
    let mut over = pin!(watch.is_over(stream.as_raw_fd(), limits.idle_time));
    // Boxed, so that a tunnel does not carry the state of an HTTP connection.
    let mut serving = Box::pin(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let mut is_draining = false;
    let served = loop {
        tokio::select! {
            served = &mut serving => break served,
            () = &mut over => return,
            // A client may keep a connection for its next request.
            () = proxy.relays.closing(), if !is_draining => {
                is_draining = true;
                if proxy.relays.is_draining() {
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    };
    drop(serving);
    drop(kept);
    if let Err(error) = served {
        tracing::debug!(%error, "connection to the proxy");
        // hyper has answered what it does not take for a request.
        if error.is_parse() {
            let reason = match error.is_parse_too_large() {
                true => "the head of the request is too long",
                false => "it is not a request of HTTP/1.1",
            };
            return proxy.record(&ProxyRefusal::request("", Reason::Malformed(reason))).await;
        }
    }
    let taken = locked(&tunnel).take();
    if let Some((upgrade, dialled)) = taken {
        begin(&proxy, upgrade, dialled).await;
    }
}

/// Relays the bytes after the answer.
async fn begin(proxy: &Proxy, upgrade: OnUpgrade, dialled: Dialled) {
    let Ok(upgraded) = upgrade.await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<Watched>>() else { return };
    dialled.relay(proxy, parts.io.into_inner().into_inner(), parts.read_buf).await;
}

async fn answer(
    proxy: &Arc<Proxy>,
    mut request: Request<Incoming>,
    tunnel: &Tunnel,
    kept: &tokio::sync::Mutex<KeptConnection>,
) -> Response<Body> {
    if request.method() != Method::CONNECT && proxy.gate.settings().connect_only {
        let reason = Reason::Method("only CONNECT is served");
        let refusal = ProxyRefusal::request(host_and_port(request.uri()), reason);
        return explain(proxy, &proxy.recorded(refusal).await);
    }
    if request.method() != Method::CONNECT {
        let upgrade = hyper::upgrade::on(&mut request);
        let forwarded = kept.lock().await.forward(proxy, request).await;
        return match forwarded {
            Ok(Forwarded { response, switched }) => {
                *locked(tunnel) = switched.map(|switched| (upgrade, switched));
                response
            }
            Err(refusal) => explain(proxy, &refusal),
        };
    }
    match connect(proxy, &request).await {
        Ok(dialled) => {
            let upgrade = hyper::upgrade::on(&mut request);
            *locked(tunnel) = Some((upgrade, dialled));
            let mut response = Response::new(text(String::new()));
            response.extensions_mut().insert(ReasonPhrase::from_static(b"Connection established"));
            response
        }
        Err(refusal) => explain(proxy, &refusal),
    }
}

async fn connect(proxy: &Arc<Proxy>, request: &Request<Incoming>) -> Result<Dialled, ProxyRefusal> {
    let destination = match request.body().is_end_stream() {
        true => destination(request.uri()),
        // Content would be taken for bytes of the tunnel (RFC 9110, 9.3.6).
        false => Err(malformed(request.uri(), "a CONNECT request must not have content")),
    };
    match destination {
        Ok(destination) => dial::connect(proxy, destination).await,
        Err(refusal) => Err(proxy.recorded(refusal).await),
    }
}

/// The target of a CONNECT: a host and a port, nothing else (RFC 9112, 3.2.3).
fn destination(uri: &Uri) -> Result<Destination, ProxyRefusal> {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if uri.scheme().is_some() || uri.path_and_query().is_some() {
        return Err(malformed(uri, "the target of CONNECT is a host and a port, not a URL"));
    }
    Destination::parse(authority).map_err(|malformed| ProxyRefusal::malformed(host_and_port(uri), &malformed))
}

fn malformed(target: &Uri, what: &'static str) -> ProxyRefusal {
    ProxyRefusal::request(host_and_port(target), Reason::Malformed(what))
}

/// An HTTP answer for a refusal: the destination, the reason, and the setting that would allow it.
pub(crate) fn explain(proxy: &Proxy, refusal: &ProxyRefusal) -> Response<Body> {
    let mut words = format!("kennel: {}: {refusal}\n", refusal.subject);
    if matches!(refusal.reason, Reason::NotAllowed) {
        let allow = &proxy.gate.settings().allow;
        let listed = if allow.is_empty() { "nothing".to_owned() } else { allow.to_string() };
        words.push_str(&format!("kennel: the allow list is: {listed}\n"));
    }
    let is_of_policy = proxy.gate.settings().decides == AllowListOwner::Policy;
    if !is_of_policy && refusal.could_be_listed() {
        words.push_str(&format!("kennel: to allow it, {ADD_TO_MANIFEST}\n"));
    }
    if let Some(setting) = refusal.setting().filter(|_| is_of_policy) {
        let setting = proxy.gate.settings().wording.of(&[setting]);
        words.push_str(&format!("kennel: to allow it, run the sandbox with: {setting}\n"));
    }
    if let Some(preset) = refusal.preset().filter(|_| is_of_policy) {
        words.push_str(&format!(
            "kennel: the rule {} has it, and the hosts that belong to it\n",
            preset.word()
        ));
    }
    let mut response = Response::new(text(words));
    *response.status_mut() = refusal.status();
    let headers = response.headers_mut();
    let name = if refusal.is_denial() { "x-kennel-deny" } else { "x-kennel-error" };
    headers.insert(name, HeaderValue::from_static(refusal.word()));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if refusal.status() == StatusCode::METHOD_NOT_ALLOWED {
        let served = match proxy.gate.settings().connect_only {
            true => "CONNECT",
            false => "CONNECT, GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
        };
        headers.insert(header::ALLOW, HeaderValue::from_static(served));
    }
    response
}

fn text(words: String) -> Body {
    Full::new(Bytes::from(words)).map_err(|never| match never {}).boxed_unsync()
}
