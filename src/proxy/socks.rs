//! SOCKS5 of the proxy's port: CONNECT to a name or an address. No UDP, no BIND, no credentials.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fast_socks5::{ReplyError, Socks5Command, server::Socks5ServerProtocol, util::target_addr::TargetAddr};
use tokio::{net::TcpStream, time::timeout};

use super::{
    Proxy,
    destination::{Destination, Host},
    dial,
    http::noted,
    refusal::{Reason, Refusal},
    relay,
    stream::Stream,
};

/// What a client is told of the address that its connection has: nothing.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Serves one connection to its end.
pub(super) async fn serve(proxy: Arc<Proxy>, stream: TcpStream) {
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

fn destination(command: Socks5Command, target: &TargetAddr) -> Result<Destination, Refusal> {
    let subject = target.to_string();
    if command != Socks5Command::TCPConnect {
        return Err(Refusal::request(&subject, Reason::Method("only CONNECT of SOCKS5 is served, no UDP")));
    }
    let (host, port) = match target {
        TargetAddr::Ip(at) => (Ok(Host::of(at.ip())), at.port()),
        TargetAddr::Domain(name, port) => (Host::parse(name), *port),
    };
    match host {
        Ok(_) if port == 0 => Err(Refusal::request(&subject, Reason::Malformed("0 is not a port"))),
        Ok(host) => Ok(Destination { host, port }),
        Err(malformed) => Err(Refusal::malformed(&subject, &malformed)),
    }
}

/// The nearest of the protocol's few words.
fn reply(refusal: &Refusal) -> ReplyError {
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
