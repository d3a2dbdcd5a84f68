//! Listeners to connections: as many at once as the limits say, each a task that ends with the listener's.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::network::dns::Answer;
use crate::network::http::noted;
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::stream::Stream;
use crate::network::{dial, dns, http, relay};
use crate::policy::destination::{Destination, Host, Name};

/// Where the embedding program has no descriptor left: how long to leave it alone.
const BREATH: Duration = Duration::from_millis(50);

/// Accepts on a listener of the sandbox's and has each connection served.
pub(crate) fn accept<S: Future<Output = ()> + Send + 'static>(
    proxy: Arc<Proxy>,
    socket: OwnedFd,
    serve: fn(Arc<Proxy>, TcpStream) -> S,
) -> io::Result<JoinHandle<()>> {
    let listener = StdListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Some((stream, slot)) = meanwhile(&mut connections, next(&proxy, &listener), &proxy).await {
            let proxy = Arc::clone(&proxy);
            connections.spawn(async move {
                serve(proxy, stream).await;
                drop(slot);
            });
        }
        while connections.join_next().await.is_some() {}
    }))
}

/// Waits for the next connection, and takes away those that have ended; `None` when there shall be no more.
async fn meanwhile<T>(
    connections: &mut JoinSet<()>,
    next: impl Future<Output = Option<T>>,
    proxy: &Proxy,
) -> Option<T> {
    let mut next = pin!(next);
    loop {
        tokio::select! {
            // Who has connected before the end is served.
            biased;
            Some(_) = connections.join_next() => {}
            next = &mut next => return next,
            () = proxy.closing() => return None,
        }
    }
}

/// The next connection, once there is room for one more. A listener that nobody connects to takes no room.
async fn next(proxy: &Proxy, listener: &TcpListener) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let stream = loop {
        match listener.accept().await {
            Ok((stream, _)) => break stream,
            Err(error) => {
                tracing::debug!(%error, "accept");
                sleep(BREATH).await;
            }
        }
    };
    // Requests and answers are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    let slot = Arc::clone(&proxy.slots).acquire_owned().await.ok()?;
    Some((stream, slot))
}

/// Serves one connection of the proxy's own port, in the protocol that its first byte begins.
pub(crate) async fn serve(proxy: Arc<Proxy>, stream: TcpStream) {
    let mut first = [0];
    let time = proxy.gate.settings().limits.header_time;
    match timeout(time, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first == [5] => serve_socks(proxy, stream).await,
        Ok(Ok(1)) => http::serve(proxy, stream).await,
        // It said nothing.
        _ => {}
    }
}

// SOCKS5 of the proxy's port: CONNECT to a name or an address. No UDP, no BIND, no credentials.

/// What a client is told of the address that its connection has: nothing.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one connection to its end.
pub(crate) async fn serve_socks(proxy: Arc<Proxy>, stream: TcpStream) {
    let greeting = async {
        let protocol = Socks5ServerProtocol::accept_no_auth(stream).await?;
        protocol.read_command().await
    };
    let time = proxy.gate.settings().limits.header_time;
    // What is no request was answered already, as far as the protocol has an answer.
    let Ok(Ok((protocol, command, target))) = timeout(time, greeting).await else { return };
    let reached = match destination(command, &target) {
        Ok(destination) => dial::reach(&proxy, destination).await,
        Err(refusal) => Err(noted(&proxy, refusal).await),
    };
    match reached {
        Ok(dialled) => {
            let Ok(stream) = protocol.reply_success(NOWHERE).await else { return };
            relay::relay(&proxy, Stream::Tcp(stream), Bytes::new(), dialled).await;
        }
        // Nobody may be left to hear it.
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
        TargetAddr::Ip(at) => (Ok(Host::of(at.ip())), at.port()),
        TargetAddr::Domain(name, port) => (Host::parse(name), *port),
    };
    match host {
        Ok(_) if port == 0 => Err(ProxyRefusal::request(&subject, Reason::Malformed("0 is not a port"))),
        Ok(host) => Ok(Destination { host, port }),
        Err(malformed) => Err(ProxyRefusal::malformed(&subject, &malformed)),
    }
}

/// The nearest of the protocol's few words.
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
        Reason::Unreachable(_) => ReplyError::HostUnreachable,
        Reason::Timeout(_) => ReplyError::TtlExpired,
    }
}

// Programs that know no proxies: names are answered with addresses of our own, and whoever connects to such an address
// gets a connection to the name, after the same checks as everybody.

/// Larger than any question that a resolver asks.
const QUESTION: usize = 4096;

/// Answers questions about names on a UDP socket of the sandbox's.
pub(crate) fn answer_names(proxy: Arc<Proxy>, socket: OwnedFd) -> io::Result<JoinHandle<()>> {
    let socket = StdUdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    Ok(tokio::spawn(async move {
        let mut question = [0; QUESTION];
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut question) => received,
                () = proxy.closing() => return,
            };
            // An error is about an answer that nobody waited for.
            let Ok((count, from)) = received else { continue };
            let asked = question.get(..count).unwrap_or_default();
            let mut refusal = None;
            let answer = dns::answer(asked, |name| look_up(&proxy, name, &mut refusal));
            // Who asks too often hears nothing, and does not hold up who asks for what is allowed.
            if refusal.is_some_and(|refusal| !proxy.refuses(&refusal)) {
                continue;
            }
            if let Some(answer) = answer {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    }))
}

fn look_up(proxy: &Proxy, name: &Name, refusal: &mut Option<ProxyRefusal>) -> Answer {
    if let Err(why) = proxy.gate.may_name(name) {
        *refusal = Some(why);
        return Answer::NoSuchName;
    }
    proxy.names.address_of(name).map_or(Answer::Busy, Answer::Address)
}

/// Serves a connection to one of the addresses that names were answered with.
pub(crate) async fn serve_transparently(proxy: Arc<Proxy>, stream: TcpStream) {
    let asked = stream.local_addr();
    let asked = asked.map(|at| proxy.named(Destination { host: Host::of(at.ip()), port: at.port() }));
    let stream = Stream::Tcp(stream);
    // The sandbox's own loopback has no server where no name is.
    let Ok(destination @ Destination { host: Host::Name(_), .. }) = asked else {
        return stream.resets(true);
    };
    match dial::reach(&proxy, destination).await {
        Ok(dialled) => relay::relay(&proxy, stream, Bytes::new(), dialled).await,
        Err(_) => stream.resets(true),
    }
}
