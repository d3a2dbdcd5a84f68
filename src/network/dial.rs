//! From a permit to a connection: directly to the fastest address (RFC 8305), or through another proxy.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::{Request, Version, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::network::gate::{Permit, Route};
use crate::network::proxy::{ConnectionRecord, Proxy};
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::network::relay::{self, RelayEnd};
use crate::network::stream::{Limited, ReadLimit, Stream};
use crate::policy::network::destination::{Destination, DestinationHost};
use crate::policy::network::upstream::Upstream;
use crate::report::failure;
use crate::report::network_failure::NetworkCause;
use crate::sys::own_path;

/// The time limit for a connection, all attempts together.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// How long one address is tried alone before the next is tried in parallel.
const HEAD_START: Duration = Duration::from_millis(250);

/// How many bytes another proxy may send before its answer is complete.
const MAX_ANSWER: usize = 256 << 10;

/// A connection to a destination.
pub(crate) struct Dialled {
    pub(crate) stream: Stream,
    /// Bytes that came before the relay: behind the answer of another proxy, or of a server that switched
    /// protocols.
    pub(crate) early: Bytes,
    /// Whether `early` is counted already.
    pub(crate) is_counted: bool,
    pub(crate) record: ConnectionRecord,
}

impl Dialled {
    /// Relays between a client and the destination. `early` are bytes that the client has already sent.
    pub(crate) async fn relay(self, proxy: &Proxy, client: Stream, early: Bytes) {
        let Self { stream, early: answer, is_counted, record } = self;
        let inside = RelayEnd { stream: client, early, is_counted: false };
        let outside = RelayEnd { stream, early: answer, is_counted };
        relay::between(&proxy.relays, &record.traffic, inside, outside).await;
    }
}

/// Gets a permit and connects.
///
/// # Errors
/// The refusal. It is already recorded and in the audit log.
pub(crate) async fn connect(proxy: &Arc<Proxy>, destination: Destination) -> Result<Dialled, ProxyRefusal> {
    let permit = permit(proxy, destination).await?;
    through(proxy, &permit).await
}

/// Makes a connection of which nothing but bytes are relayed: an upstream proxy is asked for it with CONNECT.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn through(proxy: &Arc<Proxy>, permit: &Permit) -> Result<Dialled, ProxyRefusal> {
    let reached = match timeout(TIME_LIMIT, tunnel(proxy, permit)).await {
        Ok(reached) => reached,
        Err(_) => Err(ProxyRefusal::of(&permit.destination, Reason::Timeout("connecting"))),
    };
    if let Err(refusal) = &reached {
        proxy.record(refusal).await;
    }
    reached
}

/// Permits one destination.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn permit(proxy: &Arc<Proxy>, destination: Destination) -> Result<Permit, ProxyRefusal> {
    let destination = proxy.with_name(destination);
    let permit = if proxy.relays.meter.is_exhausted() {
        Err(ProxyRefusal::of(&destination, Reason::Limit))
    } else {
        proxy.gate.permit(destination).await.and_then(|permit| {
            proxy.write_begin(&permit.destination, permit.by.word())?;
            Ok(permit)
        })
    };
    if let Err(refusal) = &permit {
        proxy.record(refusal).await;
    }
    permit
}

async fn tunnel(proxy: &Arc<Proxy>, permit: &Permit) -> Result<Dialled, ProxyRefusal> {
    let Permit { destination, route, by } = permit;
    let failed = |error: io::Error| ProxyRefusal::of(destination, unreachable(route, &error));
    let (stream, early, address) = match route {
        Route::Direct(addresses) => {
            let stream = connect_fastest(&proxy.relays.spare, addresses).await.map_err(failed)?;
            let address = stream.peer_addr().ok().map(|at| at.ip());
            (Stream::Tcp(stream), Bytes::new(), address)
        }
        Route::Upstream(upstream) => {
            let stream = connect_upstream(proxy, upstream).await.map_err(failed)?;
            let authorization = upstream.authorization.as_deref();
            let (stream, early) = http_connect(stream, destination, authorization).await.map_err(failed)?;
            (Stream::Tcp(stream), early, None)
        }
        Route::Foreign(socket) => {
            let stream = UnixStream::connect(own_path(socket)).await.map_err(failed)?;
            let (stream, early) = http_connect(stream, destination, None).await.map_err(failed)?;
            (Stream::Unix(stream), early, None)
        }
    };
    let record = ConnectionRecord::new(proxy, destination, address, by.word());
    Ok(Dialled { stream, early, is_counted: false, record })
}

/// A plain connection for HTTP requests, to the destination or to the upstream proxy. Also returns the
/// address of the destination, if the connection is direct.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn first_hop(
    proxy: &Arc<Proxy>,
    permit: &Permit,
) -> Result<(TcpStream, Option<IpAddr>), ProxyRefusal> {
    let connect = async {
        match &permit.route {
            Route::Direct(addresses) => connect_fastest(&proxy.relays.spare, addresses).await,
            Route::Upstream(upstream) => connect_upstream(proxy, upstream).await,
            // A bridge serves the port of a foreign proxy, so no request arrives here.
            Route::Foreign(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    };
    let connected = match timeout(TIME_LIMIT, connect).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(unreachable(&permit.route, &error)),
        Err(_) => Err(Reason::Timeout("connecting")),
    };
    let stream = match connected {
        Ok(stream) => stream,
        Err(reason) => return Err(proxy.recorded(ProxyRefusal::of(&permit.destination, reason)).await),
    };
    let is_direct = matches!(permit.route, Route::Direct(_));
    let address = stream.peer_addr().ok().map(|at| at.ip()).filter(|_| is_direct);
    Ok((stream, address))
}

/// Why a destination cannot be reached by this route.
fn unreachable(route: &Route, error: &io::Error) -> Reason {
    match route {
        Route::Direct(_) => Reason::of_io(error),
        Route::Upstream(_) | Route::Foreign(_) => {
            Reason::Unreachable(NetworkCause::Upstream, failure::words(error))
        }
    }
}

/// The policy alone names its upstream proxy, so the address of that proxy is not checked.
async fn connect_upstream(proxy: &Proxy, upstream: &Upstream) -> io::Result<TcpStream> {
    let addresses = match &upstream.at.host {
        DestinationHost::Address(address) => vec![*address],
        DestinationHost::Name(name) => proxy.gate.resolve(name).await?,
    };
    let at: Vec<_> = addresses.into_iter().map(|ip| SocketAddr::new(ip, upstream.at.port)).collect();
    let says = |error: io::Error| {
        io::Error::new(error.kind(), format!("the upstream proxy {}: {error}", upstream.at))
    };
    connect_fastest(&proxy.relays.spare, &at).await.map_err(says)
}

/// Tries the addresses in turn, alternating IPv6 and IPv4, each with a head start. The first connection wins.
/// It tries addresses in parallel only while spare descriptors are available.
async fn connect_fastest(spare: &Arc<Semaphore>, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = interleave_families(addresses).into_iter();
    let mut attempts = JoinSet::new();
    let mut reason = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let room = Arc::clone(spare).try_acquire_owned().ok();
        if attempts.is_empty() || room.is_some() {
            match waiting.next() {
                Some(address) => drop(attempts.spawn(async move {
                    let _room = room;
                    TcpStream::connect(address).await
                })),
                None if attempts.is_empty() => return Err(reason),
                None => {}
            }
        }
        let more = waiting.len() > 0;
        tokio::select! {
            Some(attempt) = attempts.join_next() => match attempt {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => reason = error,
                Err(error) => reason = io::Error::other(error),
            },
            () = sleep(HEAD_START), if more => {}
        }
    }
}

fn interleave_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(SocketAddr::is_ipv6);
    let mut turns = Vec::with_capacity(addresses.len());
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    while turns.len() < addresses.len() {
        turns.extend(six.next());
        turns.extend(four.next());
    }
    turns
}

/// Asks another proxy to connect, by CONNECT. Returns the stream and the bytes that followed the answer.
async fn http_connect<T>(
    stream: T,
    destination: &Destination,
    authorization: Option<&str>,
) -> io::Result<(T, Bytes)>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let authority = destination.to_string();
    let mut request = Request::connect(&authority).version(Version::HTTP_11).header(header::HOST, &authority);
    if let Some(authorization) = authorization {
        request = request.header(header::PROXY_AUTHORIZATION, authorization);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let limit = ReadLimit::default();
    limit.set(MAX_ANSWER);
    let stream = TokioIo::new(Limited::new(stream, limit.clone()));
    let (mut sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    let mut driver = JoinSet::new();
    driver.spawn(connection.with_upgrades());
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    if !answer.status().is_success() {
        return Err(io::Error::other(format!("the upstream proxy answered {}", answer.status())));
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(io::Error::other)?;
    let parts = upgraded
        .downcast::<TokioIo<Limited<T>>>()
        .map_err(|_| io::Error::other("unexpected stream type after CONNECT"))?;
    Ok((parts.io.into_inner().into_inner(), parts.read_buf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("address");
        let (a, b, c) = (at("192.0.2.1:1"), at("192.0.2.2:1"), at("[2001:db8::1]:1"));
        assert_eq!(interleave_families(&[a, b, c]), [c, a, b]);
        assert_eq!(interleave_families(&[a]), [a]);
        assert!(interleave_families(&[]).is_empty());
    }

    #[tokio::test]
    async fn an_address_that_refuses_does_not_hold_up_the_next() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let good = listener.local_addr().expect("address");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("address");
        for room in [0, 8] {
            let spare = Arc::new(Semaphore::new(room));
            connect_fastest(&spare, &[closed, good]).await.expect("the second");
            connect_fastest(&spare, &[closed]).await.expect_err("nobody");
            connect_fastest(&spare, &[]).await.expect_err("no address");
        }
    }
}
