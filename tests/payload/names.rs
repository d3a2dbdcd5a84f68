//! Numbers of the system calls that tests name. A number is a name too.

macro_rules! table {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name)),*]
    };
}

/// As libc spells them, with their prefix.
const NAMES: &[(&str, libc::c_long)] = table! {
    SYS_acct SYS_add_key SYS_adjtimex SYS_bind SYS_bpf SYS_capset SYS_chdir SYS_chmod SYS_chown SYS_chroot
    SYS_clock_settime SYS_clone SYS_clone3 SYS_close SYS_close_range SYS_connect SYS_creat SYS_delete_module SYS_dup SYS_dup2
    SYS_execve SYS_execveat SYS_fanotify_init SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat SYS_fcntl
    SYS_finit_module SYS_flock SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_fspick SYS_ftruncate
    SYS_getdents64 SYS_getgroups SYS_init_module SYS_ioctl SYS_ioperm SYS_iopl SYS_io_uring_enter
    SYS_io_setup SYS_io_uring_register SYS_io_uring_setup SYS_ioprio_set SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_kill
    SYS_landlock_create_ruleset SYS_lchown SYS_link SYS_linkat SYS_listen SYS_lookup_dcookie SYS_memfd_create SYS_migrate_pages SYS_mkdir SYS_mkdirat SYS_mknod
    SYS_mknodat SYS_modify_ldt SYS_mount SYS_mount_setattr SYS_move_mount SYS_move_pages SYS_mq_open SYS_mq_unlink
    SYS_name_to_handle_at SYS_open SYS_openat SYS_openat2 SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open
    SYS_personality SYS_pidfd_getfd SYS_pidfd_open SYS_pidfd_send_signal SYS_pivot_root SYS_prctl SYS_prlimit64
    SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace SYS_quotactl SYS_read SYS_readlink SYS_reboot
    SYS_removexattr SYS_rename SYS_renameat SYS_renameat2 SYS_request_key SYS_rmdir SYS_rt_sigqueueinfo
    SYS_sched_setscheduler SYS_seccomp SYS_sendto SYS_setdomainname SYS_setgid SYS_setgroups SYS_sethostname SYS_setns
    SYS_setpriority SYS_setresuid SYS_setrlimit SYS_setsockopt SYS_settimeofday SYS_setuid SYS_setxattr SYS_shmctl SYS_shmget
    SYS_socket SYS_socketpair SYS_stat SYS_statfs SYS_swapoff SYS_swapon SYS_symlink SYS_symlinkat SYS_syslog
    SYS_tgkill SYS_tkill SYS_truncate SYS_umount2 SYS_unlink SYS_unlinkat SYS_unshare SYS_uselib SYS_userfaultfd
    SYS_utimensat SYS_vhangup SYS_write
};

/// The number of `name`: of the call, or the number that it spells.
pub(crate) fn number_of(name: &str) -> Option<i64> {
    let known = NAMES.iter().find(|(known, _)| known.strip_prefix("SYS_") == Some(name));
    known.map(|(_, number)| *number).or_else(|| name.parse().ok())
}
