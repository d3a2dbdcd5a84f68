//! The proxy is the only way out: raw attempts from inside.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener},
    },
    time::Duration,
};

use super::Net;
use crate::support::address_of_host;

/// Everything is allowed, and these ways are still closed.
fn open(net: &Net) -> Vec<String> {
    net.flags(&["*:*", "0.0.0.0/0:*", "[::/0]:*"], &[])
}

#[test]
fn no_listener_of_the_host_is_reached_without_the_proxy() {
    let net = Net::new();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let local =
        ["127.0.0.1", "127.1.2.3", "0.0.0.0", "[::ffff:127.0.0.1]", "[::1]"].map(|ip| format!("{ip}:{port}"));
    let local: Vec<&str> = local.iter().map(String::as_str).collect();
    assert_eq!(net.attempt(&open(&net), "connect", &local), ["ECONNREFUSED"; 5].join("\n"));
    if let Some(ip) = address_of_host() {
        let at = SocketAddr::new(ip, port).to_string();
        assert_eq!(net.attempt(&open(&net), "connect", &[&at]), "ENETUNREACH");
    }
    assert!(listener.accept().is_err(), "nobody came");
}

#[test]
fn nothing_outside_is_reached_without_the_proxy() {
    let net = Net::new();
    let addresses = [
        "169.254.169.254:80",
        "10.0.0.1:80",
        "192.168.0.1:80",
        "1.1.1.1:443",
        "8.8.8.8:53",
        "[2606:4700:4700::1111]:443",
        "[fd00:ec2::254]:80",
    ];
    for profile in ["repo-write", "ci-only", "full-dev"].into_iter().filter(|it| crate::support::runs(it)) {
        let flags = [open(&net), vec!["--profile".into(), profile.into()]].concat();
        assert_eq!(net.attempt(&flags, "connect", &addresses), ["ENETUNREACH"; 7].join("\n"), "{profile}");
    }
    let addresses = ["8.8.8.8:53", "169.254.169.254:80", "224.0.0.251:5353", "[ff02::fb]:5353"];
    assert_eq!(net.attempt(&open(&net), "send", &addresses), ["ENETUNREACH"; 4].join("\n"));
}

#[test]
fn no_datagram_reaches_the_host_or_its_resolver() {
    let net = Net::new();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let to = format!("127.0.0.1:{}", socket.local_addr().unwrap().port());
    assert_eq!(net.attempt(&open(&net), "send", &[&to]), "ok");
    assert!(socket.recv(&mut [0; 8]).is_err(), "it arrived");
    // The name server of the policy is for the proxy only.
    let question = format!("{}/one.test", net.names.at());
    assert_eq!(net.attempt(&open(&net), "query", &[&question]), "ECONNREFUSED");
    let hosts = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for server in hosts.lines().filter_map(|line| line.strip_prefix("nameserver ")) {
        let Ok(IpAddr::V4(ip)) = server.trim().parse() else { continue };
        if !ip.is_loopback() {
            assert_eq!(net.attempt(&open(&net), "query", &[&format!("{ip}:53/one.test")]), "ENETUNREACH");
        }
    }
    assert!(net.names.asked().is_empty());
}

#[test]
fn no_socket_but_plain_ones() {
    let net = Net::new();
    let calls = [
        ("socket 2 1 0", "ok"),
        ("socket 2 3 1", "EPERM"),              // raw ICMP
        ("socket 2 2 1", "EACCES"),             // ping
        ("socket 10 3 58", "EPERM"),            // raw ICMPv6
        ("socket 17 3 0x0300", "EAFNOSUPPORT"), // packets
        ("socket 16 3 16", "EAFNOSUPPORT"),     // generic netlink
        ("socket 40 1 0", "EAFNOSUPPORT"),      // VSOCK
        ("socket 38 5 0", "EAFNOSUPPORT"),      // ALG
    ];
    let words: Vec<&str> = calls.iter().flat_map(|(call, _)| call.split(' ').chain(["+"])).collect();
    let said = net.attempt(&open(&net), "call", &words);
    let expected: Vec<&str> = calls.iter().map(|(_, answer)| *answer).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn no_abstract_socket_of_the_host_is_reached() {
    let net = Net::new();
    let name = format!("kennel-test-{}", std::process::id());
    let address = UnixAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let datagrams =
        UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(format!("{name}-d")).unwrap()).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let said = net.attempt(&open(&net), "abstract", &[&name, &format!("{name}-d")]);
    assert_eq!(said, ["ECONNREFUSED"; 4].join("\n"));
    assert!(listener.accept().is_err() && datagrams.recv(&mut [0; 8]).is_err());
}

#[test]
fn commands_cannot_set_up_the_network() {
    let net = Net::new();
    let words = "socket 2 2 0 + ioctl $ 0x8916 x:6c6f0000000000000000000000000000020000000a000001 + \
                 ioctl $ 0x8914 x:6c6f00000000000000000000000000000000 + ioctl $ 0x890b buf + unshare 0x40000000";
    let said = net.attempt(&open(&net), "call", &words.split(' ').collect::<Vec<_>>());
    assert_eq!(said, "ok\nEPERM\nEPERM\nEPERM\nEPERM");
    let devices = net.says(&open(&net), "tail -n +3 /proc/net/dev | cut -d: -f1");
    assert_eq!(devices.trim(), "lo");
}

#[test]
fn an_empty_list_lets_nothing_pass() {
    let net = Net::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = ["localhost", "127.0.0.1", "one.test", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"]
        .map(|host| format!(">CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n"));
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    for heard in net.talk(&net.flags(&[], &[]), &steps) {
        assert!(heard.starts_with("HTTP/1.1 403 ") && heard.contains("not-allowed"), "{heard}");
    }
    assert!(listener.accept().is_err() && net.names.asked().is_empty());
}
