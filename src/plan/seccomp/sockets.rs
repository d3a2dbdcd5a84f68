//! The rules of sockets: which kinds a command can make, and which options it can set.

use crate::plan::seccomp::rule::{ALLOW, Clause, EPERM, EXACT, FilterVerdict, Test, UNIX, Word, bits};

const NETLINK: &[u32] = &[bits(libc::AF_NETLINK)];
const ROUTE: &[u32] = &[bits(libc::NETLINK_ROUTE)];
const INTERNET: &[u32] = &[bits(libc::AF_INET), bits(libc::AF_INET6)];

/// The bits of a socket's type that are not flags (SOCK_TYPE_MASK of linux/net.h).
const SOCKET_TYPE: u32 = 0xf;
/// Without SOCK_PACKET, by which the kernel also makes AF_PACKET sockets; and without SOCK_SEQPACKET and
/// SOCK_DCCP, which lead to SCTP and DCCP without naming them.
const SOCKET_TYPES: &[u32] = &[bits(libc::SOCK_STREAM), bits(libc::SOCK_DGRAM), bits(libc::SOCK_RAW)];
/// Raw sockets need CAP_NET_RAW, which no command has. The kernel refuses them with the same errno, but then
/// `--explain` does not learn of it.
const RAW: &[u32] = &[bits(libc::SOCK_RAW)];
/// Without SCTP, DCCP, L2TP, UDP-Lite and SMC: each would load a module into the host's kernel. Without
/// MPTCP: Landlock does not treat it as TCP and lets it connect to any port (Linux 6.18). Programs that ask
/// for it, such as Go's listeners, fall back to TCP, as on a kernel built without it.
const PROTOCOLS: &[u32] = &[
    bits(libc::IPPROTO_IP),
    bits(libc::IPPROTO_ICMP),
    bits(libc::IPPROTO_TCP),
    bits(libc::IPPROTO_UDP),
    bits(libc::IPPROTO_ICMPV6),
];

/// socket(family, type, protocol). The errno is that of a kernel built without the feature.
pub(crate) const SOCKET: &[Clause] = &[
    Clause { when: &[Test::OneOf(Word::Low(0), EXACT, UNIX)], then: ALLOW },
    Clause {
        when: &[Test::OneOf(Word::Low(0), EXACT, NETLINK), Test::OneOf(Word::Low(2), EXACT, ROUTE)],
        then: ALLOW,
    },
    Clause {
        when: &[Test::NoneOf(Word::Low(0), EXACT, INTERNET)],
        then: FilterVerdict::refuse(libc::EAFNOSUPPORT),
    },
    Clause {
        when: &[Test::NoneOf(Word::Low(1), SOCKET_TYPE, SOCKET_TYPES)],
        then: FilterVerdict::refuse(libc::ESOCKTNOSUPPORT),
    },
    Clause { when: &[Test::OneOf(Word::Low(1), SOCKET_TYPE, RAW)], then: EPERM },
    Clause {
        when: &[Test::NoneOf(Word::Low(2), EXACT, PROTOCOLS)],
        then: FilterVerdict::refuse(libc::EPROTONOSUPPORT),
    },
];

const LEVEL_SOCKET: &[u32] = &[bits(libc::SOL_SOCKET)];
const LEVEL_IP: &[u32] = &[bits(libc::IPPROTO_IP)];
const LEVEL_IPV6: &[u32] = &[bits(libc::IPPROTO_IPV6)];
const LEVEL_TCP: &[u32] = &[bits(libc::IPPROTO_TCP)];
/// Options that need CAP_NET_ADMIN over the socket's namespace, like settings of interfaces. 75 is
/// SO_RCVMARK, which libc lacks.
const SOCKET_SETTINGS: &[u32] =
    &[bits(libc::SO_SNDBUFFORCE), bits(libc::SO_RCVBUFFORCE), bits(libc::SO_MARK), 75];
/// TCP_REPAIR sets up a connection without connecting, which Landlock does not check.
const REPAIR: &[u32] = &[bits(libc::TCP_REPAIR)];
/// TCP_ULP: "smc" turns a socket into one that connects on its behalf, which Landlock does not check (Linux
/// 5.17 and later). It is refused as on a kernel without any ULP: programs that ask for "tls" then encrypt by
/// themselves.
const ULP: &[u32] = &[bits(libc::TCP_ULP)];
/// Blocks of four: IPsec policies with IP_TRANSPARENT; the tables of iptables, arptables and ebtables, large
/// parsers with a long record of holes; the multicast router (MRT_BASE, 200 to 215).
const OPTIONS_BY_FOUR: &[u32] = &[16, 64, 68, 96, 128, 200, 204, 208, 212];
/// Blocks of 64: the rest of the numbers for such tables, with IP_VS_BASE_CTL.
const OPTIONS_BY_64: &[u32] = &[1088, 1152];
/// SO_IP_SET.
const IP_SET: &[u32] = &[83];
/// Anycast addresses, which belong to the interface; IPsec policies, IPV6_TRANSPARENT, and the tables of
/// ip6tables. 66 and 67 are IPV6_RECVTCLASS and IPV6_TCLASS.
const OPTIONS6: &[u32] = &[27, 28, 34, 35, 64, 65, 68, 69, 75];
/// Blocks of four: the multicast router (MRT6_BASE, 200 to 215).
const OPTIONS6_BY_FOUR: &[u32] = &[200, 204, 208, 212];

/// Socket options that need CAP_NET_ADMIN, by level.
pub(crate) const OPTIONS: &[Clause] = &[
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, LEVEL_SOCKET),
            Test::OneOf(Word::Low(2), EXACT, SOCKET_SETTINGS),
        ],
        then: EPERM,
    },
    Clause {
        when: &[Test::OneOf(Word::Low(1), EXACT, LEVEL_TCP), Test::OneOf(Word::Low(2), EXACT, REPAIR)],
        then: EPERM,
    },
    Clause {
        when: &[Test::OneOf(Word::Low(1), EXACT, LEVEL_TCP), Test::OneOf(Word::Low(2), EXACT, ULP)],
        then: FilterVerdict::refuse(libc::ENOENT),
    },
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, LEVEL_IP),
            Test::OneOf(Word::Low(2), !0b11, OPTIONS_BY_FOUR),
        ],
        then: EPERM,
    },
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, LEVEL_IP),
            Test::OneOf(Word::Low(2), !0b11_1111, OPTIONS_BY_64),
        ],
        then: EPERM,
    },
    Clause {
        when: &[Test::OneOf(Word::Low(1), EXACT, LEVEL_IP), Test::OneOf(Word::Low(2), EXACT, IP_SET)],
        then: EPERM,
    },
    Clause {
        when: &[Test::OneOf(Word::Low(1), EXACT, LEVEL_IPV6), Test::OneOf(Word::Low(2), EXACT, OPTIONS6)],
        then: EPERM,
    },
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, LEVEL_IPV6),
            Test::OneOf(Word::Low(2), !0b11, OPTIONS6_BY_FOUR),
        ],
        then: EPERM,
    },
];
