//! Listeners of the proxy: accepts connections within the limits, and answers SOCKS5, DNS and transparent
//! connections.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::network::dns::DnsAnswer;
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::stream::{ProxyListener, Stream};
use crate::network::{dial, dns, http};
use crate::policy::network::destination::{Destination, DestinationHost, DnsName};
use crate::sys;

/// How long to wait after a failed accept(2), for example when the embedding program has no descriptor left.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Accepts connections on a listener and runs `serve` for each, as a task that ends with the listener's task.
pub(crate) fn accept<S: Future<Output = ()> + Send + 'static>(
    proxy: Arc<Proxy>,
    listener: Arc<ProxyListener>,
    serve: fn(Arc<Proxy>, Stream) -> S,
) -> io::Result<JoinHandle<()>> {
    let listener = sys::watched(listener, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Some((stream, slot)) =
            next_or_closing(&mut connections, next(&proxy, &listener), &proxy).await
        {
            let proxy = Arc::clone(&proxy);
            connections.spawn(async move {
                serve(proxy, stream).await;
                drop(slot);
            });
        }
        if proxy.relays.is_draining() {
            // Or clients would wait for an answer that never comes.
            let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
        while connections.join_next().await.is_some() {}
    }))
}

/// Waits for the next connection and reaps tasks that have ended. `None` once the proxy closes.
async fn next_or_closing<T>(
    connections: &mut JoinSet<()>,
    next: impl Future<Output = Option<T>>,
    proxy: &Proxy,
) -> Option<T> {
    let mut next = pin!(next);
    loop {
        tokio::select! {
            // Accept every connection that was made before the proxy closes.
            biased;
            Some(_) = connections.join_next() => {}
            next = &mut next => return next,
            () = proxy.relays.closing() => return None,
        }
    }
}

/// The next connection, once a slot is free. An idle listener takes no slot.
async fn next(
    proxy: &Proxy,
    listener: &AsyncFd<Arc<ProxyListener>>,
) -> Option<(Stream, OwnedSemaphorePermit)> {
    let accept = |listener: &Arc<ProxyListener>| {
        let stream = sys::accept(listener.as_fd())?;
        Ok(match **listener {
            ProxyListener::Tcp(_) => Stream::Tcp(TcpStream::from_std(stream.into())?),
            ProxyListener::Unix(_) => Stream::Unix(UnixStream::from_std(stream.into())?),
        })
    };
    let stream = loop {
        match listener.async_io(Interest::READABLE, accept).await {
            Ok(stream) => break stream,
            Err(error) => {
                tracing::debug!(%error, "accept");
                sleep(RETRY_DELAY).await;
            }
        }
    };
    if let Stream::Tcp(stream) = &stream {
        // Requests and answers are small, and a program waits for each.
        let _ = stream.set_nodelay(true);
    }
    let slot = Arc::clone(&proxy.slots).acquire_owned().await.ok()?;
    Some((stream, slot))
}

/// Serves one connection to the proxy port. Its first byte tells the protocol.
pub(crate) async fn serve(proxy: Arc<Proxy>, stream: Stream) {
    let settings = proxy.gate.settings();
    match timeout(settings.limits.header_time, stream.first_byte()).await {
        Ok(Ok(Some(5))) if !settings.connect_only => serve_socks(proxy, stream).await,
        Ok(Ok(Some(_))) => http::serve(proxy, stream).await,
        // The client sent nothing.
        _ => {}
    }
}

// SOCKS5 (RFC 1928) on the proxy port: CONNECT to a name or an address. No UDP, no BIND, no authentication.

/// The bound address in a SOCKS5 reply. The proxy does not reveal its own.
const UNSPECIFIED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one SOCKS5 connection to its end.
pub(crate) async fn serve_socks(proxy: Arc<Proxy>, stream: Stream) {
    let greeting = async {
        let protocol = Socks5ServerProtocol::accept_no_auth(stream).await?;
        protocol.read_command().await
    };
    let time = proxy.gate.settings().limits.header_time;
    let (protocol, command, target) = match timeout(time, greeting).await {
        Ok(Ok(asked)) => asked,
        // The library has already answered, as far as the protocol has an answer.
        Ok(Err(error)) if !error.source().is_some_and(|cause| cause.is::<io::Error>()) => {
            let reason = Reason::Malformed("the request is not SOCKS5 without authentication");
            return proxy.record(&ProxyRefusal::request("", reason)).await;
        }
        // The client is gone or too slow.
        _ => return,
    };
    let reached = match destination(command, &target) {
        Ok(destination) => dial::connect(&proxy, destination).await,
        Err(refusal) => Err(proxy.recorded(refusal).await),
    };
    match reached {
        Ok(dialled) => {
            let Ok(stream) = protocol.reply_success(UNSPECIFIED).await else { return };
            dialled.relay(&proxy, stream, Bytes::new()).await;
        }
        // The client may already be gone.
        Err(refusal) => drop(protocol.reply_error(&reply(&refusal)).await),
    }
}

fn destination(command: Socks5Command, target: &TargetAddr) -> Result<Destination, ProxyRefusal> {
    let subject = target.to_string();
    if command != Socks5Command::TCPConnect {
        return Err(ProxyRefusal::request(
            &subject,
            Reason::Method("only CONNECT of SOCKS5 is served, no UDP"),
        ));
    }
    let (host, port) = match target {
        TargetAddr::Ip(at) => (Ok(DestinationHost::of(at.ip())), at.port()),
        TargetAddr::Domain(name, port) => (DestinationHost::parse(name), *port),
    };
    match host {
        Ok(_) if port == 0 => Err(ProxyRefusal::request(&subject, Reason::Malformed("0 is not a port"))),
        Ok(host) => Ok(Destination { host, port }),
        Err(malformed) => Err(ProxyRefusal::malformed(&subject, &malformed)),
    }
}

/// The SOCKS5 reply code that fits a refusal best.
fn reply(refusal: &ProxyRefusal) -> ReplyError {
    match refusal.reason {
        Reason::NotAllowed
        | Reason::NotServed
        | Reason::Denied(_)
        | Reason::AddressBlocked(..)
        | Reason::Limit
        | Reason::Unrecorded => ReplyError::ConnectionNotAllowed,
        Reason::Method(_) => ReplyError::CommandNotSupported,
        Reason::Malformed(_) => ReplyError::GeneralFailure,
        Reason::Unreachable(..) => ReplyError::HostUnreachable,
        Reason::Timeout(_) => ReplyError::TtlExpired,
    }
}

// Programs without proxy support. The DNS stub answers names with loopback addresses. A connection to such an
// address becomes a connection to the name, after the same checks as any other.

/// Larger than any query of a resolver.
const MAX_QUERY: usize = 4096;

/// Answers DNS queries on a UDP socket of the sandbox.
pub(crate) fn answer_names(proxy: Arc<Proxy>, socket: Arc<UdpSocket>) -> io::Result<JoinHandle<()>> {
    let socket = sys::watched(socket, Interest::READABLE)?;
    Ok(tokio::spawn(async move {
        let mut question = [0; MAX_QUERY];
        loop {
            let received = tokio::select! {
                received = socket.async_io(Interest::READABLE, |socket| socket.recv_from(&mut question)) => received,
                () = proxy.relays.closing() => return,
            };
            // ICMP errors of earlier answers arrive here; they do not matter.
            let Ok((count, from)) = received else { continue };
            let asked = question.get(..count).unwrap_or_default();
            let mut refusal = None;
            let answer = dns::answer(asked, |name| lookup(&proxy, name, &mut refusal));
            // A client that asks too often gets no answer, and does not delay queries for allowed names.
            if refusal.is_some_and(|refusal| !proxy.may_answer_refusal(&refusal)) {
                continue;
            }
            if let Some(answer) = answer {
                // A client that does not read its answers asks again.
                let _ = socket.get_ref().send_to(&answer, from);
            }
        }
    }))
}

fn lookup(proxy: &Proxy, name: &DnsName, refusal: &mut Option<ProxyRefusal>) -> DnsAnswer {
    if let Err(why) = proxy.gate.check_name(name) {
        *refusal = Some(why);
        return DnsAnswer::NoSuchName;
    }
    proxy.names.address_of(name).map_or(DnsAnswer::Busy, DnsAnswer::Address)
}

/// Serves a connection to an address that the DNS stub gave out, or to loopback at a port of the host's
/// loopback.
pub(crate) async fn serve_transparently(proxy: Arc<Proxy>, stream: Stream) {
    let asked = match &stream {
        Stream::Tcp(stream) => stream.local_addr().ok(),
        Stream::Unix(_) => None,
    };
    let destination = asked.and_then(|asked| proxy.destination_at(asked));
    // Any other loopback address has no server: answer like a closed port.
    let Some(destination) = destination else { return stream.resets(true) };
    match dial::connect(&proxy, destination).await {
        Ok(dialled) => dialled.relay(&proxy, stream, Bytes::new()).await,
        Err(_) => stream.resets(true),
    }
}
