//! The rules on arguments: which values of an allowed call are refused.
//!
//! A rule compares only low words if the kernel itself cuts the argument to `int`, `unsigned int` or
//! `umode_t`: `ioctl` request, `fcntl` command, socket options, `socket` family, `open` and `send` flags,
//! every mode, `personality`, and `clone` flags (clone(2) takes their lower half). Higher bits must change
//! nothing. unshare(2) takes a full `unsigned long`, so its rule compares both words.
//!
//! prctl(2) has no rule. Its dangerous options need a capability that no command has; the others bind only
//! the caller and its children.

use crate::plan::seccomp::rule::{
    ALLOW, Clause, EPERM, EXACT, FilterQuestion, FilterVerdict, SyscallRule, Test, UNIX, Word, bits,
};
use crate::plan::seccomp::sockets;

/// Every flag of clone(2) that makes a namespace, except CLONE_NEWTIME: it lies in the lowest byte, which is
/// the exit signal of clone(2), so clone(2) cannot ask for it.
const NAMESPACES: u32 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

/// The flags of unshare(2) that make no namespace. The rule lists what is allowed, because unshare has
/// further flags that make one: CLONE_NEWTIME (0x80) and, since Linux 7.1, UNSHARE_EMPTY_MNTNS (0x0010_0000).
const PLAIN_UNSHARE: u32 = bits(
    libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SYSVSEM
        | libc::CLONE_THREAD
        | libc::CLONE_SIGHAND
        | libc::CLONE_VM,
);

/// S_ISUID and S_ISGID. A file with these bits in a writable workspace would lend its owner's rights to any
/// user who runs it outside. On a directory, S_ISGID gives its group to new entries, which is harmless; the
/// supervisor tells the two apart.
pub(crate) const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
pub(crate) const ASK_MODE: FilterVerdict = FilterVerdict::Ask(FilterQuestion::Mode);
const ASK_OWNER: FilterVerdict = FilterVerdict::Ask(FilterQuestion::Owner);

/// The caller's own user and group. [`program`](crate::plan::seccomp::program) writes the numbers in their
/// place.
pub(crate) const OWN_USER: u32 = 0x4f57_4e55;
pub(crate) const OWN_GROUP: u32 = 0x4f57_4e47;

/// Owners that need no question: the own one, or none at all.
pub(crate) const USERS: &[u32] = &[OWN_USER, u32::MAX];
pub(crate) const GROUPS: &[u32] = &[OWN_GROUP, u32::MAX];

/// open(2) reads its mode only with one of these flags; without them the mode may be garbage. `__O_TMPFILE`
/// is O_TMPFILE without the O_DIRECTORY that it includes.
const CREATES: u32 = bits(libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY));

/// File types of device nodes.
pub(crate) const DEVICES: &[u32] = &[libc::S_IFCHR, libc::S_IFBLK];

/// TCP Fast Open connects by sending, which Landlock does not check. It is refused as on a host with the
/// sysctl net.ipv4.tcp_fastopen = 0: programs then connect first. The option TCP_FASTOPEN_CONNECT goes
/// through connect(2), which Landlock checks.
const FAST_OPEN: u32 = bits(libc::MSG_FASTOPEN);
const NO_FAST_OPEN: FilterVerdict = FilterVerdict::refuse(libc::EOPNOTSUPP);

/// What a user gets who may not make a queue.
const NO_QUEUES: FilterVerdict = FilterVerdict::refuse(libc::EACCES);

/// Execution domains that change no protection: Linux, PER_LINUX32 (0x8), both with UNAME26,
/// ADDR_NO_RANDOMIZE (for debuggers; it weakens only the caller's own children), and 0xffff_ffff, which asks
/// for the current one.
const PERSONALITIES: &[u32] = &[0, 0x8, 0x0002_0000, 0x0002_0008, 0x0004_0000, 0xffff_ffff];

/// F_SETLEASE and, since Linux 6.19, F_SETDELEG. Any other program that opens the file then waits until the
/// lease is given up, for up to 45 s (/proc/sys/fs/lease-break-time); and the command can take a new one. A
/// lease needs only ownership of the file, even if the grant is read-only. As root that is any file of the
/// system.
const LEASES: &[u32] = &[bits(libc::F_SETLEASE), 1040];

/// The pid of init in every sandbox.
const INIT: &[u32] = &[1];

/// RLIMIT_CORE is 1, which keeps the kernel from starting the host's core handler; 0 would not. Programs with
/// secrets set it to 0 and end on an error, so the filter pretends that it was set. RLIMIT_RTTIME marks the
/// command whose process it is, where commands share a pid namespace.
const KEPT: &[u32] = &[libc::RLIMIT_CORE, libc::RLIMIT_RTTIME];

/// Both halves of a null pointer.
const NULL: &[u32] = &[0];

/// PRIO_USER and IOPRIO_WHO_USER: every process of the user, init among them.
const PRIORITY_OF_USER: &[u32] = &[2];
const IO_PRIORITY_OF_USER: &[u32] = &[3];

/// All rules, but for those of [`fake_root`](crate::plan::seccomp::fake_root). A system call is in at most
/// one of them, and then in no list of `syscalls`; `table` checks that at build time.
pub(crate) const RULES: &[SyscallRule] = &[
    SyscallRule {
        calls: &[libc::SYS_clone],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(0), NAMESPACES)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_unshare],
        clauses: &[
            Clause { when: &[Test::AnyBit(Word::Low(0), !PLAIN_UNSHARE)], then: EPERM },
            Clause { when: &[Test::AnyBit(Word::High(0), u32::MAX)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule { calls: &[libc::SYS_ioctl], clauses: REQUESTS, otherwise: ALLOW },
    SyscallRule {
        calls: &[libc::SYS_fcntl],
        clauses: &[Clause { when: &[Test::OneOf(Word::Low(1), EXACT, LEASES)], then: EPERM }],
        otherwise: ALLOW,
    },
    // One rule for both: a program that may not set an option has no need to read it.
    SyscallRule {
        calls: &[libc::SYS_setsockopt, libc::SYS_getsockopt],
        clauses: sockets::OPTIONS,
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_socket, libc::SYS_socketpair],
        clauses: sockets::SOCKET,
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_sendmsg],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(2), FAST_OPEN)], then: NO_FAST_OPEN }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_sendto, libc::SYS_sendmmsg],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(3), FAST_OPEN)], then: NO_FAST_OPEN }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_personality],
        clauses: &[Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, PERSONALITIES)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_open],
        clauses: &[Clause {
            when: &[Test::AnyBit(Word::Low(1), CREATES), Test::AnyBit(Word::Low(2), SET_ID)],
            then: EPERM,
        }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_openat],
        clauses: &[Clause {
            when: &[Test::AnyBit(Word::Low(2), CREATES), Test::AnyBit(Word::Low(3), SET_ID)],
            then: EPERM,
        }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_creat],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(1), SET_ID)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_chmod, libc::SYS_fchmod],
        clauses: &[
            Clause { when: &[Test::AnyBit(Word::Low(1), libc::S_ISUID)], then: EPERM },
            Clause { when: &[Test::AnyBit(Word::Low(1), libc::S_ISGID)], then: ASK_MODE },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_fchmodat, libc::SYS_fchmodat2],
        clauses: &[
            Clause { when: &[Test::AnyBit(Word::Low(2), libc::S_ISUID)], then: EPERM },
            Clause { when: &[Test::AnyBit(Word::Low(2), libc::S_ISGID)], then: ASK_MODE },
        ],
        otherwise: ALLOW,
    },
    // Ids that the user namespace does not map: inside, the kernel would answer EINVAL.
    SyscallRule {
        calls: &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, USERS)], then: ASK_OWNER },
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, GROUPS)], then: ASK_OWNER },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_fchownat],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, USERS)], then: ASK_OWNER },
            Clause { when: &[Test::NoneOf(Word::Low(3), EXACT, GROUPS)], then: ASK_OWNER },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_mknod],
        clauses: &[
            Clause { when: &[Test::AnyBit(Word::Low(1), SET_ID)], then: EPERM },
            Clause { when: &[Test::OneOf(Word::Low(1), libc::S_IFMT, DEVICES)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_mknodat],
        clauses: &[
            Clause { when: &[Test::AnyBit(Word::Low(2), SET_ID)], then: EPERM },
            Clause { when: &[Test::OneOf(Word::Low(2), libc::S_IFMT, DEVICES)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    // Landlock denies to open a queue, because the kernel keeps queues in a mount of its own that no rule can
    // name. Here `explain` sees it. Without O_CREAT there is no queue to open.
    SyscallRule {
        calls: &[libc::SYS_mq_open],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(1), bits(libc::O_CREAT))], then: NO_QUEUES }],
        otherwise: ALLOW,
    },
    // A limit can only be lowered; those that Kennel keeps not even that.
    SyscallRule {
        calls: &[libc::SYS_setrlimit],
        clauses: &[Clause { when: &[Test::OneOf(Word::Low(0), EXACT, KEPT)], then: FilterVerdict::Pretend }],
        otherwise: ALLOW,
    },
    SyscallRule { calls: &[libc::SYS_prlimit64], clauses: LIMIT, otherwise: ALLOW },
    // Init is a process of the same user. Its limits and priorities must stay out of reach.
    SyscallRule {
        calls: &[
            libc::SYS_sched_setparam,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setattr,
        ],
        clauses: &[Clause { when: &[Test::OneOf(Word::Low(0), EXACT, INIT)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setpriority],
        clauses: &[
            Clause { when: &[Test::OneOf(Word::Low(1), EXACT, INIT)], then: EPERM },
            Clause { when: &[Test::OneOf(Word::Low(0), EXACT, PRIORITY_OF_USER)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_ioprio_set],
        clauses: &[
            Clause { when: &[Test::OneOf(Word::Low(1), EXACT, INIT)], then: EPERM },
            Clause { when: &[Test::OneOf(Word::Low(0), EXACT, IO_PRIORITY_OF_USER)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    // RENAME_WHITEOUT leaves a character device (0:0) behind; since Linux 5.8 it needs no capability.
    SyscallRule {
        calls: &[libc::SYS_renameat2],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(4), libc::RENAME_WHITEOUT)], then: EPERM }],
        otherwise: ALLOW,
    },
];

/// prlimit64(pid, resource, new, old). A command can neither set nor read limits of init. It can read
/// those that Kennel keeps. Setting one of them without reading it is pretended.
const LIMIT: &[Clause] = &[
    Clause { when: &[Test::OneOf(Word::Low(0), EXACT, INIT)], then: EPERM },
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, KEPT),
            Test::OneOf(Word::Low(2), EXACT, NULL),
            Test::OneOf(Word::High(2), EXACT, NULL),
        ],
        then: ALLOW,
    },
    Clause {
        when: &[
            Test::OneOf(Word::Low(1), EXACT, KEPT),
            Test::OneOf(Word::Low(3), EXACT, NULL),
            Test::OneOf(Word::High(3), EXACT, NULL),
        ],
        then: FilterVerdict::Pretend,
    },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, KEPT)], then: EPERM },
];

/// The rules of a bridge: Unix sockets and no others.
pub(crate) const BRIDGE: &[SyscallRule] = &[SyscallRule {
    calls: &[libc::SYS_socket],
    clauses: &[Clause { when: &[Test::OneOf(Word::Low(0), EXACT, UNIX)], then: ALLOW }],
    otherwise: FilterVerdict::Kill,
}];

// The rule of ioctl(2): which requests are refused.

/// Requests to a terminal that act outside of the sandbox. TIOCSTI and TIOCLINUX type into it, and the
/// program that reads it next would obey. TIOCCONS takes the console's output. TIOCSETD loads line
/// disciplines: kernel modules with a long record of holes that only modem and serial-line tools use.
const TERMINAL_TRICKS: &[u32] =
    &[constant(libc::TIOCSTI), constant(libc::TIOCLINUX), constant(libc::TIOCCONS), constant(libc::TIOCSETD)];

/// Of btrfs (linux/btrfs.h): SNAP_CREATE, SUBVOL_CREATE, SNAP_DESTROY, their second versions, and
/// SUBVOL_SETFLAGS. Of bcachefs: SUBVOLUME_CREATE, SUBVOLUME_DESTROY, and their second versions.
///
/// A snapshot of a shown subvolume has no mounts, so nothing in it is covered. Destroying a subvolume takes
/// the mounts on it away, and a number can name any subvolume of the file system (btrfs-ioctl(3), mount
/// option `user_subvol_rm_allowed`). A subvolume that is made read-only cannot be repaired. All of it needs
/// only ownership. rmdir(2) removes empty subvolumes, and respects mounts.
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

/// FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY and _ALL_USERS
/// (Documentation/filesystems/fscrypt.rst). Keys belong to the user and hold for the whole file system. A
/// program that removes one locks everything under it, and needs only read access to a directory for that.
const ENCRYPTION_KEYS: &[u32] = &[0xc040_6618, 0xc040_6619, 0xc050_6617];

/// The requests for terminals, for sockets and interfaces, and for wireless interfaces, with the low byte cut
/// off.
const PAGE: u32 = 0xffff_ff00;
const SOCKET_REQUESTS: &[u32] = &[0x8900, 0x8b00];

/// Settings of network interfaces, routes and neighbours (linux/sockios.h), in the order of their numbers,
/// and SIOCGSKNS (0x894c), which hands out a socket's network namespace.
///
/// They need CAP_NET_ADMIN over the namespace of the socket, not of the caller. Without a user namespace, a
/// command of root has it over every user namespace that root made, so a socket that is passed to it would
/// suffice. Requests that only read (SIOCGIF…) stay allowed, except SIOCGIFBR (0x8940), which loads a module.
const NETWORK_SETTINGS: &[u32] = &[
    0x890b, 0x890c, 0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x891e, 0x8922, 0x8923, 0x8924, 0x8931, 0x8932,
    0x8934, 0x8936, 0x8937, 0x8940, 0x8941, 0x8943, 0x8949, 0x894a, 0x894c, 0x8953, 0x8955, 0x8971, 0x8982,
    0x8983, 0x89b0,
];
/// Blocks of sixteen requests: bonding, bridges, and private requests of protocols and drivers, such as
/// tunnels.
const SETTINGS_BY_SIXTEEN: &[u32] = &[0x8990, 0x89a0, 0x89e0, 0x89f0];
/// Settings of wireless interfaces have even numbers, reads have odd ones (linux/wireless.h).
const WIRELESS_SETTINGS: &[u32] = &[0x8b00];
/// SIOCETHTOOL sets or reads, depending on memory behind a pointer. Programs that only read know this errno
/// from interfaces without ethtool support, such as `lo`.
const ETHTOOL: &[u32] = &[0x8946];

/// ioctl(descriptor, request, argument).
pub(crate) const REQUESTS: &[Clause] = &[
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, TERMINAL_TRICKS)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, SUBVOLUMES)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, ENCRYPTION_KEYS)], then: EPERM },
    Clause { when: &[Test::NoneOf(Word::Low(1), PAGE, SOCKET_REQUESTS)], then: ALLOW },
    Clause { when: &[Test::OneOf(Word::Low(1), EXACT, NETWORK_SETTINGS)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), !0xf, SETTINGS_BY_SIXTEEN)], then: EPERM },
    Clause { when: &[Test::OneOf(Word::Low(1), PAGE | 1, WIRELESS_SETTINGS)], then: EPERM },
    Clause {
        when: &[Test::OneOf(Word::Low(1), EXACT, ETHTOOL)],
        then: FilterVerdict::refuse(libc::EOPNOTSUPP),
    },
];

/// An ioctl request: libc has it as `unsigned long`, the kernel reads it as `unsigned int`.
#[expect(clippy::cast_possible_truncation, reason = "the kernel cuts it the same way")]
const fn constant(request: libc::Ioctl) -> u32 {
    request as u32
}
