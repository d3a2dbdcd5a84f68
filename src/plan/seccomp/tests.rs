//! The promises of the filter, one test for each, with the exact errno. `oracle` tests that the compiler
//! follows the rules.

pub(crate) mod interpreter;
pub(crate) mod oracle;

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, EAFNOSUPPORT, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT,
    ESOCKTNOSUPPORT, c_int, c_long,
};

use crate::plan::seccomp::observed::OBSERVED;
use crate::plan::seccomp::rule::{FilterQuestion, FilterUser, FilterVerdict};
use crate::plan::seccomp::tests::interpreter::{Call, Run, X86_64};
use crate::plan::seccomp::{
    asking_about_files, asking_about_paths, bytes, for_bridge, for_reaper, for_worker, for_zygote, full,
    rules, syscalls,
};

const HIGH_BITS: u64 = 0xdead_beef_0000_0000;

const ORDINARY: FilterUser = FilterUser::Ordinary;

fn run(call: c_long, arguments: &[u64]) -> Run {
    run_as(ORDINARY, call, arguments)
}

fn run_as(user: FilterUser, call: c_long, arguments: &[u64]) -> Run {
    let mut padded = [0; 6];
    padded[..arguments.len()].copy_from_slice(arguments);
    let number = u32::try_from(call).expect("a number");
    interpreter::run(full(user), &Call { number, arch: X86_64, arguments: padded })
}

fn assert_allowed(call: c_long, arguments: &[u64]) {
    assert_eq!(run(call, arguments).action, libc::SECCOMP_RET_ALLOW, "call {call}{arguments:x?}");
}

fn assert_refused(call: c_long, arguments: &[u64], errno: c_int) {
    assert_eq!(
        run(call, arguments).action,
        FilterVerdict::refuse(errno).encode(),
        "call {call}{arguments:x?}"
    );
}

fn assert_asked(call: c_long, arguments: &[u64], question: FilterQuestion) {
    assert_eq!(
        run(call, arguments).action,
        FilterVerdict::Ask(question).encode(),
        "call {call}{arguments:x?}"
    );
}

fn bits(int: c_int) -> u64 {
    u64::from(int.cast_unsigned())
}

fn all_lists() -> impl Iterator<Item = c_long> {
    let plain = syscalls::ALLOWED.iter().chain(syscalls::REFUSED).flat_map(|group| group.iter());
    plain.chain(syscalls::HIDDEN).chain(rules::RULES.iter().flat_map(|rule| rule.calls)).copied()
}

#[test]
fn the_kernel_accepts_the_program_and_it_is_small() {
    interpreter::check(full(ORDINARY));
    let longest = all_lists().map(|call| run(call, &[]).steps).max();
    assert!(full(ORDINARY).len() < 370, "{} instructions", full(ORDINARY).len());
    assert!(longest < Some(48), "{longest:?} steps");
}

#[test]
fn new_files_are_asked_about_and_everything_else_is_as_it_was() {
    let program = asking_about_files(full(ORDINARY).to_vec());
    interpreter::check(&program);
    let exclusive = bits(libc::O_CREAT | libc::O_EXCL);
    let asked = |number: u32, arguments: [u64; 6], arch| {
        let call = Call { number, arch, arguments };
        let action = interpreter::run(&program, &call).action;
        let is_asked = action == libc::SECCOMP_RET_USER_NOTIF;
        assert!(is_asked || action == interpreter::run(full(ORDINARY), &call).action, "{call:?}");
        is_asked
    };
    for number in (0..600).chain([0x4000_0000, u32::MAX]) {
        let is = |call: &c_long| u32::try_from(*call) == Ok(number);
        let by_path = [libc::SYS_unlink, libc::SYS_rename, libc::SYS_chmod].iter().any(is);
        assert_eq!(asked(number, [0; 6], X86_64), by_path, "{number}");
        assert!(!asked(number, [exclusive; 6], X86_64 - 1), "{number}");
    }
    for (call, flags) in [(libc::SYS_open, 1), (libc::SYS_openat, 2)] {
        let number = u32::try_from(call).expect("a number");
        let with = |value| {
            let mut arguments = [0; 6];
            arguments[flags] = value;
            arguments
        };
        assert!(asked(number, with(exclusive | HIGH_BITS), X86_64));
        assert!(!asked(number, with(bits(libc::O_CREAT)), X86_64));
    }
}

#[test]
fn paths_are_asked_about_and_everything_else_is_as_it_was() {
    let program = asking_about_paths(full(ORDINARY).to_vec());
    interpreter::check(&program);
    let listed = |number: u32| OBSERVED.iter().any(|call| call.number == i64::from(number));
    for number in (0..600).chain([0x4000_0000, 0x4000_0101, u32::MAX]) {
        for arch in [X86_64, X86_64 - 1] {
            let call = Call { number, arch, arguments: [bits(libc::O_CREAT); 6] };
            let answer = interpreter::run(&program, &call).action;
            let asks = listed(number) && arch == X86_64;
            let plain = interpreter::run(full(ORDINARY), &call).action;
            assert_eq!(answer, if asks { libc::SECCOMP_RET_USER_NOTIF } else { plain }, "{call:?}");
        }
    }
    let owners = [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
    assert!(OBSERVED.iter().all(|call| !owners.contains(&call.number)), "the listener knows no own ids");
    let neighbours: Vec<_> = OBSERVED.iter().map(|call| call.number).collect();
    let mut once = neighbours.clone();
    once.dedup();
    assert_eq!(
        once.len(),
        once.iter().collect::<std::collections::HashSet<_>>().len(),
        "entries of one call"
    );
}

#[test]
fn a_worker_adds_little_to_what_it_inherits() {
    interpreter::check(for_zygote(ORDINARY));
    interpreter::check(for_worker(ORDINARY));
    assert!(for_worker(ORDINARY).len() < 56, "{} instructions", for_worker(ORDINARY).len());
}

#[test]
fn a_zygote_can_make_workers_and_a_command_cannot() {
    for number in syscalls::WORKER_CREATION {
        let number = u32::try_from(*number).expect("a number");
        let arguments = match i64::from(number) {
            libc::SYS_setrlimit => [libc::RLIMIT_RTTIME.into(), 1, 0, 0, 0, 0],
            libc::SYS_prlimit64 => [0, libc::RLIMIT_RTTIME.into(), 1, 0, 0, 0],
            _ => [bits(libc::CLONE_NEWNS), 0, 0, 0, 0, 0],
        };
        let call = Call { number, arch: X86_64, arguments };
        for user in [FilterUser::Ordinary, FilterUser::FakeRoot] {
            assert_eq!(interpreter::run(for_zygote(user), &call).action, libc::SECCOMP_RET_ALLOW, "{number}");
            // The kernel lets nobody take capabilities.
            let is_harmless = i64::from(number) == libc::SYS_capset && user == FilterUser::Ordinary;
            let is_allowed = interpreter::run(for_worker(user), &call).action == libc::SECCOMP_RET_ALLOW;
            assert_eq!(is_allowed, is_harmless, "{number}");
        }
    }
}

#[test]
fn a_bridge_makes_its_calls_and_no_other() {
    let program = for_bridge();
    interpreter::check(&program);
    assert!(program.len() < 64, "{} instructions", program.len());
    let action = |number: u32, first: u64| {
        let call = Call { number, arch: X86_64, arguments: [first, 0, 0, 0, 0, 0] };
        interpreter::run(&program, &call).action
    };
    let socket = u32::try_from(libc::SYS_socket).expect("a number");
    for number in (0..600).chain([0x4000_0000, u32::MAX]).filter(|number| *number != socket) {
        let allowed = syscalls::BRIDGE.contains(&number.into());
        let expected = if allowed { libc::SECCOMP_RET_ALLOW } else { libc::SECCOMP_RET_KILL_PROCESS };
        assert_eq!(action(number, 0), expected, "{number}");
    }
    assert_eq!(action(socket, bits(AF_UNIX)), libc::SECCOMP_RET_ALLOW);
    for family in [AF_INET, AF_INET6, AF_NETLINK, libc::AF_PACKET] {
        assert_eq!(action(socket, bits(family)), libc::SECCOMP_RET_KILL_PROCESS, "{family}");
    }
}

#[test]
fn a_reaper_makes_its_calls_and_no_other() {
    let program = for_reaper();
    interpreter::check(&program);
    for number in (0..600).chain([0x4000_0000, u32::MAX]) {
        let allowed = syscalls::REAPER.contains(&number.into());
        let expected = if allowed { libc::SECCOMP_RET_ALLOW } else { libc::SECCOMP_RET_KILL_PROCESS };
        let call = Call { number, arch: X86_64, arguments: [0; 6] };
        assert_eq!(interpreter::run(&program, &call).action, expected, "{number}");
    }
}

#[test]
fn bytes_are_eight_per_instruction_in_kernel_layout() {
    let bytes = bytes(full(ORDINARY));
    assert_eq!(bytes.len(), full(ORDINARY).len() * 8);
    assert_eq!(bytes[..8], [0x20, 0, 0, 0, 4, 0, 0, 0], "the first loads the calling convention");
}

#[test]
fn the_kernel_can_cache_every_allowed_call() {
    for call in syscalls::ALLOWED.iter().flat_map(|group| group.iter()) {
        let run = run(*call, &[]);
        assert!(
            !run.saw_arguments && run.action == libc::SECCOMP_RET_ALLOW && run.steps <= 12,
            "{call} {run:?}"
        );
    }
}

#[test]
fn i386_calls_are_killed() {
    for arch in [0x4000_0003, 0, X86_64 ^ 1, 0xc000_00b7] {
        let call = Call { number: 0, arch, arguments: [0; 6] };
        assert_eq!(interpreter::run(full(ORDINARY), &call).action, libc::SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn x32_calls_are_killed() {
    for number in [0x4000_0000, 0x4000_0001, 0x4000_0000 + libc::SYS_openat, 0x7fff_ffff, 0xffff_fffe] {
        assert_eq!(run(number, &[]).action, libc::SECCOMP_RET_KILL_PROCESS, "{number:x}");
    }
}

#[test]
fn unknown_and_skipped_calls_do_not_exist() {
    for number in [337, 423, 471, 511, 512, 600, 0x3fff_ffff, 0xffff_ffff] {
        assert_refused(number, &[], ENOSYS);
    }
}

#[test]
fn calls_with_flags_behind_a_pointer_do_not_exist() {
    assert_refused(libc::SYS_openat2, &[], ENOSYS);
    assert_refused(libc::SYS_clone3, &[], ENOSYS);
}

#[test]
fn calls_with_a_limit_of_the_whole_machine_do_not_exist() {
    for call in [libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents, 333] {
        assert_refused(call, &[], ENOSYS);
    }
}

#[test]
fn leases_are_refused() {
    for command in [libc::F_SETLEASE, 1040] {
        let command = u64::from(command.cast_unsigned());
        assert_refused(libc::SYS_fcntl, &[3, command, 0], EPERM);
        assert_refused(libc::SYS_fcntl, &[3, command | HIGH_BITS, 1], EPERM);
    }
    for command in [libc::F_GETFD, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_GETLEASE, libc::F_ADD_SEALS] {
        assert_allowed(libc::SYS_fcntl, &[3, u64::from(command.cast_unsigned())]);
    }
}

#[test]
fn known_dangers_are_refused() {
    for call in [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_mount_setattr,
        467, // open_tree_attr
        libc::SYS_setns,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_finit_module,
        libc::SYS_kexec_file_load,
        libc::SYS_open_by_handle_at,
        libc::SYS_syslog,
        libc::SYS_reboot,
    ] {
        assert_refused(call, &[], EPERM);
    }
}

#[test]
fn debuggers_and_nested_sandboxes_work() {
    for call in [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_seccomp,
        libc::SYS_landlock_restrict_self,
    ] {
        assert_allowed(call, &[]);
    }
}

#[test]
fn clone_makes_processes_but_no_namespaces() {
    assert_allowed(libc::SYS_clone, &[bits(libc::SIGCHLD)]);
    assert_allowed(libc::SYS_clone, &[0x003d_0f00]); // A thread, as glibc makes it.
    assert_allowed(libc::SYS_clone, &[0x4111]); // vfork
    for bit in [17, 25, 26, 27, 28, 29, 30] {
        assert_refused(libc::SYS_clone, &[1 << bit | bits(libc::SIGCHLD)], EPERM);
        assert_refused(libc::SYS_clone, &[1 << bit | HIGH_BITS], EPERM);
        assert_refused(libc::SYS_unshare, &[1 << bit], EPERM);
    }
}

#[test]
fn unshare_takes_plain_flags_only() {
    assert_allowed(libc::SYS_unshare, &[bits(libc::CLONE_FS | libc::CLONE_FILES)]);
    assert_refused(libc::SYS_unshare, &[bits(libc::CLONE_NEWTIME)], EPERM);
    assert_refused(libc::SYS_unshare, &[0x0010_0000], EPERM); // UNSHARE_EMPTY_MNTNS
    assert_refused(libc::SYS_unshare, &[1 << 37], EPERM);
}

#[test]
fn tiocsti_is_refused() {
    assert_refused(libc::SYS_ioctl, &[0, 0x5412], EPERM);
    assert_refused(libc::SYS_ioctl, &[0, 0x541c], EPERM);
    assert_allowed(libc::SYS_ioctl, &[0, 0x5401]); // TCGETS
    assert_allowed(libc::SYS_ioctl, &[0x5412, 0x5413, 0x5412]); // TIOCGWINSZ
}

#[test]
fn subvolumes_are_neither_made_nor_destroyed_and_copies_are_made() {
    let of_btrfs =
        [0x5000_9401, 0x5000_9417, 0x5000_940e, 0x5000_9418, 0x5000_940f, 0x5000_943f, 0x4008_941a];
    let of_bcachefs = [0x4020_bc10, 0x4020_bc11, 0x4030_bc1d, 0x4030_bc1e];
    for request in of_btrfs.into_iter().chain(of_bcachefs) {
        assert_refused(libc::SYS_ioctl, &[3, request], EPERM);
        assert_refused(libc::SYS_ioctl, &[3, request | HIGH_BITS], EPERM);
    }
    for request in [0x4004_9409, 0x4020_940d, 0xc018_9436] {
        assert_allowed(libc::SYS_ioctl, &[3, request]); // FICLONE, FICLONERANGE, FIDEDUPERANGE
    }
}

#[test]
fn keys_of_encrypted_directories_are_neither_added_nor_removed() {
    for request in [0xc050_6617, 0xc040_6618, 0xc040_6619] {
        assert_refused(libc::SYS_ioctl, &[3, request], EPERM);
        assert_refused(libc::SYS_ioctl, &[3, request | HIGH_BITS], EPERM);
    }
    for request in [0xc009_6616, 0xc080_661a] {
        assert_allowed(libc::SYS_ioctl, &[3, request]); // FS_IOC_GET_ENCRYPTION_POLICY_EX, FS_IOC_GET_ENCRYPTION_KEY_STATUS
    }
}

/// With a limit of 0 the kernel would start the host's core handler.
#[test]
fn limit_of_cores_seems_to_be_set_and_is_not() {
    let pretends = |call, arguments: &[u64]| {
        assert_eq!(run(call, arguments).action, libc::SECCOMP_RET_ERRNO, "call {call}{arguments:x?}");
    };
    let (core, files, pointer) =
        (u64::from(libc::RLIMIT_CORE), u64::from(libc::RLIMIT_NOFILE), 0x7fff_0000_1000);
    pretends(libc::SYS_setrlimit, &[core, pointer]);
    pretends(libc::SYS_setrlimit, &[core | HIGH_BITS, pointer]);
    for process in [0, 7] {
        assert_allowed(libc::SYS_prlimit64, &[process, core, 0, pointer]);
        assert_allowed(libc::SYS_prlimit64, &[process, files, pointer, pointer]);
        for new in [pointer, 1 << 32, 1] {
            pretends(libc::SYS_prlimit64, &[process, core, new, 0]);
            assert_refused(libc::SYS_prlimit64, &[process, core, new, 1 << 32], EPERM);
        }
    }
    assert_allowed(libc::SYS_setrlimit, &[files, pointer]);
    assert_refused(libc::SYS_prlimit64, &[1, core, 0, pointer], EPERM);
}

#[test]
fn tiocsti_with_high_bits_is_refused() {
    assert_refused(libc::SYS_ioctl, &[0, 0x5412 | HIGH_BITS], EPERM);
    assert_refused(libc::SYS_ioctl, &[0, 0x541c | 1 << 32], EPERM);
}

#[test]
fn tioccons_and_line_disciplines_are_refused() {
    assert_refused(libc::SYS_ioctl, &[0, 0x541d], EPERM);
    assert_refused(libc::SYS_ioctl, &[0, 0x5423], EPERM);
}

#[test]
fn networks_of_passed_sockets_cannot_be_changed() {
    for request in (0x8914..=0x891e)
        .step_by(2)
        .chain([0x890b, 0x890c, 0x8922, 0x8923, 0x8924, 0x8936, 0x8943, 0x894c])
        .chain([0x8953, 0x8955, 0x8990, 0x89a0, 0x89a3, 0x89b0, 0x89e0, 0x89f1, 0x89ff, 0x8b00, 0x8b1a])
    {
        assert_refused(libc::SYS_ioctl, &[3, request], EPERM);
        assert_refused(libc::SYS_ioctl, &[3, request | HIGH_BITS], EPERM);
    }
    assert_refused(libc::SYS_ioctl, &[3, 0x8946], EOPNOTSUPP); // SIOCETHTOOL
    for request in [
        0x8901,
        0x8902,
        0x8905,
        0x8906,
        0x8910,
        0x8912,
        0x8913,
        0x8915,
        0x8919,
        0x891b,
        0x891d,
        0x8921,
        0x8927,
        0x8933,
        0x8935,
        0x8942,
        0x894b,
        0x8954,
        0x8970,
        0x89b1,
        0x8b01,
        0x8b1b,
        0x541b,
        0x8014_8914,
    ] {
        assert_allowed(libc::SYS_ioctl, &[3, request]);
    }
}

#[test]
fn options_that_only_a_networks_administrator_may_set_are_refused() {
    let set = [(1, 32), (1, 33), (1, 36), (1, 75), (6, 19), (0, 16), (0, 17), (41, 34), (41, 35)];
    let tables =
        [(0, 64), (0, 65), (0, 66), (0, 67), (0, 68), (0, 96), (41, 64), (41, 65), (41, 68), (41, 69)];
    for (level, option) in set.into_iter().chain(tables) {
        assert_refused(libc::SYS_setsockopt, &[3, level, option], EPERM);
        assert_refused(libc::SYS_getsockopt, &[3, level, option], EPERM);
        assert_refused(libc::SYS_setsockopt, &[3, level | HIGH_BITS, option | HIGH_BITS], EPERM);
    }
    // SO_REUSEADDR, SO_ERROR, SO_BINDTODEVICE, TCP_NODELAY, IP_TOS, SO_ORIGINAL_DST, IPV6_V6ONLY,
    // IPV6_TCLASS.
    for (level, option) in
        [(1, 2), (1, 4), (1, 25), (6, 1), (0, 1), (0, 80), (41, 26), (41, 66), (41, 67), (1, 64)]
    {
        assert_allowed(libc::SYS_setsockopt, &[3, level, option]);
        assert_allowed(libc::SYS_getsockopt, &[3, level, option]);
    }
}

#[test]
fn sockets_are_unix_internet_or_route() {
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        assert_allowed(call, &[bits(AF_UNIX), 2]);
        assert_allowed(call, &[bits(AF_INET), 0x0008_0001, 6]);
        assert_allowed(call, &[bits(AF_INET6) | HIGH_BITS, 2]);
        assert_allowed(call, &[bits(AF_NETLINK), 3, 0]);
        assert_refused(call, &[bits(AF_NETLINK), 3, bits(libc::NETLINK_GENERIC)], EAFNOSUPPORT);
        for family in
            [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_XDP, libc::AF_BLUETOOTH, 0, 45, -1]
        {
            assert_refused(call, &[bits(family), 2], EAFNOSUPPORT);
            assert_refused(call, &[bits(family) | HIGH_BITS, 2], EAFNOSUPPORT);
        }
    }
}

#[test]
fn raw_sockets_are_refused_as_the_kernel_does_without_the_capability() {
    assert_refused(libc::SYS_socket, &[bits(AF_INET), 3, 255], EPERM);
    assert_refused(libc::SYS_socket, &[bits(AF_INET6), 0x0008_0003, 89], EPERM);
}

#[test]
fn packet_sockets_do_not_come_in_as_inet() {
    assert_refused(libc::SYS_socket, &[bits(AF_INET), 10, 0x0300], ESOCKTNOSUPPORT);
    assert_refused(libc::SYS_socket, &[bits(AF_INET), 0x0008_000a, 0x0300], ESOCKTNOSUPPORT);
}

#[test]
fn protocols_that_load_modules_are_refused() {
    for protocol in [33, 115, 132, 136, 256] {
        assert_refused(libc::SYS_socket, &[bits(AF_INET), 1, protocol], EPROTONOSUPPORT);
        assert_refused(libc::SYS_socket, &[bits(AF_INET6), 2, protocol | HIGH_BITS], EPROTONOSUPPORT);
    }
    assert_refused(libc::SYS_socket, &[bits(AF_INET), 5, 0], ESOCKTNOSUPPORT); // SOCK_SEQPACKET: SCTP
}

#[test]
fn no_connection_bypasses_landlock() {
    for kind in [1, 0x0008_0801] {
        assert_allowed(libc::SYS_socket, &[bits(AF_INET), kind, 6]);
        for family in [AF_INET, AF_INET6] {
            assert_refused(libc::SYS_socket, &[bits(family), kind, 262], EPROTONOSUPPORT); // MPTCP
            assert_refused(libc::SYS_socket, &[bits(family), kind, 262 | HIGH_BITS], EPROTONOSUPPORT);
        }
    }
    for (call, position) in [(libc::SYS_sendmsg, 2), (libc::SYS_sendto, 3), (libc::SYS_sendmmsg, 3)] {
        let with = |flags: u64| {
            let mut arguments = [0x2000_0000; 5]; // A flag in another argument changes nothing.
            arguments[position] = flags;
            arguments
        };
        for flags in [0, bits(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT), 0x5fff_ffff, HIGH_BITS] {
            assert_allowed(call, &with(flags));
        }
        for flags in [0x2000_0000, 0x2000_4040, 0x2000_0000 | HIGH_BITS, u64::MAX] {
            assert_refused(call, &with(flags), EOPNOTSUPP); // MSG_FASTOPEN
        }
    }
}

#[test]
fn personality_changes_no_protection() {
    for domain in [0, 0x8, 0x20000, 0x20008, 0x40000, 0xffff_ffff, 0xffff_ffff | HIGH_BITS] {
        assert_allowed(libc::SYS_personality, &[domain]);
    }
    for domain in [0x0040_0000, 0x0010_0000, 0x0044_0000, 1, 0x0004_0000 | 0x0040_0000] {
        assert_refused(libc::SYS_personality, &[domain], EPERM); // READ_IMPLIES_EXEC, MMAP_PAGE_ZERO, …
    }
}

#[test]
fn root_of_another_root_can_install_and_is_told_who_it_is() {
    let as_root = |call, arguments: &[u64]| run_as(FilterUser::FakeRoot, call, arguments).action;
    let own = [u64::from(rules::OWN_USER), u64::from(rules::OWN_GROUP)];
    let none = u64::from(u32::MAX);
    let [allowed, refused, pretended, asked] = [
        FilterVerdict::Allow,
        FilterVerdict::refuse(EPERM),
        FilterVerdict::Pretend,
        FilterVerdict::Ask(FilterQuestion::Mode),
    ]
    .map(FilterVerdict::encode);
    for call in [libc::SYS_setgroups, libc::SYS_capset] {
        assert_eq!(as_root(call, &[1, 0]), pretended);
    }
    assert_eq!(as_root(libc::SYS_chroot, &[1]), allowed);
    for (call, first) in
        [(libc::SYS_chown, 1), (libc::SYS_lchown, 1), (libc::SYS_fchown, 1), (libc::SYS_fchownat, 2)]
    {
        let to = |user, group| {
            let mut arguments = [HIGH_BITS; 6];
            arguments[first] = HIGH_BITS | user;
            arguments[first + 1] = HIGH_BITS | group;
            as_root(call, &arguments)
        };
        for (user, group) in [(own[0], own[1]), (own[0], none), (none, own[1]), (none, none)] {
            assert_eq!(to(user, group), allowed, "{call}");
        }
        for (user, group) in [(33, own[1]), (own[0], 33), (33, 33), (none, 33)] {
            assert_eq!(to(user, group), pretended, "{call}");
        }
    }
    for (kind, expected) in [(0o20_000, pretended), (0o60_000, pretended), (0o10_000, allowed), (0, allowed)]
    {
        assert_eq!(as_root(libc::SYS_mknod, &[0, kind | 0o644, 5]), expected, "{kind:o}");
        assert_eq!(as_root(libc::SYS_mknodat, &[0, 0, kind | 0o644, 5]), expected, "{kind:o}");
    }
    assert_eq!(as_root(libc::SYS_mknod, &[0, 0o104_755, 0]), refused);
    for mode in [0o4755, 0o2755, 0o6755] {
        assert_eq!(as_root(libc::SYS_fchmod, &[3, mode]), asked);
        assert_eq!(as_root(libc::SYS_fchmodat, &[0, 1, mode]), asked);
    }
    for (calls, own, most) in [
        ([libc::SYS_setuid, libc::SYS_setreuid, libc::SYS_setresuid], own[0], 3),
        ([libc::SYS_setgid, libc::SYS_setregid, libc::SYS_setresgid], own[1], 3),
    ] {
        for (call, count) in calls.into_iter().zip(1..=most) {
            let with = |at: usize, value| {
                let mut arguments = [own | HIGH_BITS; 3];
                arguments[at] = value;
                as_root(call, &arguments)
            };
            for at in 0..count {
                assert_eq!(
                    [with(at, own), with(at, none), with(at, 33)],
                    [allowed, allowed, refused],
                    "{call}"
                );
            }
        }
    }
}

#[test]
fn no_mode_of_a_new_file_carries_setuid_or_setgid() {
    for (call, position) in [(libc::SYS_creat, 1), (libc::SYS_mknod, 1), (libc::SYS_mknodat, 2)] {
        for (mode, refused) in
            [(0o4755, true), (0o2755, true), (0o6000, true), (0o1777, false), (0o644, false)]
        {
            let mut arguments = [0; 6];
            arguments[position] = mode | HIGH_BITS;
            if refused { assert_refused(call, &arguments, EPERM) } else { assert_allowed(call, &arguments) }
        }
    }
}

#[test]
fn no_mode_carries_setuid_and_the_supervisor_looks_at_setgid() {
    for (call, position) in
        [(libc::SYS_chmod, 1), (libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (libc::SYS_fchmodat2, 2)]
    {
        let with = |mode: u64| {
            let mut arguments = [0; 6];
            arguments[position] = mode | HIGH_BITS;
            arguments
        };
        for mode in [0o4755, 0o6755, 0o6000, 0o7777] {
            assert_refused(call, &with(mode), EPERM);
        }
        for mode in [0o2755, 0o2000, 0o3777] {
            assert_asked(call, &with(mode), FilterQuestion::Mode);
        }
        for mode in [0o1777, 0o644] {
            assert_allowed(call, &with(mode));
        }
    }
}

#[test]
fn the_supervisor_looks_at_owners_other_than_the_own_one() {
    let (user, group, none) = (u64::from(rules::OWN_USER), u64::from(rules::OWN_GROUP), u64::from(u32::MAX));
    for (call, position) in
        [(libc::SYS_chown, 1), (libc::SYS_lchown, 1), (libc::SYS_fchown, 1), (libc::SYS_fchownat, 2)]
    {
        let with = |user: u64, group: u64| {
            let mut arguments = [0; 6];
            arguments[position] = user | HIGH_BITS;
            arguments[position + 1] = group | HIGH_BITS;
            arguments
        };
        for (user, group) in [(user, group), (user, none), (none, group), (none, none)] {
            assert_allowed(call, &with(user, group));
        }
        for (user, group) in [(0, 0), (user, 0), (0, group), (none, 33), (33, none), (group, user)] {
            assert_asked(call, &with(user, group), FilterQuestion::Owner);
        }
    }
}

#[test]
fn queues_are_not_made() {
    assert_refused(libc::SYS_mq_open, &[0, bits(libc::O_CREAT | libc::O_RDWR) | HIGH_BITS], libc::EACCES);
    assert_allowed(libc::SYS_mq_open, &[0, bits(libc::O_RDWR)]);
}

#[test]
fn open_cannot_create_a_setuid_file() {
    for flags in
        [libc::O_CREAT, libc::O_TMPFILE, libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE & !libc::O_DIRECTORY]
    {
        assert_refused(libc::SYS_open, &[0, bits(flags), 0o4755], EPERM);
        assert_refused(libc::SYS_openat, &[0, 0, bits(flags) | HIGH_BITS, 0o2755 | HIGH_BITS], EPERM);
        assert_allowed(libc::SYS_openat, &[0, 0, bits(flags), 0o1777]);
    }
}

#[test]
fn open_without_creation_ignores_its_mode() {
    for flags in [0, libc::O_RDWR, libc::O_DIRECTORY, libc::O_PATH | libc::O_CLOEXEC] {
        assert_allowed(libc::SYS_open, &[0, bits(flags), 0o6777]);
        assert_allowed(libc::SYS_openat, &[0, 0, bits(flags), u64::MAX]);
    }
}

#[test]
fn device_nodes_are_refused_and_fifos_are_not() {
    for (kind, refused) in
        [(0o020_000, true), (0o060_000, true), (0o010_000, false), (0o140_000, false), (0, false)]
    {
        for arguments in [[0, kind | 0o644, 0], [0, kind | 0o600 | HIGH_BITS, 0x103]] {
            let shifted = [0, 0, arguments[1], arguments[2]];
            if refused {
                assert_refused(libc::SYS_mknod, &arguments, EPERM);
                assert_refused(libc::SYS_mknodat, &shifted, EPERM);
            } else {
                assert_allowed(libc::SYS_mknod, &arguments);
                assert_allowed(libc::SYS_mknodat, &shifted);
            }
        }
    }
}

#[test]
fn rename_leaves_no_whiteout_device() {
    assert_refused(libc::SYS_renameat2, &[0, 0, 0, 0, 4], EPERM);
    assert_refused(libc::SYS_renameat2, &[0, 0, 0, 0, 5], EPERM);
    assert_allowed(libc::SYS_renameat2, &[0, 0, 0, 0, bits(3)]); // NOREPLACE, EXCHANGE
}
