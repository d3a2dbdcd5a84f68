//! Files that would give rights to others outside: set-user-id files, devices, privileged attributes.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    process::Command,
};

use super::{check, check_outside};
use crate::support::{attempt, has, is_root, only_as_root, require, skip, workspace};

#[test]
fn no_set_user_id_file_is_left_behind() {
    let ws = workspace();
    fs::write(ws.path().join("f"), "").unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("chmod s:f 0x9ed", "EPERM"),
            ("chmod s:f 0x5ed", "EPERM"),
            ("chmod s:f 0xded", "EPERM"),
            ("fchmodat -100 s:f 0x9ed", "EPERM"),
            ("fchmodat2 -100 s:f 0x9ed 0", "EPERM"),
            ("openat -100 s:f 0", "ok"),
            ("fchmod $ 0x9ed", "EPERM"),
            ("fchmod $ 0x100000009ed", "EPERM"),
            ("fchmodat2 $ s: 0x9ed 0x1000", "EPERM"),
            ("creat s:new 0x9ed", "EPERM"),
            ("open s:new 0x41 0x9ed", "EPERM"),
            ("openat -100 s:new 0x41 0x5ed", "EPERM"),
            ("openat -100 s:. 0x410002 0x9ed", "EPERM"), // O_TMPFILE
            ("openat2 -100 s:new p:0x41,0x9ed,0 24", "ENOSYS"),
            ("mknod s:new 0x89ed 0", "EPERM"),
            ("mknodat -100 s:new 0x89ed 0", "EPERM"),
            ("mknod s:new 0x9ed 0", "EPERM"),
            ("mkdir s:dir 0xded", "ok"),
            // Set-group-id is for directories.
            ("chmod s:dir 0x9ed", "EPERM"),
            ("chmod s:dir 0xded", "EPERM"),
            ("symlink s:f s:link", "ok"),
            ("chmod s:link 0x5ed", "EPERM"),
            ("fchmodat2 -100 s:link 0x5ed 0x100", "EOPNOTSUPP"),
            ("chmod s:dir/../f 0x5ed", "EPERM"),
            ("openat -100 s:f 0x200000", "ok"), // O_PATH
            ("fchmod $ 0x5ed", "EBADF"),
            ("fchmodat2 $ s: 0x5ed 0x1000", "EPERM"),
            ("memfd_create s:m 0", "ok"),
            ("fchmod $ 0x5ed", "EPERM"),
            ("mknod s:fifo 0x11a4 0", "ok"),
            ("chmod s:fifo 0x5ed", "EPERM"),
            ("chmod s:f 0x1ed", "ok"),
            ("chmod s:dir 0x3ff", "ok"), // sticky
        ],
    );
    assert_eq!(fs::metadata(ws.path().join("f")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(ws.path().join("dir")).unwrap().mode() & 0o7777, 0o1777);
    let f = ws.path().join("f").display().to_string();
    check_outside(&[(&format!("chmod s:{f} 0x9ed"), "ok")]);
}

#[test]
fn no_race_leaves_a_set_group_id_file_behind() {
    for explains in [false, true] {
        let ws = workspace();
        fs::write(ws.path().join("f"), "").unwrap();
        fs::create_dir(ws.path().join("d")).unwrap();
        let flags: &[&str] = if explains { &["--explain"] } else { &[] };
        let said = attempt(ws.path(), flags, "race-modes", &[]);
        // The race was one: now it was the directory, now the file.
        let expected = [
            "exchange",
            "exchange-at",
            "exchange-without-links",
            "rewrite",
            "link",
            "descriptor",
            "descriptor-in-proc",
            "empty-path",
        ];
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            expected.map(|name| format!("{name} EPERM ok")),
            "{said}"
        );
        let mode = |kind: fn(&fs::Metadata) -> bool| {
            let all = ["f", "d"].map(|name| fs::symlink_metadata(ws.path().join(name)).unwrap());
            all.iter().find(|one| kind(one)).unwrap().mode() & 0o7777
        };
        assert_eq!((mode(fs::Metadata::is_file) & 0o6000, mode(fs::Metadata::is_dir)), (0, 0o2775));
    }
}

#[test]
fn no_device_node_is_left_behind() {
    let ws = workspace();
    fs::write(ws.path().join("f"), "").unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("mknod s:null 0x21b6 0x103", "EPERM"),
            ("mknod s:disk 0x61b6 0xfe00", "EPERM"),
            ("mknodat -100 s:mem 0x21b6 0x101", "EPERM"),
            ("mknod s:zero 0x2000 0", "EPERM"),
            ("mknod s:/tmp/null 0x21b6 0x103", "EPERM"),
            // RENAME_WHITEOUT, alone and with a bit that the kernel does not read.
            ("renameat2 -100 s:f -100 s:g 4", "EPERM"),
            ("renameat2 -100 s:f -100 s:g 0x100000004", "EPERM"),
            ("renameat2 -100 s:f -100 s:g 1", "ok"),
        ],
    );
    let names = fs::read_dir(ws.path()).unwrap().flatten();
    let devices = names.filter(|entry| {
        let kind = entry.file_type().unwrap();
        kind.is_char_device() || kind.is_block_device()
    });
    assert_eq!(devices.count(), 0);
    only_as_root!();
    let null = ws.path().join("null").display().to_string();
    check_outside(&[(&format!("mknod s:{null} 0x21b6 0x103"), "ok")]);
    // Nor can a command use a node that was there before.
    check(ws.path(), &[], &[("open s:null 0", "EACCES"), ("open s:null 1", "EACCES")]);
}

#[test]
fn privileged_attributes_are_not_set() {
    let ws = workspace();
    fs::write(ws.path().join("f"), "").unwrap();
    // struct vfs_cap_data, revision 2: CAP_SYS_ADMIN permitted and effective.
    let capability = "x:0100000200002000000000000000000000000000";
    let set = format!("setxattr s:f s:security.capability {capability} 20 0");
    // Root of a sandbox is told that it was done. Nothing was.
    let owner = if is_root() { "ok" } else { "EPERM" };
    let set_by_descriptor = format!("fsetxattr $ s:security.capability {capability} 20 0");
    let mut expected = vec![
        (&*set, "EPERM"),
        ("setxattr s:f s:trusted.overlay.opaque s:y 1 0", "EPERM"),
        ("setxattr s:f s:security.x s:x 1 0", "EPERM"),
        ("removexattr s:f s:trusted.x", "EPERM"),
        ("openat -100 s:f 0", "ok"),
        (&*set_by_descriptor, "EPERM"),
        ("chown s:f 12345 -1", owner),
        ("chown s:f -1 12345", owner),
        // FS_IOC_SETFLAGS: immutable, append-only.
        ("ioctl $ 0x40086602 w:0x10", "EPERM"),
        ("ioctl $ 0x40086602 w:0x20", "EPERM"),
    ];
    // Before Linux 6.11, if the bpf module is in the lsm= list, as in Debian's kernel, everybody may set
    // attributes that no module knows on their own files, inside and outside.
    if kennel::probe::Host::detect().kernel < kennel::probe::Version(6, 11) {
        expected.retain(|(call, _)| !call.contains("s:security.x"));
    }
    let before = fs::metadata(ws.path().join("f")).unwrap();
    check(ws.path(), &[], &expected);
    let after = fs::metadata(ws.path().join("f")).unwrap();
    assert_eq!((before.uid(), before.gid()), (after.uid(), after.gid()));
    only_as_root!();
    let f = ws.path().join("f").display().to_string();
    check_outside(&[(&format!("setxattr s:{f} s:trusted.x s:y 1 0"), "ok")]);
}

#[test]
fn device_nodes_of_a_grant_are_not_opened() {
    only_as_root!();
    require!(has("mknod"), "mknod");
    let ws = workspace();
    let null = ws.path().join("null");
    let made = Command::new("mknod").args(["-m", "666"]).arg(&null).args(["c", "1", "3"]).output().unwrap();
    if !made.status.success() || fs::File::open(&null).is_err() {
        return skip(module_path!(), "device nodes cannot be made, or not opened, where the workspace is");
    }
    check(
        ws.path(),
        &[],
        &[("open s:null 0", "EACCES"), ("open s:null 1", "EACCES"), ("open s:/dev/null 0", "ok")],
    );
    check_outside(&[(&format!("open s:{} 1", null.display()), "ok")]);
}

#[test]
fn set_user_id_programs_gain_nothing() {
    let ws = workspace();
    let status = crate::support::stdout(&crate::support::shell(ws.path(), &[], "cat /proc/self/status"));
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    check(
        ws.path(),
        &[],
        &[
            ("prctl 38 0 0 0 0", "EINVAL"), // PR_SET_NO_NEW_PRIVS off
            ("prctl 28 0 0 0 0", "EPERM"),  // PR_SET_SECUREBITS
            ("prctl 47 2 21 0 0", "EPERM"), // PR_CAP_AMBIENT_RAISE CAP_SYS_ADMIN
            ("capset w:0x20080522,0 w:0xffffffff,0xffffffff,0,0x1ff,0x1ff,0", "EPERM"),
            ("capset w:0x20080522,0 w:0,0,0x200000,0,0,0", "EPERM"),
            ("prctl 22 0 0 0 0", "EINVAL"), // PR_SET_SECCOMP off
        ],
    );
}
