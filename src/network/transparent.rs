//! Programs that know no proxies: names are answered with addresses of our own, and whoever connects to such an address
//! gets a connection to the name, after the same checks as everybody.

use std::io;
use std::net::UdpSocket as StdUdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinHandle;

use crate::network::dns::Answer;
use crate::network::proxy::Proxy;
use crate::network::refusal::Refusal;
use crate::network::stream::Stream;
use crate::network::{dial, dns, relay};
use crate::policy::destination::{Destination, Host, Name};

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

fn look_up(proxy: &Proxy, name: &Name, refusal: &mut Option<Refusal>) -> Answer {
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
