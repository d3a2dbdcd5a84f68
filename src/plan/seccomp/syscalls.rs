//! Which system calls are allowed, refused, hidden: lists, and why. No code. Calls whose arguments decide
//! are in `rules`. What is in no list is unknown and answers ENOSYS, so that programs take the path they
//! keep for older kernels; that includes every call Linux adds after this was written.
//!
//! Numbers are those of x86_64. A call is in one list only.

use libc::*;

use crate::plan::seccomp::syscalls::recent::*;

/// Calls that any program may make, whatever their arguments. The kernel's own checks stay, and nobody inside
/// has a capability.
pub(crate) const ALLOWED: &[&[c_long]] = &[
    DATA, FILES, DIRECTORIES, ATTRIBUTES, DESCRIPTORS, WAITING, SOCKETS, MEMORY, PROCESSES, IDENTITY, SIGNALS,
    SCHEDULING, CLOCKS, LOCKS, IPC, LIMITS, DEBUGGING, CONFINING,
];

/// Calls that reach beyond the sandbox or deep into the kernel: EPERM, as if for want of a capability.
pub(crate) const REFUSED: &[&[c_long]] =
    &[MOUNTS, NAMESPACES, HANDLES, KERNEL, KEYS, HOST_WIDE, HARDWARE, OTHERS_MEMORY, OBSOLETE];

/// Calls that answer ENOSYS, so that programs do without.
///
/// The flags or mode of openat2 and clone3 lie behind a pointer, where no filter sees them. C libraries and runtimes then
/// use openat and clone, whose arguments have rules, as on a kernel before 5.6 and 5.3.
///
/// How many contexts of io_setup(2) there may be is one number for the whole machine, /proc/sys/fs/aio-max-nr, which any
/// command could use up for everybody. Programs take threads instead, as on a kernel built without CONFIG_AIO.
pub(crate) const HIDDEN: &[c_long] = &[
    SYS_openat2, SYS_clone3, SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents,
    SYS_io_pgetevents,
];

/// Calls by which a zygote makes a worker and a worker its walls. They are refused to workers at the very last; until
/// then to nobody. Each is in one of the lists or rules too, which say what becomes of it.
pub(crate) const MAKING: &[c_long] = &[
    SYS_clone, SYS_unshare, SYS_mount, SYS_umount2, SYS_open_tree, SYS_move_mount, SYS_mount_setattr, SYS_openat2,
    SYS_keyctl,
    // Where commands have cgroups, workers are born in them by it.
    SYS_clone3,
];

/// Everything that a reaper does once it has given up its privileges. Any other call ends it.
pub(crate) const REAPING: &[c_long] = &[
    SYS_chdir, SYS_recvmsg, SYS_sendmsg, SYS_openat, SYS_flock, SYS_getdents64, SYS_unlinkat, SYS_write, SYS_poll,
    SYS_close, SYS_exit_group,
];

/// Everything that a bridge does once its walls stand, but socket(2), which has a rule. Any other call ends it.
pub(crate) const BRIDGING: &[c_long] = &[
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_accept4, SYS_connect, SYS_setsockopt, SYS_shutdown,
    SYS_pipe2, SYS_splice, SYS_close, SYS_recvmsg, SYS_sendmsg, SYS_clock_gettime, SYS_exit_group,
];

/// Bytes in and out of what is already open.
const DATA: &[c_long] = &[
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_sendfile, SYS_copy_file_range, SYS_splice, SYS_tee,
    SYS_vmsplice, SYS_readahead, SYS_fadvise64, SYS_fallocate, SYS_truncate, SYS_ftruncate, SYS_fsync,
    SYS_fdatasync, SYS_sync_file_range, SYS_syncfs, SYS_sync, SYS_cachestat,
];

/// Names and what they stand for; what may be seen and changed is up to the mounts and Landlock.
const FILES: &[c_long] = &[
    SYS_stat, SYS_fstat, SYS_lstat, SYS_newfstatat, SYS_statx, SYS_access, SYS_faccessat, SYS_faccessat2,
    SYS_readlink, SYS_readlinkat, SYS_rename, SYS_renameat, SYS_link, SYS_linkat, SYS_symlink,
    SYS_symlinkat, SYS_unlink, SYS_unlinkat, SYS_statfs, SYS_fstatfs, SYS_name_to_handle_at,
    SYS_inotify_init, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
];

/// Directories, and the mounts of the caller's own namespace (read only: /proc/self/mountinfo says the
/// same). mkdir(2) drops setuid and setgid from its mode by itself.
const DIRECTORIES: &[c_long] = &[
    SYS_getdents, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdir, SYS_mkdirat, SYS_rmdir,
    SYS_umask, SYS_statmount, SYS_listmount,
];

/// Owners, times and extended attributes; file capabilities and foreign owners need a capability.
const ATTRIBUTES: &[c_long] = &[
    SYS_chown, SYS_fchown, SYS_lchown, SYS_fchownat, SYS_utime, SYS_utimes, SYS_utimensat, SYS_futimesat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_setxattrat, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr,
    SYS_getxattrat, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_listxattrat, SYS_removexattr,
    SYS_lremovexattr, SYS_fremovexattr, SYS_removexattrat,
];

/// The caller's own descriptor table, and descriptors made from nothing.
const DESCRIPTORS: &[c_long] = &[
    SYS_close, SYS_close_range, SYS_dup, SYS_dup2, SYS_dup3, SYS_flock, SYS_pipe, SYS_pipe2,
    SYS_eventfd, SYS_eventfd2, SYS_signalfd, SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime,
    SYS_timerfd_gettime, SYS_memfd_create,
];

/// Waiting for descriptors.
const WAITING: &[c_long] = &[
    SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6, SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl,
    SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2,
];

/// Using sockets. Which kinds can be made, which options set, and how is sent, are rules; whom they reach is up to the network
/// namespace.
const SOCKETS: &[c_long] = &[
    SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_getsockname, SYS_getpeername,
    SYS_shutdown, SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg,
];

/// The caller's own address space; memory policy (mbind and its kin) is asked for by the JVM and databases.
const MEMORY: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_msync, SYS_mincore, SYS_mlock,
    SYS_mlock2, SYS_mlockall, SYS_munlock, SYS_munlockall, SYS_mseal, SYS_pkey_alloc, SYS_pkey_free,
    SYS_pkey_mprotect, SYS_map_shadow_stack, SYS_membarrier, SYS_mbind, SYS_set_mempolicy,
    SYS_get_mempolicy, SYS_set_mempolicy_home_node, SYS_process_madvise, SYS_process_mrelease,
];

/// Starting, ending and awaiting processes of one's own. The pid namespace hides all others.
const PROCESSES: &[c_long] = &[
    SYS_fork, SYS_vfork, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid,
    SYS_prctl, SYS_arch_prctl, SYS_set_tid_address, SYS_rseq, SYS_pidfd_open, SYS_pidfd_getfd,
    SYS_pidfd_send_signal, SYS_restart_syscall,
];

/// Who one is. Changes need a capability, except to what one is already.
const IDENTITY: &[c_long] = &[
    SYS_getpid, SYS_gettid, SYS_getppid, SYS_getpgid, SYS_setpgid, SYS_getpgrp, SYS_getsid, SYS_setsid,
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups,
    SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid,
    SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset, SYS_uname, SYS_sysinfo,
];

/// Signals, among processes of the same pid namespace.
const SIGNALS: &[c_long] = &[
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_sigaltstack, SYS_kill, SYS_tkill,
    SYS_tgkill, SYS_pause,
];

/// Priority and placement, within what rlimits and cgroup leave.
const SCHEDULING: &[c_long] = &[
    SYS_sched_yield, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
    SYS_sched_getaffinity, SYS_sched_getattr, SYS_getpriority,
    SYS_ioprio_get, SYS_getcpu,
];

/// Reading clocks, sleeping, timers of one's own.
const CLOCKS: &[c_long] = &[
    SYS_time, SYS_gettimeofday, SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_times, SYS_alarm, SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime,
    SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
];

/// What mutexes rest on.
const LOCKS: &[c_long] = &[
    SYS_futex, SYS_futex_waitv, SYS_futex_wake, SYS_futex_wait, SYS_futex_requeue, SYS_set_robust_list,
    SYS_get_robust_list,
];

/// System V and POSIX objects; the ipc namespace is the sandbox's own.
const IPC: &[c_long] = &[
    SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop, SYS_semtimedop, SYS_semctl,
    SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend,
    SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
];

/// Limits and usage. What sets limits is in `rules`.
const LIMITS: &[c_long] = &[SYS_getrlimit, SYS_getrusage, SYS_getrandom];

/// What debuggers and tracers need. Helper processes are not dumpable, the host's not visible. uretprobe is
/// what the kernel itself makes a process call that the host's administrator traces.
const DEBUGGING: &[c_long] =
    &[SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_uretprobe];

/// A program may confine itself further; a second filter only adds to this one.
const CONFINING: &[c_long] = &[
    SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    SYS_lsm_get_self_attr, SYS_lsm_list_modules,
];

/// The mount tree is the wall: nobody inside moves it.
const MOUNTS: &[c_long] = &[
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_open_tree_attr, SYS_move_mount,
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
];

/// Entering another namespace. Making one is refused by the rules on clone and unshare.
const NAMESPACES: &[c_long] = &[SYS_setns];

/// Files by number instead of by path, past every mount; and watching whole file systems.
const HANDLES: &[c_long] = &[SYS_open_by_handle_at, SYS_fanotify_init, SYS_fanotify_mark];

/// Large interfaces where most local holes of the last decade were; programs do without them. io_uring also
/// makes calls that no filter sees.
const KERNEL: &[c_long] = &[
    SYS_bpf, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_userfaultfd,
    SYS_perf_event_open,
];

/// Keyrings outlive processes, and no namespace of the sandbox holds them.
const KEYS: &[c_long] = &[SYS_add_key, SYS_request_key, SYS_keyctl];

/// One for the whole machine. clock_adjtime and adjtimex could also be asked to only read, but what they
/// are asked lies behind a pointer.
const HOST_WIDE: &[c_long] = &[
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname,
    SYS_setdomainname, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_acct, SYS_syslog, SYS_vhangup, SYS_quotactl,
    SYS_quotactl_fd, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
    SYS_kexec_file_load, SYS_lsm_set_self_attr,
];

/// Ports, and the segments that only 16- and 32-bit code needs, which could not make a call here anyway.
const HARDWARE: &[c_long] = &[SYS_iopl, SYS_ioperm, SYS_modify_ldt];

/// Moving another process's pages between memory nodes.
const OTHERS_MEMORY: &[c_long] = &[SYS_migrate_pages, SYS_move_pages];

/// Nothing current calls them; old kernels still have code behind them.
const OBSOLETE: &[c_long] =
    &[SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl, SYS_nfsservctl, SYS_lookup_dcookie];

/// Numbers that libc does not name yet (arch/x86/entry/syscalls/syscall_64.tbl).
#[expect(non_upper_case_globals, reason = "named as libc would name them")]
mod recent {
    use libc::c_long;

    pub(crate) const SYS_io_pgetevents: c_long = 333;
    pub(crate) const SYS_uretprobe: c_long = 335; // Linux 6.11
    pub(crate) const SYS_cachestat: c_long = 451; // Linux 6.5
    pub(crate) const SYS_map_shadow_stack: c_long = 453; // Linux 6.6
    pub(crate) const SYS_futex_wake: c_long = 454; // Linux 6.7, this and the next two
    pub(crate) const SYS_futex_wait: c_long = 455;
    pub(crate) const SYS_futex_requeue: c_long = 456;
    pub(crate) const SYS_statmount: c_long = 457; // Linux 6.8, this and the next four
    pub(crate) const SYS_listmount: c_long = 458;
    pub(crate) const SYS_lsm_get_self_attr: c_long = 459;
    pub(crate) const SYS_lsm_set_self_attr: c_long = 460;
    pub(crate) const SYS_lsm_list_modules: c_long = 461;
    pub(crate) const SYS_setxattrat: c_long = 463; // Linux 6.13, this and the next three
    pub(crate) const SYS_getxattrat: c_long = 464;
    pub(crate) const SYS_listxattrat: c_long = 465;
    pub(crate) const SYS_removexattrat: c_long = 466;
    pub(crate) const SYS_open_tree_attr: c_long = 467; // Linux 6.15
}
