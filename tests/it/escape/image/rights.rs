//! More than the two capabilities, other identities, and other roots.

use std::fs;

use kennel::{Isolation, Policy, Session};

use super::{
    Rooted, attempt, is_without_user_namespace, other_root, require_root, root_of_another, skip, workspace,
};
use crate::support::payload_path;

/// CAP_DAC_OVERRIDE and CAP_SYS_CHROOT.
const KEPT: &str = "0000000000040002";
const NONE: &str = "0000000000000000";

/// The lines of proc_pid_status(5) about capabilities: inheritable, permitted, effective, bounding, ambient.
fn sets(status: &str) -> Vec<&str> {
    status.lines().filter(|line| line.starts_with("Cap")).map(|line| &line[8..]).collect()
}

const STATUS: &str = "cat /proc/self/status";

#[test]
fn programs_have_two_capabilities_and_init_has_none_in_effect() {
    let rooted = root_of_another!();
    let said = rooted.says(&[], STATUS);
    assert_eq!(sets(&said), [KEPT, KEPT, KEPT, NONE, KEPT], "{said}");
    assert!(said.contains("NoNewPrivs:\t1"), "{said}");
    let said = rooted.says(&[], "cat /proc/1/status");
    assert_eq!(sets(&said)[2..4], [NONE, NONE], "{said}");
    // Nobody else has any.
    let said = rooted.says(&["--user", "guest"], STATUS);
    assert_eq!(sets(&said), [NONE; 5], "{said}");
}

#[tokio::test]
async fn programs_of_a_session_have_the_same() {
    require_root!();
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    for isolation in [Isolation::Command, Isolation::Session] {
        for (user, expected) in [("0", [KEPT, KEPT, KEPT, NONE, KEPT]), ("guest", [NONE; 5])] {
            for explains in [false, true] {
                let root = other_root();
                let policy = Policy::default().root(root.path()).isolation(isolation).explain(explains);
                let session = Session::prepare(&policy.user(user)).await.unwrap();
                for _ in 0..2 {
                    let output = session.command("sh").args(["-c", STATUS]).output().await.unwrap();
                    let said = String::from_utf8(output.stdout).unwrap();
                    assert_eq!(sets(&said), expected, "{isolation:?} {user} {explains}: {said}");
                }
                session.shutdown().await;
            }
        }
    }
}

#[test]
fn no_capability_is_added() {
    let rooted = root_of_another!();
    rooted.check(&[
        // PR_CAP_AMBIENT_RAISE of CAP_SYS_ADMIN; PR_SET_SECUREBITS.
        ("prctl 47 2 21 0 0", "EPERM"),
        ("prctl 28 0", "EPERM"),
        // struct __user_cap_header_struct and all of the data: it is pretended.
        ("capset w:0x20080522,0 w:-1,-1,-1,-1,-1,-1", "ok"),
        ("unshare 0x10000000", "EPERM"),
        ("unshare 0x20000", "EPERM"),
        ("mount s:none s:/tmp s:tmpfs 0 0", "EPERM"),
        ("umount2 s:/proc 2", "EPERM"),
        ("pivot_root s:/tmp s:/tmp", "EPERM"),
        ("setns 0 0", "EPERM"),
        ("open_by_handle_at -100 buf 0", "EPERM"),
        ("sethostname s:x 1", "EPERM"),
        ("settimeofday buf 0", "EPERM"),
        ("reboot 0 0 0 0", "EPERM"),
    ]);
    assert_eq!(sets(&rooted.says(&[], STATUS))[2], KEPT);
}

#[test]
fn who_it_is_is_never_pretended() {
    let rooted = root_of_another!();
    rooted.check(&[
        ("setuid 0", "ok"),
        ("setuid 33", "EPERM"),
        ("setgid 0", "ok"),
        ("setgid 33", "EPERM"),
        ("113 0 0", "ok"), // setreuid
        ("113 -1 33", "EPERM"),
        ("114 33 -1", "EPERM"), // setregid
        ("setresuid 0 0 0", "ok"),
        ("setresuid -1 -1 33", "EPERM"),
        ("119 33 33 33", "EPERM"), // setresgid
        ("setgroups 1 w:33", "ok"),
        ("getgroups 0 0", "ok"),
        ("chown s:/etc/passwd 33 33", "ok"),
    ]);
    let script = "id -u; id -g; touch /f; /payload call chown s:/f 33 33; stat -c '%u %g' /f";
    let payload = format!("{}:/payload", payload_path().display());
    assert_eq!(rooted.says(&["--ro", &payload], script), "0\n0\nok\n0 0");
}

#[test]
fn chroot_leads_to_no_file_of_the_host() {
    let rooted = root_of_another!();
    let outside = workspace();
    fs::write(outside.path().join("secret"), "x").unwrap();
    let secret = outside.path().join("secret").display().to_string();
    let up = "../".repeat(32);
    rooted.check(&[
        ("mkdir s:/jail 0x1ed", "ok"),
        ("open s:/ 0x10000", "ok"),
        ("chroot s:/jail", "ok"),
        ("fchdir $", "ok"),
        (&format!("open s:{up}{secret} 0"), "ENOENT"),
        (&format!("open s:{up}etc/passwd 0"), "ok"),
        ("chroot s:.", "ok"),
        (&format!("open s:{secret} 0"), "ENOENT"),
        ("open s:/etc/passwd 0", "ok"),
        ("chroot s:/proc/self/root", "ok"),
        (&format!("open s:{secret} 0"), "ENOENT"),
        ("open s:/proc/1/root 0", "EACCES"),
        ("chroot s:/proc/1/root", "EACCES"),
    ]);
    let said =
        attempt(rooted.workspace(), &rooted.flags(&["--user", "guest"]), "call", &["chroot", "s:/tmp"]);
    assert_eq!(said, "EPERM");
}

/// Root of the user namespace owns the files of init in /proc.
#[test]
fn init_and_its_files_are_out_of_reach() {
    let rooted = root_of_another!();
    rooted.check(&[
        ("open s:/proc/1/mem 0", "EACCES"),
        ("open s:/proc/1/mem 2", "EROFS"),
        ("open s:/proc/1/environ 0", "EACCES"),
        ("open s:/proc/1/ns/user 0", "EACCES"),
        ("open s:/proc/1/oom_score_adj 1", "EROFS"),
        ("open s:/proc/1/comm 1", "EROFS"),
        ("open s:/proc/1/clear_refs 1", "EROFS"),
        ("open s:/proc/sys/kernel/hostname 1", "EROFS"),
        ("open s:/proc/sys/net/ipv4/ip_forward 1", "EROFS"),
        ("readlink s:/proc/1/fd/8 buf 4096", "EACCES"),
        ("ptrace 0x4206 1 0 0", "EPERM"),
        ("process_vm_readv 1 p:65536,8 1 p:65536,8 1 0", "EPERM"),
        ("pidfd_open 1 0", "ok"),
        ("pidfd_getfd $ 0 0", "EPERM"),
        ("open s:/dev/.kennel/new 0x41 0x1ff", "EROFS"),
        ("mknod s:/dev/new 0x81a4 0", "EROFS"),
        ("unlink s:/etc/hosts", "EBUSY"),
        ("open s:/etc/hosts 1", "EROFS"),
    ]);
}
