//! Structures that the kernel reads and writes. Data only; sources as in [`kernel`](super).

/// `struct open_how`.
#[repr(C)]
pub(crate) struct OpenHow {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

/// `struct mount_attr`.
#[repr(C)]
pub(crate) struct MountAttr {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) userns: u64,
}

/// The head of `struct statx`, and its spare fields.
#[repr(C)]
pub(crate) struct Statx {
    pub(crate) mask: u32,
    pub(crate) block_size: u32,
    pub(crate) attributes: u64,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    pub(crate) inode: u64,
    pub(crate) sizes_and_times: [u64; 11],
    pub(crate) special_device: [u32; 2],
    pub(crate) device_major: u32,
    pub(crate) device_minor: u32,
    pub(crate) spare: [u64; 14],
}

/// `struct landlock_ruleset_attr`.
#[repr(C)]
pub(crate) struct RulesetAttr {
    pub(crate) fs: u64,
    pub(crate) net: u64,
    pub(crate) scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
pub(crate) struct PathBeneathAttr {
    pub(crate) access: u64,
    pub(crate) parent: i32,
}

/// `struct landlock_net_port_attr`.
#[repr(C)]
pub(crate) struct NetPortAttr {
    pub(crate) access: u64,
    pub(crate) port: u64,
}

/// `struct clone_args`: pidfd, child_tid, parent_tid; stack, its size, tls, set_tid, its size.
#[repr(C)]
pub(crate) struct CloneArgs {
    pub(crate) flags: u64,
    pub(crate) handles: [u64; 3],
    pub(crate) exit_signal: u64,
    pub(crate) memory: [u64; 5],
    pub(crate) cgroup: u64,
}

/// `struct pollfd`.
#[repr(C)]
pub(crate) struct PollFd {
    pub(crate) fd: i32,
    pub(crate) events: i16,
    pub(crate) answered: i16,
}

/// `struct epoll_event`, packed on x86_64.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct EpollEvent {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// `struct linger`.
#[repr(C)]
pub(crate) struct Linger {
    pub(crate) on: i32,
    pub(crate) seconds: i32,
}

/// `struct iovec`.
#[repr(C)]
pub(crate) struct IoVec {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
}

/// `struct msghdr`.
#[repr(C)]
pub(crate) struct MsgHdr {
    pub(crate) name: usize,
    pub(crate) name_length: usize,
    pub(crate) vectors: *mut IoVec,
    pub(crate) vector_count: usize,
    pub(crate) control: *mut u8,
    pub(crate) control_length: usize,
    pub(crate) flags: i32,
}

/// `struct cmsghdr` with up to four descriptors behind it.
#[repr(C, align(8))]
pub(crate) struct Rights {
    pub(crate) length: usize,
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) descriptors: [i32; 4],
}

/// `struct sockaddr_in`.
#[repr(C)]
pub(crate) struct SockaddrIn {
    pub(crate) family: u16,
    pub(crate) port: [u8; 2],
    pub(crate) address: [u8; 4],
    pub(crate) zero: [u8; 8],
}

/// `struct sockaddr_in6`.
#[repr(C)]
pub(crate) struct SockaddrIn6 {
    pub(crate) family: u16,
    pub(crate) port: [u8; 2],
    pub(crate) flow: u32,
    pub(crate) address: [u8; 16],
    pub(crate) scope: u32,
}

/// The head of `struct rusage`, and its unused counters.
#[repr(C)]
pub(crate) struct Rusage {
    pub(crate) user_s: u64,
    pub(crate) user_us: u64,
    pub(crate) system_s: u64,
    pub(crate) system_us: u64,
    pub(crate) max_rss_kib: u64,
    pub(crate) rest: [u64; 13],
}

/// `struct sigaction` in the kernel's layout.
#[repr(C)]
pub(crate) struct Sigaction {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

/// `struct sock_fprog`.
#[repr(C)]
pub(crate) struct SockFprog {
    pub(crate) length: u16,
    pub(crate) filter: *const u8,
}

/// `struct ifreq`.
#[repr(C, align(8))]
pub(crate) struct IfReq {
    pub(crate) name: [u8; 16],
    pub(crate) value: [u8; 24],
}
