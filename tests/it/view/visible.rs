//! Paths that exist inside, and paths that do not.

use std::{collections::BTreeSet, env, fs, path::Path};

use crate::support::{fails, only_as_root, succeeds, workspace};

/// The sandbox's own entries in /tmp: the workspace, and HOME if it is there.
pub(super) fn own_in_tmp(workspace: &Path) -> String {
    let home = env::var_os("HOME").unwrap_or_default();
    let below = [workspace, Path::new(&home)].into_iter().filter_map(|path| path.strip_prefix("/tmp").ok());
    let names: BTreeSet<_> = below.filter_map(|path| path.iter().next()?.to_str()).collect();
    names.into_iter().collect::<Vec<_>>().join("\n")
}

/// The first part of a path, as `/` lists it.
fn top(path: &Path) -> String {
    path.iter().nth(1).unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn root_lists_only_what_is_granted() {
    let dir = workspace();
    let listed: BTreeSet<String> =
        succeeds(dir.path(), &["--toolchains", "none"], "ls -A /").lines().map(str::to_owned).collect();
    let mut expected: BTreeSet<String> =
        ["dev", "etc", "proc", "run", "sys", "tmp", "var"].map(str::to_owned).into();
    let system = ["bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr"];
    expected
        .extend(system.iter().filter(|name| Path::new("/").join(name).exists()).map(|&name| name.to_owned()));
    expected.extend(env::var_os("HOME").map(|home| top(Path::new(&home))).filter(|name| !name.is_empty()));
    expected.insert(top(dir.path()));
    assert_eq!(listed, expected);
}

#[test]
fn host_places_that_nobody_granted_do_not_exist() {
    let dir = workspace();
    let beside = workspace();
    fs::write(beside.path().join("secret"), "secret").unwrap();
    let secret = beside.path().join("secret");
    let paths = [
        "/etc/shadow",
        "/etc/sudoers",
        "/etc/ssh/ssh_host_rsa_key",
        "/sys/block",
        "/sys/fs",
        "/boot",
        "/srv",
        "/media",
        "/var/log",
        "/var/lib/systemd",
    ];
    for path in paths.into_iter().chain(secret.to_str()).filter(|path| fs::symlink_metadata(path).is_ok()) {
        let said = fails(dir.path(), &[], &format!("ls -d {path}"));
        assert!(said.contains("No such file or directory"), "{path}: {said}");
    }
    let shown =
        succeeds(dir.path(), &["--ro", secret.to_str().unwrap()], &format!("cat {}", secret.display()));
    assert_eq!(shown, "secret", "and granted, it is there");
}

#[test]
fn temporary_directory_shows_the_workspace_and_nothing_of_the_host() {
    let (dir, _beside) = (workspace(), workspace());
    let flags = ["--toolchains", "none"];
    assert_eq!(succeeds(dir.path(), &flags, "ls -A /tmp"), own_in_tmp(dir.path()));
}

#[test]
fn system_works_and_cannot_be_written() {
    let dir = workspace();
    assert_eq!(succeeds(dir.path(), &[], "/usr/bin/env true && ls /usr/bin/env"), "/usr/bin/env");
    for attempt in [
        "touch /x",
        "mkdir /etc/x",
        "touch /etc/x",
        "touch /usr/x",
        "touch /usr/bin/x",
        "rm -f /usr/bin/env",
        "rm -f /etc/passwd",
        "mv /usr/bin/env /usr/bin/x",
        "ln -s x /var/x",
        "mkdir /run/x",
        "mknod /dev/x p",
        "rm -f /dev/null",
        "rm -f /bin/sh",
    ] {
        let said = fails(dir.path(), &[], attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
}

#[test]
fn owner_of_system_files_cannot_change_them() {
    only_as_root!();
    let dir = workspace();
    for attempt in ["chmod 777 /usr/bin/env", "chmod 777 /etc", "touch -c /usr/bin/env", "chown 0:0 /usr"] {
        let said = fails(dir.path(), &[], attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
    for attempt in ["echo x >> /etc/passwd", "echo x >> /usr/bin/env"] {
        let said = loop {
            let said = fails(dir.path(), &[], attempt);
            // Another test executes it at this moment.
            if !said.contains("Text file busy") {
                break said;
            }
        };
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
}

#[test]
fn etc_has_what_programs_need() {
    let dir = workspace();
    let etc = succeeds(dir.path(), &[], "ls /etc");
    for name in ["group", "hosts", "hostname", "nsswitch.conf", "passwd"] {
        assert!(etc.lines().any(|line| line == name), "{name}: {etc}");
    }
    if Path::new("/etc/resolv.conf").exists() {
        let inside = succeeds(dir.path(), &["--net", "none"], "cat /etc/resolv.conf");
        assert_eq!(inside, fs::read_to_string("/etc/resolv.conf").unwrap().trim_end());
    }
    let hosts = succeeds(dir.path(), &[], "cat /etc/hosts");
    assert!(hosts.contains("127.0.0.1 localhost kennel"), "{hosts}");
}

#[test]
fn mount_table_inside_shows_no_path_of_an_old_root() {
    let dir = workspace();
    let mounts = succeeds(dir.path(), &[], "cut -d' ' -f5 /proc/self/mountinfo");
    let granted = |line: &str| {
        let own = dir.path().to_str().unwrap();
        line == "/"
            || line.starts_with(own)
            || [
                "/usr",
                "/bin",
                "/sbin",
                "/lib",
                "/etc",
                "/dev",
                "/proc",
                "/sys",
                "/tmp",
                "/var/tmp",
                "/root",
                "/home",
                "/opt",
                "/var/cache/fontconfig",
                "/var/lib/dpkg",
                "/var/lib/texmf",
            ]
            .iter()
            .any(|top| line.starts_with(top))
    };
    for line in mounts.lines() {
        assert!(granted(line), "{line} in {mounts}");
    }
    assert_eq!(mounts.lines().filter(|line| *line == "/").count(), 1, "one root only: {mounts}");
}
