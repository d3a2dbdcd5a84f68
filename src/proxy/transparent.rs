//! Programs that know no proxies: names are answered with addresses of our own, and whoever connects to such an address
//! gets a connection to the name, after the same checks as everybody.

use std::{
    io,
    net::{IpAddr, UdpSocket as StdUdpSocket},
    os::fd::OwnedFd,
    sync::Arc,
};

use bytes::Bytes;
use tokio::{
    net::{TcpStream, UdpSocket},
    task::AbortHandle,
};

use super::{
    Proxy,
    destination::{Destination, Host, Name},
    dial,
    dns::{self, Answer},
    nonblocking,
    refusal::Refusal,
    relay,
    stream::Stream,
};

/// Larger than any question that a resolver asks.
const QUESTION: usize = 4096;

/// Answers questions about names on a UDP socket of the sandbox's.
pub(super) fn answer_names(proxy: Arc<Proxy>, socket: OwnedFd) -> io::Result<AbortHandle> {
    let socket = UdpSocket::from_std(nonblocking::<StdUdpSocket>(socket)?)?;
    let task = tokio::spawn(async move {
        let mut question = [0; QUESTION];
        loop {
            // An error is about an answer that nobody waited for.
            let Ok((count, from)) = socket.recv_from(&mut question).await else { continue };
            let asked = question.get(..count).unwrap_or_default();
            if let Some(answer) = dns::answer(asked, |name| look_up(&proxy, name)) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    Ok(task.abort_handle())
}

fn look_up(proxy: &Proxy, name: &Name) -> Answer {
    if !proxy.gate.may_name(name) {
        proxy.refused(&Refusal::name(name));
        return Answer::NoSuchName;
    }
    proxy.names.address_of(name).map_or(Answer::Busy, Answer::Address)
}

/// Serves a connection to one of the addresses that names were answered with.
pub(super) async fn serve(proxy: Arc<Proxy>, stream: TcpStream) {
    let name = match stream.local_addr() {
        Ok(at) => match at.ip() {
            IpAddr::V4(ip) => proxy.names.name_of(ip).map(|name| (name, at.port())),
            IpAddr::V6(_) => None,
        },
        Err(_) => None,
    };
    let stream = Stream::Tcp(stream);
    // The sandbox's own loopback has no server there.
    let Some((name, port)) = name else { return stream.reset() };
    let destination = Destination { host: Host::Name(name), port };
    match dial::reach(&proxy, destination).await {
        Ok(dialled) => relay::relay(&proxy, stream, Bytes::new(), dialled).await,
        Err(_) => stream.reset(),
    }
}
