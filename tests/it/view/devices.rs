//! /dev, /proc and /sys.

use std::path::Path;
use std::process::Command;

use crate::support::{fails, kennel, only_as_root, require, stderr, stdout, succeeds, workspace};

#[test]
fn device_nodes_do_what_they_are_for() {
    let dir = workspace();
    assert_eq!(succeeds(dir.path(), &[], "echo x > /dev/null; cat /dev/null"), "");
    assert_eq!(
        succeeds(dir.path(), &[], "head -c 8 /dev/zero | od -An -tx1 | tr -d ' '"),
        "0000000000000000"
    );
    for source in ["/dev/urandom", "/dev/random"] {
        assert_eq!(succeeds(dir.path(), &[], &format!("head -c 1000 {source} | wc -c")), "1000");
    }
    let said = fails(dir.path(), &[], "head -c 1 /dev/zero > /dev/full");
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(
        succeeds(dir.path(), &[], "echo a | cat /dev/stdin; echo b > /dev/stdout; echo c | cat /dev/fd/0"),
        "a\nb\nc"
    );
}

#[test]
fn dev_has_nothing_else() {
    let dir = workspace();
    let listed = succeeds(dir.path(), &[], "ls -A /dev");
    let expected = "fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero";
    assert_eq!(listed, expected);
}

#[test]
fn terminals_can_be_opened_and_are_the_sandbox_s_own() {
    let dir = workspace();
    assert_eq!(succeeds(dir.path(), &[], "ls /dev/pts"), "ptmx");
    require!(crate::support::has("python3"), "python3");
    let script =
        "import pty,os; m,s = pty.openpty(); print(os.ttyname(s)); os.write(s, b'x'); print(os.read(m, 1))";
    let output = kennel(dir.path(), &[], &["python3", "-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "/dev/pts/0\nb'x'", "{output:?}");
}

#[test]
fn without_tty_there_is_no_controlling_terminal() {
    let dir = workspace();
    assert!(fails(dir.path(), &[], "true < /dev/tty").contains("No such device or address"));
}

#[test]
fn device_nodes_cannot_be_made() {
    let dir = workspace();
    for place in [".", "/tmp"] {
        let said = fails(dir.path(), &[], &format!("mknod {place}/node c 1 3"));
        assert!(said.contains("Operation not permitted") || said.contains("Permission denied"), "{said}");
        succeeds(dir.path(), &[], &format!("mknod {place}/fifo p && rm {place}/fifo"));
    }
}

#[test]
fn processes_are_the_sandbox_s_own() {
    let dir = workspace();
    let pids = succeeds(dir.path(), &[], "ls /proc | grep -c '^[0-9]'");
    assert!(pids.parse::<u32>().unwrap() <= 5, "init, sh, ls, grep: {pids}");
    let own: u32 = succeeds(dir.path(), &[], "echo $$").parse().unwrap();
    assert!(own <= 5, "numbers start anew: {own}");
    assert_eq!(succeeds(dir.path(), &[], "stat -f -c %T /proc"), "proc");
    assert_eq!(succeeds(dir.path(), &[], "tr -d '\\0' < /proc/1/cmdline"), "kennel");
}

#[test]
fn root_writes_nothing_in_proc() {
    only_as_root!();
    let dir = workspace();
    for path in ["/proc/self/oom_score_adj", "/proc/self/comm", "/proc/self/uid_map"] {
        let said = fails(dir.path(), &[], &format!("echo 1 > {path}"));
        assert!(said.contains("Read-only file system"), "{path}: {said}");
    }
}

#[test]
fn kernel_knobs_are_out_of_root_s_reach() {
    only_as_root!();
    let dir = workspace();
    for path in [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/overcommit_memory",
    ] {
        if std::path::Path::new(path).exists() {
            let said = fails(dir.path(), &[], &format!("echo x > {path}"));
            assert!(said.contains("Read-only file system"), "{path}: {said}");
        }
    }
    for path in ["/proc/kpagecount", "/proc/timer_list", "/proc/vmallocinfo"] {
        if std::path::Path::new(path).exists() {
            assert_eq!(succeeds(dir.path(), &[], &format!("head -c 100 {path}")), "", "{path}");
        }
    }
    let there = |path: &&str| std::path::Path::new(path).exists();
    for path in ["/proc/kcore", "/proc/kmsg"].into_iter().filter(there) {
        let said = fails(dir.path(), &[], &format!("head -c 1 {path}"));
        assert!(
            said.contains("Operation not permitted") || said.contains("Permission denied"),
            "{path}: {said}"
        );
    }
}

#[test]
fn sys_has_only_what_runtimes_ask_about_the_machine() {
    let dir = workspace();
    let shown = succeeds(dir.path(), &[], "cd /sys && ls -d */*/* kernel/mm/*");
    let names: Vec<&str> = shown.lines().collect();
    let all = ["devices/system/cpu", "devices/system/node", "kernel/mm/transparent_hugepage", "kernel/mm"];
    assert!(names.iter().all(|name| all.contains(name)) && names.contains(&all[0]), "{shown}");
    let cpus = "cat /sys/devices/system/cpu/online /sys/devices/system/cpu/possible; nproc";
    let outside = Command::new("sh").args(["-c", cpus]).output().unwrap();
    assert_eq!(succeeds(dir.path(), &[], cpus), stdout(&outside).trim_end());
    assert!(fails(dir.path(), &["--profile", "ci-only"], "ls /sys").contains("No such file or directory"));
}

#[test]
fn nothing_in_sys_can_be_written() {
    only_as_root!();
    let dir = workspace();
    for profile in ["repo-write", "full-dev"] {
        let all = "find /sys -type f -perm /222 | head -n 2000";
        let files = succeeds(dir.path(), &["--profile", profile], all);
        assert!(files.contains("/sys/devices/system/cpu/"), "{files}");
        let attempt = format!("for f in $({all}); do (: >> $f) 2>/dev/null && echo $f; done; true");
        assert_eq!(succeeds(dir.path(), &["--profile", profile], &attempt), "");
    }
}

#[test]
fn ss_lists_the_servers_of_the_sandbox_without_a_complaint() {
    require!(Path::new("/usr/bin/ss").exists() && Path::new("/usr/bin/python3").exists(), "ss and python3");
    let dir = workspace();
    let script = "python3 -c 'import socket, subprocess; s = socket.create_server((\"127.0.0.1\", 8765)); \
                  subprocess.run([\"ss\", \"-tln\"])'";
    let output = kennel(dir.path(), &["--profile", "no-network"], &["sh", "-c", script]).output().unwrap();
    assert!(stdout(&output).contains("127.0.0.1:8765") && stderr(&output).is_empty(), "{output:?}");
}

#[test]
fn sys_can_be_granted() {
    let dir = workspace();
    assert!(
        !succeeds(dir.path(), &["--ro", "/sys/kernel"], "ls -A /sys/kernel").is_empty(),
        "unless granted"
    );
}
