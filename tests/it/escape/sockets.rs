//! Socket families and terminals.

use super::{check, check_outside};
use crate::support::{only_as_root, workspace};

#[test]
fn only_common_socket_families_are_made() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("socket 40 1 0", "EAFNOSUPPORT"), // VSOCK
            ("socket 40 2 0", "EAFNOSUPPORT"),
            ("socket 17 3 768", "EAFNOSUPPORT"), // PACKET, ETH_P_ALL
            ("socket 17 2 0", "EAFNOSUPPORT"),
            ("socket 38 5 0", "EAFNOSUPPORT"),  // ALG
            ("socket 16 3 16", "EAFNOSUPPORT"), // NETLINK_GENERIC
            ("socket 16 3 4", "EAFNOSUPPORT"),  // NETLINK_SOCK_DIAG
            ("socket 16 3 9", "EAFNOSUPPORT"),  // NETLINK_AUDIT
            ("socket 16 3 12", "EAFNOSUPPORT"), // NETLINK_NETFILTER
            ("socket 16 3 15", "EAFNOSUPPORT"), // NETLINK_KOBJECT_UEVENT
            ("socket 16 3 6", "EAFNOSUPPORT"),  // NETLINK_XFRM
            ("socket 31 3 1", "EAFNOSUPPORT"),  // BLUETOOTH
            ("socket 29 3 1", "EAFNOSUPPORT"),  // CAN
            ("socket 44 3 0", "EAFNOSUPPORT"),  // XDP
            ("socket 41 2 0", "EAFNOSUPPORT"),  // KCM
            ("socket 42 1 0", "EAFNOSUPPORT"),  // QIPCRTR
            ("socket 43 1 0", "EAFNOSUPPORT"),  // SMC
            ("socket 21 5 0", "EAFNOSUPPORT"),  // RDS
            ("socket 30 5 0", "EAFNOSUPPORT"),  // TIPC
            ("socket 33 2 2", "EAFNOSUPPORT"),  // RXRPC
            ("socket 15 3 2", "EAFNOSUPPORT"),  // KEY
            ("socket 0 1 0", "EAFNOSUPPORT"),
            ("socket 0x100000028 1 0", "EAFNOSUPPORT"),
            ("socketpair 40 1 0 buf", "EAFNOSUPPORT"),
            ("socket 2 10 768", "ESOCKTNOSUPPORT"), // SOCK_PACKET
            ("socket 2 5 132", "ESOCKTNOSUPPORT"),  // SCTP by SEQPACKET
            ("socket 2 6 0", "ESOCKTNOSUPPORT"),    // DCCP
            ("socket 2 1 132", "EPROTONOSUPPORT"),  // SCTP
            ("socket 2 1 256", "EPROTONOSUPPORT"),  // SMC
            ("socket 2 2 115", "EPROTONOSUPPORT"),  // L2TP
            ("socket 2 2 136", "EPROTONOSUPPORT"),  // UDP-Lite
            ("socket 2 1 0", "ok"),
            ("socket 10 2 0", "ok"),
            ("socket 1 5 0", "ok"),
            ("socket 16 3 0", "ok"),
            ("socketpair 1 1 0 buf", "ok"),
        ],
    );
}

#[test]
fn packets_are_not_made_by_hand() {
    let ws = workspace();
    for net in ["none", "host"] {
        check(
            ws.path(),
            &["--net", net],
            &[
                ("socket 2 3 1", "EPERM"),   // raw ICMP
                ("socket 2 3 255", "EPERM"), // raw IP
                ("socket 10 3 58", "EPERM"),
                ("socket 2 0x80003 6", "EPERM"), // with SOCK_CLOEXEC
                ("socket 2 1 0", "ok"),
                ("setsockopt $ 1 36 w:1 4", "EPERM"), // SO_MARK
                ("setsockopt $ 0 19 w:1 4", "EPERM"), // IP_TRANSPARENT
                ("bind $ x:0200005000000000 16", "EACCES"),
            ],
        );
    }
    only_as_root!();
    check_outside(&[("socket 2 3 1", "ok")]);
}

#[test]
fn nobody_types_into_a_terminal() {
    let ws = workspace();
    let pair = [
        ("openat -100 s:/dev/ptmx 0x102", "ok"),
        ("ioctl $ 0x40045431 w:0", "ok"), // TIOCSPTLCK
        ("ioctl $ 0x5441 0x102", "ok"),   // TIOCGPTPEER
    ];
    let tricks = [
        ("ioctl $ 0x5412 s:x", "EPERM"), // TIOCSTI
        ("ioctl $ 0x100005412 s:x", "EPERM"),
        ("ioctl $ 0xffffffff00005412 s:x", "EPERM"),
        ("ioctl $ 0x541c x:03", "EPERM"), // TIOCLINUX
        ("ioctl $ 0x10000541c x:03", "EPERM"),
        ("ioctl $ 0x541d 0", "EPERM"),   // TIOCCONS
        ("ioctl $ 0x5423 w:2", "EPERM"), // TIOCSETD
        ("ioctl $ 0x5401 buf", "ok"),    // TCGETS
    ];
    check(ws.path(), &[], &[&pair[..], &tricks].concat());
    only_as_root!();
    check_outside(&[&pair[..], &[("ioctl $ 0x5412 s:x", "ok")]].concat());
}

#[test]
fn terminals_of_the_host_are_not_there() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("open s:/dev/tty 2", "ENXIO"),
            ("open s:/dev/console 2", "ENOENT"),
            ("open s:/dev/tty0 2", "ENOENT"),
            ("open s:/dev/ttyS0 2", "ENOENT"),
            ("open s:/dev/pts/0 2", "ENOENT"),
            ("open s:/dev/vcs 0", "ENOENT"),
            ("open s:/dev/input 0", "ENOENT"),
        ],
    );
}
