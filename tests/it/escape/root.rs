//! Real root may do these things to the host, and must not be able to from inside. An ordinary user tries the
//! kernel's files too: the kernel refuses earlier, with the same or another errno.

use std::{fs, path::Path};

use super::{check, check_outside, of_other_ids};
use crate::support::{attempt, has, is_root, may_mount, only_as_root, refused, require, succeeds, workspace};

/// Files that change the whole machine, with the result that a sandboxed root gets.
const KNOBS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/self/oom_score_adj",
    "/proc/self/mem",
    "/proc/self/clear_refs",
    "/proc/irq/default_smp_affinity",
];

#[test]
fn no_knob_of_the_kernel_is_turned() {
    let ws = workspace();
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let there: Vec<_> = KNOBS.iter().filter(|path| fs::exists(path).unwrap_or(false)).collect();
    let calls: Vec<_> = there.iter().map(|path| format!("open s:{path} 1")).collect();
    let said = attempt(ws.path(), &[], "call", &calls.join(" + ").split(' ').collect::<Vec<_>>());
    assert_eq!(said.lines().count(), there.len(), "{said}");
    for (path, said) in there.iter().zip(said.lines()) {
        let expected = match (is_root(), path.starts_with("/proc/self/")) {
            (true, _) => &["EROFS"][..],
            (false, true) => &["ok"],
            // The mode of drop_caches and similar files stops an ordinary user before the mount does.
            (false, false) => &["EROFS", "EACCES"],
        };
        assert!(expected.contains(&said), "{path}: {said}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), pattern);
    only_as_root!();
    check_outside(&[("open s:/proc/sys/kernel/core_pattern 1", "ok")]);
}

/// The root of a container or of a chroot has such mounts.
#[test]
fn knobs_that_the_host_has_mounted_in_a_grant_are_not_turned() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    if !may_mount("escape::root::knobs_that_the_host_has_mounted_in_a_grant_are_not_turned") {
        return;
    }
    let (ws, chroot) = (workspace(), workspace());
    let at = |name: &str| format!("{}/{name}", chroot.path().display());
    for name in ["proc", "sys", "kernel"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("pattern"), "").unwrap();
    for words in [
        ["-t", "proc", "proc", &at("proc")],
        ["-t", "sysfs", "sysfs", &at("sys")],
        ["--bind", "--", "/proc/sys/kernel", &at("kernel")],
        ["--bind", "--", "/proc/sys/kernel/core_pattern", &at("pattern")],
    ] {
        let output = std::process::Command::new("mount").args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let pattern = fs::read_to_string(at("pattern")).unwrap();
    let granted = chroot.path().to_str().unwrap();
    // Nothing in it can be opened, and the file is empty.
    let script = format!("cd {granted} && ls -A proc sys kernel && cat pattern && echo '|/x' >pattern");
    for (dir, flags) in [(chroot.path(), &[][..]), (ws.path(), &["--rw", granted])] {
        assert_eq!(succeeds(dir, flags, &script), "kernel:\n\nproc:\n\nsys:");
    }
    // Files that show no process are visible read-only.
    let script = format!("cd {granted} && ls -A proc kernel && cat pattern && test -d sys/kernel");
    assert_eq!(succeeds(ws.path(), &["--ro", granted], &script), "kernel:\n\nproc:");
    check(
        ws.path(),
        &["--ro", granted],
        &[(&format!("open s:{} 1", at("sys/devices/system/cpu/uevent")), "EROFS")],
    );
    for (flag, name) in [("--rw", "proc"), ("--ro", "proc"), ("--ro", "kernel"), ("--rw", "sys")] {
        let said = refused(ws.path(), &[flag, &format!("{}:/x", at(name))]);
        assert!(said.contains("of the host, which is never shown") || name == "sys", "{said}");
        assert!(said.contains("which can only be shown read-only") || name != "sys", "{said}");
    }
    for name in ["proc", "sys", "kernel"] {
        assert!(refused(Path::new(&at(name)), &[]).contains("which"), "{name}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), pattern);
}

#[test]
fn sysrq_is_not_triggered() {
    let ws = workspace();
    // Some kernels have no sysrq. Then the file does not exist inside either.
    // Its mode stops an ordinary user before the mount does.
    let refused = if is_root() { "EROFS" } else { "EACCES" };
    let errno = if fs::exists("/proc/sysrq-trigger").unwrap() { refused } else { "ENOENT" };
    let calls = [("open s:/proc/sysrq-trigger 1", errno), ("open s:/proc/sysrq-trigger 0x401", errno)];
    check(ws.path(), &[], &calls);
}

#[test]
fn settings_of_sysfs_and_cgroupfs_are_not_there() {
    let ws = workspace();
    let refused = if is_root() { "EROFS" } else { "EACCES" };
    // Nobody may write to it, and its mode stops root before the mount does.
    let online = "/sys/devices/system/cpu/online";
    let is_closed = fs::metadata(online).unwrap().permissions().readonly();
    let call = format!("open s:{online} 1");
    let online = (&*call, if is_closed { "EACCES" } else { refused });
    // An ordinary user cannot enter some directories on the way, and so finds nothing in the whole tree.
    for profile in if is_root() { &["repo-write", "full-dev"][..] } else { &["repo-write"] } {
        check(
            ws.path(),
            &["--profile", profile],
            &[
                ("open s:/sys/class 0", "ENOENT"),
                online,
                ("open s:/sys/kernel/mm/transparent_hugepage/enabled 1", refused),
                ("open s:/sys/fs/cgroup/cgroup.procs 1", "ENOENT"),
                ("open s:/sys/kernel/uevent_helper 1", "ENOENT"),
                ("open s:/sys/kernel/debug 0", "ENOENT"),
                ("open s:/sys/power/state 1", "ENOENT"),
                ("open s:/sys/fs/bpf 0", "ENOENT"),
            ],
        );
    }
}

#[test]
fn memory_of_the_kernel_is_not_read() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("open s:/dev/mem 0", "ENOENT"),
            ("open s:/dev/kmem 0", "ENOENT"),
            ("open s:/dev/port 0", "ENOENT"),
            ("open s:/dev/kmsg 0", "ENOENT"),
            ("open s:/dev/sda 0", "ENOENT"),
            ("open s:/dev/vda 0", "ENOENT"),
            ("open s:/dev/loop-control 0", "ENOENT"),
            ("open s:/dev/fuse 0", "ENOENT"),
            ("open s:/dev/kvm 0", "ENOENT"),
            ("open s:/dev/net/tun 0", "ENOENT"),
            ("open s:/dev/userfaultfd 0", "ENOENT"),
            ("open s:/proc/kmsg 0", if is_root() { "EPERM" } else { "EACCES" }),
        ],
    );
    let mut paths = vec!["/proc/kpageflags", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/timer_list"];
    paths.retain(|path| fs::exists(path).unwrap_or(false));
    if !paths.is_empty() {
        // Covered for root, because its mode would not stop root.
        let said = attempt(ws.path(), &[], "read", &paths);
        let expected = if is_root() { "[]" } else { "EACCES" };
        assert_eq!(said.lines().collect::<Vec<_>>(), vec![expected; paths.len()], "{paths:?}");
    }
    if fs::exists("/proc/kcore").unwrap() {
        check(ws.path(), &[], &[("open s:/proc/kcore 0", if is_root() { "EPERM" } else { "EACCES" })]);
    }
}

#[test]
fn addresses_of_the_kernel_are_not_shown() {
    let ws = workspace();
    require!(fs::exists("/proc/kallsyms").unwrap(), "kallsyms in the kernel");
    let script = "cut -c1-16 /proc/kallsyms | sort -u | head -2";
    let addresses = crate::support::stdout(&crate::support::shell(ws.path(), &[], script));
    assert!(addresses.is_empty() || addresses == "0000000000000000", "{addresses}");
}

#[test]
fn calls_for_the_whole_machine_are_refused() {
    let ws = workspace();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("init_module buf 4096 s:", "EPERM"),
            ("finit_module 0 s: 0", "EPERM"),
            ("delete_module s:x 0", "EPERM"),
            ("kexec_load 0 0 0 0", "EPERM"),
            ("kexec_file_load 0 0 0 0 0", "EPERM"),
            ("reboot 0xfee1dead 672274793 0 0", "EPERM"),
            ("swapon s:/tmp/x 0", "EPERM"),
            ("swapoff s:/tmp/x", "EPERM"),
            ("sethostname s:evil 4", "EPERM"),
            ("setdomainname s:evil 4", "EPERM"),
            ("settimeofday p:0,0 0", "EPERM"),
            ("clock_settime 0 p:0,0", "EPERM"),
            ("adjtimex buf", "EPERM"),
            ("acct s:/tmp/x", "EPERM"),
            ("syslog 3 buf 4096", "EPERM"),
            ("syslog 5 0 0", "EPERM"),
            ("vhangup", "EPERM"),
            ("quotactl 0x80000700 0 0 buf", "EPERM"),
            ("iopl 3", "EPERM"),
            ("ioperm 0x70 2 1", "EPERM"),
            ("modify_ldt 0 buf 16", "EPERM"),
            ("uselib s:/x", "EPERM"),
        ],
    );
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), host);
}

#[test]
fn identity_and_limits_are_not_raised() {
    let ws = workspace();
    let other = if is_root() { 1000 } else { 0 };
    check(
        ws.path(),
        &[],
        &[
            (&format!("setuid {other}"), of_other_ids()),
            (&format!("setgid {other}"), of_other_ids()),
            (&format!("setresuid {other} {other} {other}"), of_other_ids()),
            ("setuid 65534", of_other_ids()),
            ("setgroups 1 w:0", "EPERM"),
            ("setgroups 0 0", "EPERM"),
            ("prlimit64 0 4 p:0xffffffffffffffff,0xffffffffffffffff buf", "EPERM"), // RLIMIT_CORE
            ("prlimit64 0 7 p:0xffffffffffffffff,0xffffffffffffffff 0", "EPERM"),   // RLIMIT_NOFILE
            ("setpriority 0 0 -20", "EACCES"),
            ("sched_setscheduler 0 1 w:50", "EPERM"), // SCHED_FIFO
            ("ioprio_set 1 0 0x2000", "EPERM"),       // real-time class
        ],
    );
}
