//! Mounts that only a policy file can ask for, in TOML and in JSON.

use std::{fs, path::Path};

use crate::support::{fails, refused, succeeds, workspace};

/// Writes `text` as a policy file beside the workspace and returns its path.
fn policy_file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const TOML: &str = r##"
[[mounts]]
type = "file"
target = "/etc/motd"
contents = "hello\n"
[[mounts]]
type = "file"
target = "/opt/tool/run"
contents = "#!/bin/sh\necho tool ran\n"
executable = true
[[mounts]]
type = "symlink"
target = "/opt/current"
points_to = "tool"
[[mounts]]
type = "tmpfs"
target = "/scratch"
size = "1M"
[[mounts]]
type = "proc"
target = "/mnt/proc"
"##;

const JSON: &str = r##"{"mounts": [
 {"type": "file", "target": "/etc/motd", "contents": "hello\n"},
 {"type": "file", "target": "/opt/tool/run", "contents": "#!/bin/sh\necho tool ran\n", "executable": true},
 {"type": "symlink", "target": "/opt/current", "points_to": "tool"},
 {"type": "tmpfs", "target": "/scratch", "size": 1048576},
 {"type": "proc", "target": "/mnt/proc"}
]}"##;

#[test]
fn every_kind_works_from_either_form() {
    let (dir, beside) = (workspace(), workspace());
    let own = dir.path().to_str().unwrap();
    for (name, text) in [("p.toml", TOML), ("p.json", JSON)] {
        let file = policy_file(beside.path(), name, text);
        let flags = ["--policy", &file, "--workspace", own, "--toolchains", "none"];
        assert_eq!(succeeds(dir.path(), &flags, "cat /etc/motd; stat -c %a /etc/motd"), "hello\n644");
        assert_eq!(succeeds(dir.path(), &flags, "/opt/current/run; readlink /opt/current"), "tool ran\ntool");
        assert_eq!(
            succeeds(dir.path(), &flags, "tr -d '\\0' < /mnt/proc/1/cmdline; touch /scratch/x"),
            "kennel"
        );
        assert!(fails(dir.path(), &flags, "echo x > /etc/motd").contains("Read-only file system"));
        assert!(fails(dir.path(), &flags, "rm -f /opt/current").contains("Read-only file system"));
        assert!(fails(dir.path(), &flags, "/etc/motd").contains("Permission denied"), "not executable");
        let said = fails(dir.path(), &flags, "echo x > /mnt/proc/sys/kernel/hostname");
        assert!(said.contains("Read-only file system") || said.contains("Permission denied"), "{said}");
        assert!(
            fails(dir.path(), &flags, "head -c 2000000 /dev/zero > /scratch/x").contains("No space left")
        );
    }
}

#[test]
fn device_is_granted_by_name() {
    let dir = workspace();
    let beside = workspace();
    let device = [
        "/dev/console",
        "/dev/tty0",
        "/dev/mem",
        "/dev/fuse",
        "/dev/kvm",
        "/dev/net/tun",
        "/dev/kmsg",
        "/dev/loop-control",
        "/dev/hwrng",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists());
    crate::support::require!(device.is_some(), "one device node beyond the usual");
    let device = device.unwrap();
    assert!(fails(dir.path(), &[], &format!("ls {device}")).contains("No such file or directory"));
    let file =
        policy_file(beside.path(), "p.toml", &format!("mounts = [{{ type = 'device', path = '{device}' }}]"));
    let flags = ["--policy", &file, "--workspace", dir.path().to_str().unwrap()];
    succeeds(dir.path(), &flags, &format!("test -c {device}"));
    for (path, words) in [
        ("/dev/absent", "No such file or directory"),
        ("/etc/passwd", "below /dev"),
        ("/dev/pts", "not a device node"),
    ] {
        let file = policy_file(
            beside.path(),
            "q.toml",
            &format!("mounts = [{{ type = 'device', path = '{path}' }}]"),
        );
        let said = refused(dir.path(), &["--policy", &file]);
        assert!(said.contains(path) && said.contains(words), "{said}");
    }
}

#[test]
fn file_can_replace_one_of_the_sandbox_s_own() {
    let (dir, beside) = (workspace(), workspace());
    let text = "mounts = [{ type = 'file', target = '/etc/hosts', contents = '127.0.0.1 mine' }]";
    let file = policy_file(beside.path(), "p.toml", text);
    let flags = ["--policy", &file, "--workspace", dir.path().to_str().unwrap()];
    assert_eq!(succeeds(dir.path(), &flags, "cat /etc/hosts"), "127.0.0.1 mine");
}

#[test]
fn files_and_links_never_appear_on_the_host() {
    let (dir, beside) = (workspace(), workspace());
    let own = dir.path().to_str().unwrap();
    for mount in [
        format!("{{ type = 'file', target = '{own}/made', contents = '' }}"),
        format!("{{ type = 'symlink', target = '{own}/made', points_to = '/etc' }}"),
        format!("{{ type = 'proc', target = '{own}/made' }}"),
    ] {
        let file = policy_file(beside.path(), "p.toml", &format!("workspace = '{own}'\nmounts = [{mount}]"));
        let said = refused(dir.path(), &["--policy", &file]);
        assert!(said.contains(&format!("{own}/made: ")) && said.contains("hint: "), "{said}");
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "{mount}");
    }
}

#[test]
fn paths_with_colons_work_from_a_file() {
    let (dir, beside) = (workspace(), workspace());
    let odd = beside.path().join("a:b");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("file"), "text").unwrap();
    let text = format!(
        "mounts = [{{ type = 'ro', source = 'a:b', target = '/odd:place' }}]\nworkspace = '{}'",
        dir.path().display()
    );
    let file = policy_file(beside.path(), "p.toml", &text);
    assert_eq!(succeeds(dir.path(), &["--policy", &file], "cat /odd:place/file"), "text");
}
