//! Listeners to connections: as many at once as the limits say, each a task that ends with the listener's.

use std::{
    future::Future, io, net::TcpListener as StdListener, os::fd::OwnedFd, pin::pin, sync::Arc, time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::OwnedSemaphorePermit,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{Proxy, http, socks};

/// Where the embedding program has no descriptor left: how long to leave it alone.
const BREATH: Duration = Duration::from_millis(50);

/// Accepts on a listener of the sandbox's and has each connection served.
pub(super) fn accept<S: Future<Output = ()> + Send + 'static>(
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
pub(super) async fn serve(proxy: Arc<Proxy>, stream: TcpStream) {
    let mut first = [0];
    let time = proxy.gate.settings().limits.header_time;
    match timeout(time, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first == [5] => socks::serve(proxy, stream).await,
        Ok(Ok(1)) => http::serve(proxy, stream).await,
        // It said nothing.
        _ => {}
    }
}
