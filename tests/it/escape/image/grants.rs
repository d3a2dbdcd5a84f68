//! Files of the host.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use super::{
    Rooted, attempt, is_without_user_namespace, other_root, require_root, root_of_another, skip, workspace,
};
use crate::support::{only_as_root, shell, stderr, stdout};

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn set_id_bits_stay_on_files_of_the_root_and_off_files_of_the_host() {
    let rooted = root_of_another!();
    let at = |name: &str| rooted.workspace().join(name);
    fs::write(at("f"), "").unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(rooted.root.path().join("srv")).unwrap();
    fs::write(rooted.root.path().join("srv/own"), "").unwrap();
    let f = at("f").display().to_string();
    for explains in [false, true] {
        let flags = rooted.flags(if explains { &["--explain"] } else { &[] });
        let calls = [
            "chmod s:f 0x9ed",
            "fchmodat -100 s:f 0xded",
            "open s:f 2",
            "fchmod $ 0x5ed",
            "chmod s:d 0xdff",
            // The supervisor has no process in the sandbox.
            "chmod s:/proc/self/cwd/f 0x9ed",
            &format!("chmod s:/proc/self/root/{f} 0x9ed"),
            "symlink s:/srv/own s:link",
            "chmod s:link 0xded",
            "unlink s:link",
            "link s:/srv/own s:other",
            "rename s:/srv/own s:other",
            "open s:new 0x41 0x9ed",
            "mknod s:new 0x89ed 0",
            // Within a grant as the root directory, too.
            "chroot s:.",
            "chmod s:/f 0xded",
            "fchmod $ 0xded",
        ];
        let calls = calls.join(" + ");
        let said = attempt(rooted.workspace(), &flags, "call", &calls.split_whitespace().collect::<Vec<_>>());
        let expected = [
            "ok", "ok", "ok", "ok", "ok", "ENOENT", "ENOENT", "ok", "ok", "ok", "EXDEV", "EXDEV", "EPERM",
            "EPERM", "ok", "ok", "ok",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{explains}");
        assert_eq!((mode(at("f")), mode(at("d"))), (0o755, 0o2777), "{explains}");
    }
    let script = "chmod 6755 /srv/own; stat -c %a /srv/own; touch /dev/shm/x; chmod 4755 /dev/shm/x; \
                  stat -c %a /dev/shm/x; chmod 4711 f; stat -c %a f; mv /srv/own moved; stat -c %a moved";
    assert_eq!(rooted.says(&[], script), "6755\n755\n711\n755");
    assert_eq!(
        (mode(at("f")), mode(at("moved")), mode(rooted.root.path().join("srv/own"))),
        (0o711, 0o755, 0o644)
    );
}

#[test]
fn devices_are_nowhere() {
    let rooted = root_of_another!();
    rooted.check(&[
        ("mknod s:null 0x21b6 0x103", "ok"),
        ("mknod s:/disk 0x61b6 0xfe00", "ok"),
        ("mknodat -100 s:mem 0x21b6 0x101", "ok"),
        ("mknod s:fifo 0x11a4 0", "ok"),
        ("stat s:null buf", "ENOENT"),
        ("stat s:/disk buf", "ENOENT"),
        // RENAME_WHITEOUT.
        ("renameat2 -100 s:fifo -100 s:g 4", "EPERM"),
    ]);
    let names: Vec<_> =
        fs::read_dir(rooted.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["fifo"]);
}

/// CAP_DAC_OVERRIDE counts for modes, not for mounts.
#[test]
fn what_mounts_keep_is_kept() {
    let rooted = root_of_another!();
    let (data, at) = (workspace(), |name: &str| rooted.workspace().join(name));
    fs::create_dir_all(at(".git/hooks")).unwrap();
    fs::write(at(".git/config"), "[core]\n").unwrap();
    fs::write(at(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::create_dir_all(at(".git/refs")).unwrap();
    fs::create_dir_all(at(".git/objects")).unwrap();
    fs::write(at("masked"), "secret").unwrap();
    fs::write(at("kept"), "kept").unwrap();
    fs::write(data.path().join("closed"), "mine").unwrap();
    fs::set_permissions(data.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let grant = format!("{}:/data", data.path().display());
    let flags = rooted.flags(&["--ro", &grant, "--mask", "masked", "--protect", "kept"]);
    let script = "cat masked; cat /data/closed; for f in .git/hooks/x .git/config kept /data/closed /data/new; do \
                  sh -c \"echo x > $f\" 2>&1; done; chmod 666 /data/closed kept 2>&1; rm kept 2>&1; mv .git g 2>&1";
    let output = shell(rooted.workspace(), &flags, script);
    let said = stdout(&output);
    assert!(!said.contains("secret"), "{said}");
    // It belongs to the caller, who could take the mode away.
    assert!(said.starts_with("mine"), "{said}\n{}", stderr(&output));
    assert_eq!(said.matches("Read-only file system").count(), 7, "{said}");
    assert_eq!(fs::read_to_string(at("kept")).unwrap(), "kept");
    assert_eq!(mode(data.path().join("closed")), 0);
    assert!(at(".git/config").exists());
}

/// Capabilities of a user namespace count for files whose owner and group it has.
#[test]
fn files_of_others_are_as_closed_as_ever() {
    only_as_root!();
    let rooted = root_of_another!();
    for (name, owner, group) in [("user", 1000, 0), ("group", 0, 1000)] {
        let path = rooted.workspace().join(name);
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        nix::unistd::chown(&path, Some(owner.into()), Some(group.into())).unwrap();
    }
    fs::set_permissions(rooted.workspace().join("group"), fs::Permissions::from_mode(0o000)).unwrap();
    rooted.check(&[
        ("open s:user 0", "EACCES"),
        ("open s:user 1", "EACCES"),
        ("open s:group 0", "EACCES"),
        ("chown s:user 0 0", "EPERM"),
        ("chmod s:user 0x1ff", "EPERM"),
    ]);
    // Without the capability the own directory would be no different.
    assert_eq!(rooted.says(&[], "mkdir -m 0 /closed; touch /closed/x; ls /closed"), "x");
}
