//! The mount tree is the first wall. Nobody inside can change it, by old calls or new ones, or get a
//! namespace of its own.

use std::{fs, path::Path};

use nix::sys::statfs::{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, statfs};

use super::{check, check_outside};
use crate::support::{is_root, is_without_user_namespace, only_as_root, shell, stdout, workspace};

#[test]
fn no_mount_call_is_made() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("mount s:none s:/tmp s:tmpfs 0 0", "EPERM"),
            ("mount 0 s:/ 0 0x20 0", "EPERM"),
            ("mount s:/usr s:/tmp 0 0x1000 0", "EPERM"),
            ("mount 0 s:/usr 0 0x1020 0", "EPERM"),
            ("mount s:overlay s:/tmp s:overlay 0 s:lowerdir=/usr,upperdir=/tmp,workdir=/tmp", "EPERM"),
            ("mount s:proc s:/tmp s:proc 0 0", "EPERM"),
            ("mount s:sysfs s:/tmp s:sysfs 0 0", "EPERM"),
            ("umount2 s:/usr 2", "EPERM"),
            ("umount2 s:/proc 0", "EPERM"),
            ("umount2 s:. 2", "EPERM"),
            ("open_tree -100 s:/ 0x80001", "EPERM"),
            ("467 -100 s:/ 0x80001 buf 32", "EPERM"),
            ("move_mount -100 s:/usr -100 s:/tmp 0", "EPERM"),
            ("fsopen s:tmpfs 0", "EPERM"),
            ("fsconfig 3 6 0 0 0", "EPERM"),
            ("fsmount 3 0 0", "EPERM"),
            ("fspick -100 s:/ 0", "EPERM"),
            ("mount_setattr -100 s:/ 0x8000 p:0,1,0,0 32", "EPERM"),
            ("chroot s:/tmp", "EPERM"),
            ("pivot_root s:. s:.", "EPERM"),
        ],
    );
}

#[test]
fn no_namespace_is_made() {
    let ws = workspace();
    // CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}, then two together.
    let flags =
        [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x1002_0000];
    let calls = |flag: u64| {
        let clone = |flags: u64| (format!("clone {} 0 0 0 0", flags | 17), "EPERM");
        // The kernel reads the lower half of clone's flags only. Bits above must not help.
        let (low, high) = (clone(flag), clone(flag | 1 << 40));
        let clone3 = (format!("clone3 p:{flag},0,0,0,17,0,0,0 64"), "ENOSYS");
        [(format!("unshare {flag}"), "EPERM"), low, high, clone3]
    };
    let owned: Vec<_> = flags.into_iter().flat_map(calls).collect();
    let borrowed: Vec<_> = owned.iter().map(|(call, errno)| (call.as_str(), *errno)).collect();
    check(ws.path(), &[], &borrowed);
    check(
        ws.path(),
        &[],
        &[
            ("unshare 0x80", "EPERM"), // CLONE_NEWTIME
            ("clone3 p:0x80,0,0,0,17,0,0,0 64", "ENOSYS"),
            ("unshare 0x100000000", "EPERM"),
            ("unshare 0x110000000", "EPERM"),
            ("unshare 0x100000", "EPERM"),
            ("unshare 0x200", "ok"),
            ("openat -100 s:/proc/self/ns/user 0", "ok"),
            ("setns $ 0", "EPERM"),
            ("openat -100 s:/proc/1/ns/mnt 0", "EACCES"),
            ("pidfd_open 1 0", "ok"),
            ("setns $ 0x20000", "EPERM"),
        ],
    );
    only_as_root!();
    check_outside(&[("unshare 0x20000", "ok"), ("unshare 0x10000000", "ok")]);
}

#[test]
fn id_maps_are_not_written() {
    let ws = workspace();
    let files = ["uid_map", "gid_map", "setgroups", "projid_map"];
    for file in files {
        let of_init = if is_root() { "EROFS" } else { "EACCES" };
        check(ws.path(), &[], &[(&format!("open s:/proc/1/{file} 1"), of_init)]);
        if is_root() {
            check(ws.path(), &[], &[(&format!("open s:/proc/self/{file} 1"), "EROFS")]);
            continue;
        }
        let open = format!("open s:/proc/self/{file} 1");
        match file {
            "setgroups" => check(ws.path(), &[], &[(&open, "EACCES")]),
            // That of projects is worth nothing: the kernel changes a project only for the first user
            // namespace.
            "projid_map" => {}
            // A map is written once, and the sandbox's are.
            _ => check(ws.path(), &[], &[(&open, "ok"), ("write $ s:0\t0\t1 5", "EPERM")]),
        }
    }
    let map = stdout(&shell(ws.path(), &[], "cat /proc/self/uid_map"));
    let uid = nix::unistd::geteuid().to_string();
    let count = if is_without_user_namespace() { "4294967295" } else { "1" };
    let words: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(words[..3], [uid.as_str(), &uid, count]);
    // Root's has the id as which /etc is mounted.
    assert!(words.len() == 3 || uid == "0" && words[3..] == ["65533", "65533", "1"], "{map}");
}

#[test]
fn the_tree_of_the_host_is_not_among_the_mounts() {
    let ws = workspace();
    let mounts = stdout(&shell(ws.path(), &[], "cat /proc/self/mountinfo"));
    let whole = |line: &&str| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields[3] == "/"
            && fields[4] != "/etc"
            && !["tmpfs", "proc", "devpts"].iter().any(|kind| line.contains(&format!(" - {kind} ")))
    };
    let shown: Vec<&str> = mounts.lines().filter(whole).collect();
    let own = fs::canonicalize(ws.path()).unwrap().display().to_string();
    assert!(shown.iter().all(|line| line.contains(&own) || line.contains(" /usr ")), "{shown:?}");
    let mut rest = mounts.lines().filter(|line| !line.contains(" - devtmpfs "));
    assert!(rest.all(|line| line.contains("nosuid")), "{mounts}");
}

/// Whether the file system knows EXT4_IOC_SHUTDOWN.
fn can_be_shut_down(place: &Path) -> bool {
    let kind = statfs(place).unwrap().filesystem_type();
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC].contains(&kind)
}

#[test]
fn file_systems_of_the_host_are_not_frozen_or_shut_down() {
    let ws = workspace();
    check(
        ws.path(),
        &[],
        &[
            ("openat -100 s:. 0", "ok"),
            ("ioctl $ 0xc0045877 0", "EPERM"),       // FIFREEZE
            ("ioctl $ 0xc0185879 p:0,0,0", "EPERM"), // FITRIM
            ("ioctl $ 0x8004587d w:2", if can_be_shut_down(ws.path()) { "EPERM" } else { "ENOTTY" }),
            ("ioctl $ 0x5000940f buf", "EPERM"), // BTRFS_IOC_SNAP_DESTROY, and _V2
            ("ioctl $ 0x5000943f buf", "EPERM"),
            ("ioctl $ 0xc0506617 buf", "EPERM"), // FS_IOC_ADD_ENCRYPTION_KEY, and REMOVE
            ("ioctl $ 0xc0406618 buf", "EPERM"),
            ("ioctl $ 0xc0406619 buf", "EPERM"),
            ("quotactl 0x80000100 0 0 buf", "EPERM"),
            ("443 $ 0x80000100 0 buf", "EPERM"), // quotactl_fd
        ],
    );
    only_as_root!();
}
