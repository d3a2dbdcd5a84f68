//! The rule of ioctl(2), as data: which requests are refused.

use super::{ALLOW, EPERM, EXACT};
use crate::compile::seccomp::rule::{Clause, Test, Verdict, Word};

/// What a terminal must not be asked to do: TIOCSTI and TIOCLINUX type into it, so what is outside the
/// sandbox and reads it next would obey; TIOCCONS takes the console's output; TIOCSETD loads line
/// disciplines, kernel modules with a long record of holes that only modem and serial-line tools use.
const TERMINAL_TRICKS: &[u32] =
    &[constant(libc::TIOCSTI), constant(libc::TIOCLINUX), constant(libc::TIOCCONS), constant(libc::TIOCSETD)];

/// Of btrfs (linux/btrfs.h) SNAP_CREATE, SUBVOL_CREATE, SNAP_DESTROY, the second versions of these, and SUBVOL_SETFLAGS; of bcachefs
/// SUBVOLUME_CREATE, SUBVOLUME_DESTROY, and theirs. A snapshot of what is shown has no mounts, so nothing in it is covered. A
/// subvolume that is destroyed goes with the mounts that lie on it, and may be any of the file system's by its number
/// (btrfs-ioctl(3), mount option `user_subvol_rm_allowed`). In one that is made read-only nothing can be undone. All of it takes
/// no more than to own them. rmdir(2) removes empty ones, and heeds mounts.
const SUBVOLUMES: &[u32] = &[
    0x4008_941a,
    0x4020_bc10,
    0x4020_bc11,
    0x4030_bc1d,
    0x4030_bc1e,
    0x5000_9401,
    0x5000_940e,
    0x5000_940f,
    0x5000_9417,
    0x5000_9418,
    0x5000_943f,
];

/// FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY and _ALL_USERS (Documentation/filesystems/fscrypt.rst): keys belong to
/// the user and stay on the whole file system. Who removes one locks all that is under it, and needs no more than to read a
/// directory for that.
const ENCRYPTION_KEYS: &[u32] = &[0xc040_6618, 0xc040_6619, 0xc050_6617];

/// The requests for terminals, for sockets and interfaces, and for wireless ones, each with the low byte cut off.
const PAGE: u32 = 0xffff_ff00;
const SOCKET_REQUESTS: &[u32] = &[0x8900, 0x8b00];

/// Settings of network interfaces, routes and neighbours (linux/sockios.h), in the order of their numbers, and SIOCGSKNS
/// (0x894c), which hands out a socket's network namespace. They take CAP_NET_ADMIN over the namespace of the socket, not
/// of the caller: a command of root's without a user namespace has that over every user namespace that root made, so a
/// socket passed to it would do. What only asks (SIOCGIF…) stays, but SIOCGIFBR (0x8940), which loads a module.
const NETWORK_SETTINGS: &[u32] = &[
    0x890b, 0x890c, 0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x891e, 0x8922, 0x8923, 0x8924, 0x8931, 0x8932,
    0x8934, 0x8936, 0x8937, 0x8940, 0x8941, 0x8943, 0x8949, 0x894a, 0x894c, 0x8953, 0x8955, 0x8971, 0x8982,
    0x8983, 0x89b0,
];
/// Sixteen requests each: bonding, bridges, and what protocols and drivers have of their own, such as tunnels.
const SETTINGS_BY_SIXTEEN: &[u32] = &[0x8990, 0x89a0, 0x89e0, 0x89f0];
/// Settings of wireless interfaces are even, what asks is odd (linux/wireless.h).
const WIRELESS_SETTINGS: &[u32] = &[0x8b00];
/// SIOCETHTOOL, which sets and asks by what lies behind a pointer. Programs that only ask know this errno from
/// interfaces that have no such thing, as `lo`.
const ETHTOOL: &[u32] = &[0x8946];

/// ioctl(descriptor, request, argument).
pub(super) const REQUESTS: &[Clause] = &[
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, TERMINAL_TRICKS)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, SUBVOLUMES)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, ENCRYPTION_KEYS)], then: EPERM },
    Clause { when: &[Test::NoneOf(Word::Low(1), PAGE, SOCKET_REQUESTS)], then: ALLOW },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, NETWORK_SETTINGS)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), !0xf, SETTINGS_BY_SIXTEEN)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), PAGE | 1, WIRELESS_SETTINGS)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, ETHTOOL)], then: Verdict::refuse(libc::EOPNOTSUPP) },
];

/// An ioctl request, which libc spells `unsigned long` and the kernel reads as `unsigned int`.
#[expect(clippy::cast_possible_truncation, reason = "the kernel cuts it the same way")]
const fn constant(request: libc::Ioctl) -> u32 {
    request as u32
}
