//! System calls that reach deep into the kernel or into other processes, and other calling conventions.

use super::{check, check_outside, command, lines};
use crate::support::{only_as_root, require, workspace};

/// A shell's word for a death by SIGSYS.
const BAD_CALL: i32 = 128 + libc::SIGSYS;

#[test]
fn large_interfaces_are_closed() {
    let ws = workspace();
    let calls = [
        ("io_uring_setup 8 buf", "EPERM"),
        ("io_uring_enter 3 1 0 0 0 0", "EPERM"),
        ("io_uring_register 3 0 0 0", "EPERM"),
        ("bpf 0 buf 64", "EPERM"),
        ("bpf 5 buf 64", "EPERM"),
        ("userfaultfd 0", "EPERM"),
        ("userfaultfd 1", "EPERM"),
        ("perf_event_open buf 0 -1 -1 0", "EPERM"),
        ("keyctl 0 -3 0", "EPERM"),
        ("keyctl 1 s:_ses.1", "EPERM"),
        ("add_key s:user s:x s:y 1 -4", "EPERM"),
        ("request_key s:user s:x 0 -4", "EPERM"),
        ("fanotify_init 0 0", "EPERM"),
        ("migrate_pages 1 8 buf buf", "EPERM"),
        ("move_pages 1 0 0 0 0 0", "EPERM"),
        // New calls are not allowed: numbers that no kernel has given out yet, and rarely used calls.
        ("447 0", "ENOSYS"), // memfd_secret
        ("500 0", "ENOSYS"),
        ("1000 0", "ENOSYS"),
        ("-1 0", "ENOSYS"),
        ("180 0", "EPERM"),  // nfsservctl
        ("134 0", "EPERM"),  // uselib
        ("174 0", "ENOSYS"), // create_module
        ("183 0", "ENOSYS"), // afs_syscall
        ("212 0", "EPERM"),  // lookup_dcookie
    ];
    check(ws.path(), &[], &calls);
    check_outside(&[("add_key s:user s:kennel-escape s:y 1 -1", "ok")]);
    only_as_root!();
    check_outside(&[("userfaultfd 1", "ok")]);
}

#[test]
fn processes_outside_are_not_reached() {
    let ws = workspace();
    let own = std::process::id();
    check(
        ws.path(),
        &[],
        &[
            (&format!("kill {own} 0"), "ESRCH"),
            (&format!("kill {own} 15"), "ESRCH"),
            (&format!("ptrace 16 {own} 0 0"), "ESRCH"),
            (&format!("ptrace 0x4206 {own} 0 0"), "ESRCH"),
            (&format!("process_vm_readv {own} p:1,8 1 p:1,8 1 0"), "ESRCH"),
            (&format!("pidfd_open {own} 0"), "ESRCH"),
            (&format!("tgkill {own} {own} 15"), "ESRCH"),
            (&format!("prlimit64 {own} 7 0 buf"), "ESRCH"),
            (&format!("open s:/proc/{own}/environ 0"), "ENOENT"),
            (&format!("rt_sigqueueinfo {own} 15 buf"), "EPERM"),
        ],
    );
}

#[test]
fn debugging_of_its_own_works() {
    let ws = workspace();
    let output = command(ws.path(), &[], &["debug-child"]).output().unwrap();
    assert_eq!(lines(&output), ["ok"]);
}

#[test]
fn execution_domains_weaken_nothing() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("personality 0x0400000", "EPERM"), // READ_IMPLIES_EXEC
            ("personality 0x0100000", "EPERM"), // MMAP_PAGE_ZERO
            ("personality 0x0200000", "EPERM"), // ADDR_COMPAT_LAYOUT
            ("personality 0x1", "EPERM"),
            ("personality 0x0400008", "EPERM"),
            // The kernel reads the lower half only. Bits above must not hide it.
            ("personality 0x100400000", "EPERM"),
            ("personality 0xffffffff", "ok"),
            ("personality 0x8", "ok"),
            ("personality 0", "ok"),
        ],
    );
    check_outside(&[("personality 0x0400000", "ok")]);
}

#[test]
fn calls_of_x32_end_the_process() {
    let ws = workspace();
    for number in [libc::SYS_getpid, libc::SYS_execve, libc::SYS_ptrace, 512, 513, 520, 547] {
        let output = command(ws.path(), &["-q"], &["x32", &number.to_string()]).output().unwrap();
        assert_eq!(crate::support::shown(output.status), Some(BAD_CALL), "{number}: {output:?}");
        assert_eq!(lines(&output), [""; 0]);
    }
    let negative = (-0x4000_0000i64).to_string();
    let output = command(ws.path(), &["-q"], &["x32", &negative]).output().unwrap();
    assert_ne!(lines(&output), ["ok"]);
}

#[test]
fn calls_of_i386_end_the_process() {
    let ws = workspace();
    // getpid, execve, clone, unshare and mount of the i386 table: the filter must not read a number with the
    // wrong table.
    for number in ["20", "11", "120", "310", "21"] {
        let output = command(ws.path(), &["-q"], &["int80", number]).output().unwrap();
        assert_eq!(crate::support::shown(output.status), Some(BAD_CALL), "{number}: {output:?}");
        assert_eq!(lines(&output), [""; 0]);
    }
    let outside =
        std::process::Command::new(crate::support::payload_path()).args(["int80", "20"]).output().unwrap();
    require!(outside.status.success(), "i386 emulation in the kernel");
    assert_eq!(lines(&outside), ["ok"]);
}

#[test]
fn a_killed_child_does_not_end_the_others() {
    let ws = workspace();
    let script = "/payload x32; echo $?; echo on";
    let grant = format!("{}:/payload", crate::support::payload_path().display());
    let output = crate::support::shell(ws.path(), &["-q", "--ro", &grant], script);
    assert_eq!(lines(&output), [BAD_CALL.to_string(), "on".to_owned()]);
}

#[test]
fn a_filter_of_its_own_does_not_loosen() {
    let ws = workspace();
    let output = command(ws.path(), &[], &["allow-all"]).output().unwrap();
    assert_eq!(lines(&output), ["ok", "EPERM", "EPERM"]);
}

#[test]
fn counters_of_the_whole_machine_are_not_used_up() {
    let ws = workspace();
    check(ws.path(), &[], &[("io_setup 1 buf", "ENOSYS")]);
    check_outside(&[("io_setup 1 buf", "ok")]);
}
