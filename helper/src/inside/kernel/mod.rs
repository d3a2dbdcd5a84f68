//! Numbers of the Linux user ABI, named as in its headers. [`layout`] has the structures. Data only.
//!
//! Sources: include/uapi/linux of Linux 6.18 and arch/x86/entry/syscalls/syscall_64.tbl.

mod layout;

pub(crate) use layout::*;

/// System call numbers of x86_64.
pub(crate) mod nr {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const POLL: usize = 7;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const IOCTL: usize = 16;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const SHUTDOWN: usize = 48;
    pub(crate) const BIND: usize = 49;
    pub(crate) const LISTEN: usize = 50;
    pub(crate) const SETSOCKOPT: usize = 54;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const KILL: usize = 62;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const FLOCK: usize = 73;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const FCHDIR: usize = 81;
    pub(crate) const UMASK: usize = 95;
    pub(crate) const SETPGID: usize = 109;
    pub(crate) const FACCESSAT: usize = 269;
    pub(crate) const SETSID: usize = 112;
    pub(crate) const GETPGID: usize = 121;
    pub(crate) const GETGROUPS: usize = 115;
    pub(crate) const SETGROUPS: usize = 116;
    pub(crate) const SETFSUID: usize = 122;
    pub(crate) const SETFSGID: usize = 123;
    pub(crate) const CAPGET: usize = 125;
    pub(crate) const CAPSET: usize = 126;
    pub(crate) const STATFS: usize = 137;
    pub(crate) const SETPRIORITY: usize = 141;
    pub(crate) const SCHED_SETSCHEDULER: usize = 144;
    pub(crate) const PIVOT_ROOT: usize = 155;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const MOUNT: usize = 165;
    pub(crate) const UMOUNT2: usize = 166;
    pub(crate) const SETHOSTNAME: usize = 170;
    pub(crate) const GETDENTS64: usize = 217;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const EPOLL_WAIT: usize = 232;
    pub(crate) const EPOLL_CTL: usize = 233;
    pub(crate) const KEYCTL: usize = 250;
    pub(crate) const IOPRIO_SET: usize = 251;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const MKDIRAT: usize = 258;
    pub(crate) const FCHMODAT: usize = 268;
    pub(crate) const UNLINKAT: usize = 263;
    pub(crate) const MKNODAT: usize = 259;
    pub(crate) const SYMLINKAT: usize = 266;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const SPLICE: usize = 275;
    pub(crate) const ACCEPT4: usize = 288;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const EPOLL_CREATE1: usize = 291;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PIPE2: usize = 293;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const STATX: usize = 332;
    pub(crate) const OPEN_TREE: usize = 428;
    pub(crate) const MOVE_MOUNT: usize = 429;
    pub(crate) const FSOPEN: usize = 430;
    pub(crate) const FSCONFIG: usize = 431;
    pub(crate) const FSMOUNT: usize = 432;
    pub(crate) const SETNS: usize = 308;
    pub(crate) const PIDFD_SEND_SIGNAL: usize = 424;
    pub(crate) const PIDFD_OPEN: usize = 434;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const CLOSE_RANGE: usize = 436;
    pub(crate) const OPENAT2: usize = 437;
    pub(crate) const MOUNT_SETATTR: usize = 442;
    pub(crate) const LANDLOCK_CREATE_RULESET: usize = 444;
    pub(crate) const LANDLOCK_ADD_RULE: usize = 445;
    pub(crate) const LANDLOCK_RESTRICT_SELF: usize = 446;
}

pub(crate) const SCHED_OTHER: usize = 0;
pub(crate) const PRIO_PROCESS: usize = 0;
pub(crate) const IOPRIO_WHO_PROCESS: usize = 1;

pub(crate) const ESRCH: i32 = 3;
pub(crate) const EINTR: i32 = 4;
pub(crate) const E2BIG: i32 = 7;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EACCES: i32 = 13;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENFILE: i32 = 23;
pub(crate) const ENOSYS: i32 = 38;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const ELIBACC: i32 = 79;
pub(crate) const EAFNOSUPPORT: i32 = 97;
pub(crate) const ECONNABORTED: i32 = 103;
pub(crate) const ENOBUFS: i32 = 105;
pub(crate) const ESTALE: i32 = 116;

pub(crate) const RLIMIT_RTTIME: u32 = 15;
pub(crate) const PR_SET_CHILD_SUBREAPER: u32 = 36;

pub(crate) const LOCK_EX: usize = 2;
pub(crate) const LOCK_NB: usize = 4;

pub(crate) const AT_FDCWD: i32 = -100;
pub(crate) const AT_REMOVEDIR: usize = 0x200;
pub(crate) const AT_EMPTY_PATH: usize = 0x1000;
pub(crate) const AT_RECURSIVE: usize = 0x8000;

pub(crate) const O_RDONLY: usize = 0;
pub(crate) const O_WRONLY: usize = 1;
pub(crate) const O_RDWR: usize = 2;
pub(crate) const O_CREAT: usize = 0o100;
pub(crate) const O_EXCL: usize = 0o200;
pub(crate) const O_NOCTTY: usize = 0o400;
pub(crate) const O_NONBLOCK: usize = 0o4000;
pub(crate) const O_DIRECTORY: usize = 0o200_000;
pub(crate) const O_NOFOLLOW: usize = 0o400_000;
pub(crate) const O_CLOEXEC: usize = 0o2_000_000;
pub(crate) const O_PATH: usize = 0o10_000_000;

pub(crate) const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
pub(crate) const RESOLVE_NO_SYMLINKS: u64 = 0x04;
pub(crate) const RESOLVE_IN_ROOT: u64 = 0x10;

pub(crate) const OPEN_TREE_CLONE: usize = 1;
pub(crate) const MOVE_MOUNT_F_EMPTY_PATH: usize = 0x04;
pub(crate) const MOVE_MOUNT_T_EMPTY_PATH: usize = 0x40;
pub(crate) const MNT_DETACH: usize = 2;
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 1;
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 2;
pub(crate) const MOUNT_ATTR_NODEV: u64 = 4;
pub(crate) const FSOPEN_CLOEXEC: usize = 1;
pub(crate) const FSMOUNT_CLOEXEC: usize = 1;
pub(crate) const FSCONFIG_SET_FLAG: usize = 0;
pub(crate) const FSCONFIG_SET_STRING: usize = 1;
pub(crate) const FSCONFIG_CMD_CREATE: usize = 6;
pub(crate) const MS_RDONLY: u64 = 1;
pub(crate) const MS_NOSUID: u64 = 2;
pub(crate) const MS_NODEV: u64 = 4;
pub(crate) const MS_BIND: u64 = 4096;
pub(crate) const MS_MOVE: u64 = 8192;
pub(crate) const MS_REC: u64 = 16384;
pub(crate) const MS_PRIVATE: u64 = 1 << 18;
pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;
pub(crate) const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
/// `struct statfs` in 64-bit words.
pub(crate) const STATFS_WORDS: usize = 15;
pub(crate) const MS_SLAVE: u64 = 1 << 19;
pub(crate) const S_IFREG: usize = 0o100_000;
pub(crate) const STATX_INO: usize = 0x100;
pub(crate) const STATX_TYPE: usize = 1;
pub(crate) const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;
pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFCHR: u32 = 0o020_000;

pub(crate) const PROT_READ: usize = 1;
pub(crate) const PROT_WRITE: usize = 2;
pub(crate) const MAP_PRIVATE: usize = 2;
pub(crate) const MAP_ANONYMOUS: usize = 0x20;

pub(crate) const CLONE_VM: usize = 0x100;
pub(crate) const CLONE_VFORK: usize = 0x4000;
pub(crate) const CLONE_NEWNS: usize = 0x0002_0000;
pub(crate) const CLONE_NEWUSER: u32 = 0x1000_0000;
pub(crate) const CLONE_NEWPID: usize = 0x2000_0000;
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

pub(crate) const SIGHUP: u32 = 1;
pub(crate) const SIGINT: u32 = 2;
pub(crate) const SIGKILL: u32 = 9;
pub(crate) const SIGTERM: u32 = 15;
pub(crate) const SIGCHLD: u32 = 17;
pub(crate) const SIGCONT: u32 = 18;
pub(crate) const SIGSTOP: u32 = 19;
pub(crate) const SIGTTIN: u32 = 21;
pub(crate) const SIGTTOU: u32 = 22;
pub(crate) const SIGWINCH: u32 = 28;
pub(crate) const SIG_SETMASK: usize = 2;
pub(crate) const SIG_DFL: usize = 0;
pub(crate) const SIG_IGN: usize = 1;
pub(crate) const CLOCK_MONOTONIC: usize = 1;
pub(crate) const CLOCK_BOOTTIME: usize = 7;
pub(crate) const SFD_CLOEXEC: usize = O_CLOEXEC;
pub(crate) const WNOHANG: usize = 1;
pub(crate) const WUNTRACED: usize = 2;
pub(crate) const POLLIN: i16 = 1;
pub(crate) const POLLHUP: i16 = 0x10;
pub(crate) const POLLERR: i16 = 0x08;

pub(crate) const EPOLL_CLOEXEC: usize = O_CLOEXEC;
pub(crate) const EPOLL_CTL_ADD: usize = 1;
pub(crate) const EPOLLIN: u32 = 0x01;
pub(crate) const EPOLLOUT: u32 = 0x04;
pub(crate) const EPOLLERR: u32 = 0x08;
pub(crate) const EPOLLHUP: u32 = 0x10;
pub(crate) const EPOLLRDHUP: u32 = 0x2000;
pub(crate) const EPOLLET: u32 = 1 << 31;
pub(crate) const SPLICE_F_MOVE: usize = 1;
pub(crate) const SPLICE_F_NONBLOCK: usize = 2;

pub(crate) const AF_UNIX: usize = 1;
pub(crate) const AF_INET: usize = 2;
pub(crate) const AF_INET6: usize = 10;
pub(crate) const SOCK_STREAM: usize = 1;
pub(crate) const SOCK_DGRAM: usize = 2;
pub(crate) const SOCK_CLOEXEC: usize = O_CLOEXEC;
pub(crate) const SOMAXCONN: usize = 4096;
pub(crate) const SOCK_NONBLOCK: usize = O_NONBLOCK;
pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const SO_LINGER: usize = 13;
pub(crate) const SHUT_WR: usize = 1;
pub(crate) const SCM_RIGHTS: i32 = 1;
pub(crate) const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
pub(crate) const MSG_CTRUNC: i32 = 0x08;
pub(crate) const MSG_TRUNC: i32 = 0x20;
pub(crate) const MSG_NOSIGNAL: usize = 0x4000;
pub(crate) const SIOCSIFADDR: usize = 0x8916;

/// `struct termios` of the kernel, in bytes.
pub(crate) const TERMIOS: usize = 36;
pub(crate) const TCSETS: usize = 0x5402;
pub(crate) const TIOCSCTTY: usize = 0x540E;
pub(crate) const TIOCGPGRP: usize = 0x540F;
pub(crate) const TIOCSPGRP: usize = 0x5410;
pub(crate) const TIOCGWINSZ: usize = 0x5413;
pub(crate) const TIOCSWINSZ: usize = 0x5414;
pub(crate) const TIOCSPTLCK: usize = 0x4004_5431;
pub(crate) const TIOCGPTPEER: usize = 0x5441;

pub(crate) const F_SETFD: usize = 2;
pub(crate) const F_SETFL: usize = 4;
pub(crate) const F_DUPFD_CLOEXEC: usize = 1030;

pub(crate) const PR_CAPBSET_DROP: usize = 24;
pub(crate) const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// One more than the highest capability number that fits into two 32-bit words.
pub(crate) const CAPABILITIES: usize = 64;
pub(crate) const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
pub(crate) const LANDLOCK_RULE_PATH_BENEATH: usize = 1;
pub(crate) const LANDLOCK_RULE_NET_PORT: usize = 2;
pub(crate) const SECCOMP_SET_MODE_FILTER: usize = 1;
