//! The lists of system calls: which are allowed, refused, hidden, and why. Calls whose arguments decide are
//! in `rules`. A call in no list is unknown and gives ENOSYS, so that programs do what they do on older
//! kernels; that includes every call that Linux adds later.
//!
//! Numbers are those of x86_64. A call is in one list only.

use libc::*;

use crate::plan::seccomp::syscalls::recent::*;

/// Calls that any program may make with any arguments. The kernel's own checks stay, and no command has a
/// capability over the host.
pub(crate) const ALLOWED: &[&[c_long]] = &[
    DATA, FILES, DIRECTORIES, ATTRIBUTES, DESCRIPTORS, WAITING, SOCKETS, MEMORY, PROCESSES, IDENTITY, SIGNALS,
    SCHEDULING, CLOCKS, LOCKS, IPC, LIMITS, DEBUGGING, CONFINING,
];

/// Calls that reach beyond the sandbox or deep into the kernel. They give EPERM, as without a capability.
pub(crate) const REFUSED: &[&[c_long]] =
    &[MOUNTS, NAMESPACES, HANDLES, KERNEL, KEYS, HOST_WIDE, HARDWARE, OTHERS_MEMORY, OBSOLETE];

/// Calls that give ENOSYS, so that programs do without.
///
/// openat2 and clone3 have their flags and mode behind a pointer, where no filter sees them. C libraries and
/// runtimes then use openat and clone, whose arguments have rules, as on kernels before 5.6 and 5.3.
///
/// The number of io_setup(2) contexts is limited for the whole machine (/proc/sys/fs/aio-max-nr), so one
/// command could take them all. Programs then use threads, as on a kernel built without CONFIG_AIO.
pub(crate) const HIDDEN: &[c_long] = &[
    SYS_openat2, SYS_clone3, SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents,
    SYS_io_pgetevents,
];

/// Calls by which a zygote makes a worker, a worker its walls, and an init the marks of its workers. Only the
/// last filter of a worker refuses them. Each is also in one of the lists or rules, which give its verdict.
pub(crate) const WORKER_CREATION: &[c_long] = &[
    SYS_clone, SYS_unshare, SYS_mount, SYS_umount2, SYS_open_tree, SYS_move_mount, SYS_mount_setattr, SYS_openat2,
    SYS_keyctl, SYS_setns, SYS_setrlimit, SYS_prlimit64,
    // If commands have cgroups, workers are born in them by this call.
    SYS_clone3,
    // By this call a worker gives its capabilities up. Of root of another root it is pretended.
    SYS_capset,
];

/// Every call that a reaper makes after it has given up its privileges. Any other call ends it.
pub(crate) const REAPER: &[c_long] = &[
    SYS_chdir, SYS_recvmsg, SYS_sendmsg, SYS_openat, SYS_flock, SYS_getdents64, SYS_unlinkat, SYS_write, SYS_poll,
    SYS_close, SYS_exit_group,
];

/// Every call that a bridge makes behind its walls, except socket(2), which has a rule. Any other call ends
/// it.
pub(crate) const BRIDGE: &[c_long] = &[
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_accept4, SYS_connect, SYS_setsockopt, SYS_shutdown,
    SYS_pipe2, SYS_splice, SYS_close, SYS_recvmsg, SYS_sendmsg, SYS_clock_gettime, SYS_exit_group,
];

/// Reading and writing open files.
const DATA: &[c_long] = &[
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_sendfile, SYS_copy_file_range, SYS_splice, SYS_tee,
    SYS_vmsplice, SYS_readahead, SYS_fadvise64, SYS_fallocate, SYS_truncate, SYS_ftruncate, SYS_fsync,
    SYS_fdatasync, SYS_sync_file_range, SYS_syncfs, SYS_sync, SYS_cachestat,
];

/// Names of files. The mounts and Landlock decide what a command sees and changes.
const FILES: &[c_long] = &[
    SYS_stat, SYS_fstat, SYS_lstat, SYS_newfstatat, SYS_statx, SYS_access, SYS_faccessat, SYS_faccessat2,
    SYS_readlink, SYS_readlinkat, SYS_rename, SYS_renameat, SYS_link, SYS_linkat, SYS_symlink,
    SYS_symlinkat, SYS_unlink, SYS_unlinkat, SYS_statfs, SYS_fstatfs, SYS_name_to_handle_at,
    SYS_inotify_init, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
];

/// Directories, and reading the mounts of the caller's own namespace, which /proc/self/mountinfo shows too.
/// mkdir(2) itself drops setuid and setgid from its mode.
const DIRECTORIES: &[c_long] = &[
    SYS_getdents, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdir, SYS_mkdirat, SYS_rmdir,
    SYS_umask, SYS_statmount, SYS_listmount,
];

/// Times and extended attributes. File capabilities need a capability. Modes and owners are in `rules`.
const ATTRIBUTES: &[c_long] = &[
    SYS_utime, SYS_utimes, SYS_utimensat, SYS_futimesat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_setxattrat, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr,
    SYS_getxattrat, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_listxattrat, SYS_removexattr,
    SYS_lremovexattr, SYS_fremovexattr, SYS_removexattrat,
];

/// The caller's own descriptor table, and descriptors that refer to no file.
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

/// Using sockets. Rules decide on their kinds, options and send flags; the network namespace decides what
/// they reach.
const SOCKETS: &[c_long] = &[
    SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_getsockname, SYS_getpeername,
    SYS_shutdown, SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg,
];

/// The caller's own address space. The JVM and databases use memory policy (mbind and related calls).
const MEMORY: &[c_long] = &[
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_msync, SYS_mincore, SYS_mlock,
    SYS_mlock2, SYS_mlockall, SYS_munlock, SYS_munlockall, SYS_mseal, SYS_pkey_alloc, SYS_pkey_free,
    SYS_pkey_mprotect, SYS_map_shadow_stack, SYS_membarrier, SYS_mbind, SYS_set_mempolicy,
    SYS_get_mempolicy, SYS_set_mempolicy_home_node, SYS_process_madvise, SYS_process_mrelease,
];

/// Starting, ending and awaiting the caller's own processes. The pid namespace hides all others.
const PROCESSES: &[c_long] = &[
    SYS_fork, SYS_vfork, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid,
    SYS_prctl, SYS_arch_prctl, SYS_set_tid_address, SYS_rseq, SYS_pidfd_open, SYS_pidfd_getfd,
    SYS_pidfd_send_signal, SYS_restart_syscall,
];

/// The caller's identity. Changes need a capability, except to an id that it already has.
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

/// Priority and processors, within the rlimits and the cgroup.
const SCHEDULING: &[c_long] = &[
    SYS_sched_yield, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
    SYS_sched_getaffinity, SYS_sched_getattr, SYS_getpriority,
    SYS_ioprio_get, SYS_getcpu,
];

/// Clocks, sleeping, and the caller's own timers.
const CLOCKS: &[c_long] = &[
    SYS_time, SYS_gettimeofday, SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_times, SYS_alarm, SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime,
    SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
];

/// The basis of mutexes.
const LOCKS: &[c_long] = &[
    SYS_futex, SYS_futex_waitv, SYS_futex_wake, SYS_futex_wait, SYS_futex_requeue, SYS_set_robust_list,
    SYS_get_robust_list,
];

/// System V and POSIX objects. The ipc namespace belongs to the sandbox.
const IPC: &[c_long] = &[
    SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop, SYS_semtimedop, SYS_semctl,
    SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_unlink, SYS_mq_timedsend,
    SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
];

/// Limits and usage. Calls that set limits are in `rules`.
const LIMITS: &[c_long] = &[SYS_getrlimit, SYS_getrusage, SYS_getrandom];

/// For debuggers and tracers. Kennel's processes are not dumpable, and those of the host are not visible. The
/// kernel makes a process call uretprobe if the host's administrator traces it.
const DEBUGGING: &[c_long] =
    &[SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_uretprobe];

/// A program may confine itself further: a second filter only adds to this one.
const CONFINING: &[c_long] = &[
    SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    SYS_lsm_get_self_attr, SYS_lsm_list_modules,
];

/// The mounts are the wall, so no command changes them.
const MOUNTS: &[c_long] = &[
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_open_tree, SYS_open_tree_attr, SYS_move_mount,
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
];

/// Entering another namespace. The rules on clone and unshare refuse making one.
const NAMESPACES: &[c_long] = &[SYS_setns];

/// Opening files by handle instead of by path, which bypasses every mount; and watching whole file systems.
const HANDLES: &[c_long] = &[SYS_open_by_handle_at, SYS_fanotify_init, SYS_fanotify_mark];

/// Large interfaces with most of the local holes of the last decade. Programs do without them. io_uring also
/// makes calls that no filter sees.
const KERNEL: &[c_long] = &[
    SYS_bpf, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_userfaultfd,
    SYS_perf_event_open,
];

/// Keyrings outlive processes, and no namespace of the sandbox contains them.
const KEYS: &[c_long] = &[SYS_add_key, SYS_request_key, SYS_keyctl];

/// State of the whole machine. clock_adjtime and adjtimex can also just read, but only memory behind a
/// pointer says which.
const HOST_WIDE: &[c_long] = &[
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname,
    SYS_setdomainname, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_acct, SYS_syslog, SYS_vhangup, SYS_quotactl,
    SYS_quotactl_fd, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
    SYS_kexec_file_load, SYS_lsm_set_self_attr,
];

/// Ports, and segments for 16- and 32-bit code, which could make no system call here anyway.
const HARDWARE: &[c_long] = &[SYS_iopl, SYS_ioperm, SYS_modify_ldt];

/// Moving pages of another process between memory nodes.
const OTHERS_MEMORY: &[c_long] = &[SYS_migrate_pages, SYS_move_pages];

/// No current program calls these; old kernels still have code behind them.
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
