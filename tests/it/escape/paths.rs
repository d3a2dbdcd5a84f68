//! Files outside the grants, by every kind of path, link, descriptor and handle.

use std::{
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, symlink},
        unix::net::UnixListener,
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::{check, check_outside, command, landlock_abi, lines};
use crate::support::{attempt, only_as_root, patient, payload_path, quiet, require, stdout, workspace};

#[test]
fn a_path_outside_the_grants_leads_nowhere() {
    let (ws, other) = (workspace(), workspace());
    let secret = other.path().join("secret");
    fs::write(&secret, "s").unwrap();
    let secret = secret.display();
    let up = format!("{}/../{secret}", ws.path().display());
    check(
        ws.path(),
        &[],
        &[
            (&format!("open s:{secret} 0"), "ENOENT"),
            (&format!("open s:{up} 0"), "ENOENT"),
            (&format!("open s:../../../../../../../..{secret} 0"), "ENOENT"),
            (&format!("creat s:{secret}.new 0x1a4"), "ENOENT"),
            (&format!("truncate s:{secret} 0"), "ENOENT"),
            (&format!("unlink s:{secret}"), "ENOENT"),
            ("open s:/etc/shadow 0", "ENOENT"),
            ("open s:/sys/block 0", "ENOENT"),
            ("open s:/boot 0", "ENOENT"),
            ("open s:/proc/../../../../../etc/shadow 0", "ENOENT"),
        ],
    );
    check_outside(&[(&format!("open s:{secret} 0"), "ok")]);
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn a_link_in_the_workspace_does_not_lead_out() {
    let (ws, other) = (workspace(), workspace());
    let target = other.path().join("f");
    fs::write(&target, "kept").unwrap();
    symlink(&target, ws.path().join("file")).unwrap();
    symlink(other.path(), ws.path().join("dir")).unwrap();
    symlink("/etc/shadow", ws.path().join("shadow")).unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("open s:file 0", "ENOENT"),
            ("open s:file 0x241 0x1a4", "ENOENT"),
            ("open s:dir/f 0", "ENOENT"),
            ("creat s:dir/new 0x1a4", "ENOENT"),
            ("open s:shadow 0", "ENOENT"),
            ("chmod s:file 0x1ff", "ENOENT"),
        ],
    );
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn a_hard_link_is_made_within_a_grant_only() {
    let (ws, other) = (workspace(), workspace());
    let theirs = other.path().join("f");
    fs::write(&theirs, "kept").unwrap();
    fs::write(ws.path().join("mine"), "").unwrap();
    let grant = other.path().display().to_string();
    // Before Linux 6.10 this needs CAP_DAC_READ_SEARCH, whoever opened the file.
    let by_descriptor = if kennel::probe::Host::detect().kernel >= kennel::probe::Version(6, 10) {
        "EXDEV"
    } else {
        "ENOENT"
    };
    check(
        ws.path(),
        &["--ro", &grant],
        &[
            (&format!("link s:{} s:hard", theirs.display()), "EXDEV"),
            ("link s:/usr/bin/env s:hard", "EXDEV"),
            ("link s:/etc/passwd s:hard", "EXDEV"),
            ("link s:mine s:again", "ok"),
            (&format!("open s:{} 0x200000", theirs.display()), "ok"),
            ("linkat $ s: -100 s:hard 0x1000", by_descriptor),
            (&format!("open s:{} 0x200000", theirs.display()), "ok"),
            ("linkat -100 s:/proc/self/fd/4 -100 s:hard 0x400", "EXDEV"),
        ],
    );
    assert_eq!(fs::metadata(&theirs).unwrap().nlink(), 1);
}

#[test]
fn magic_links_of_proc_stay_inside() {
    let (ws, other) = (workspace(), workspace());
    let secret = other.path().join("f");
    fs::write(&secret, "s").unwrap();
    let secret = secret.display();
    check(
        ws.path(),
        &[],
        &[
            (&format!("open s:/proc/self/root{secret} 0"), "ENOENT"),
            (&format!("open s:/proc/self/cwd/../..{secret} 0"), "ENOENT"),
            (&format!("open s:/proc/thread-self/root{secret} 0"), "ENOENT"),
            (&format!("open s:/proc/1/root{secret} 0"), "EACCES"),
            (&format!("open s:/proc/1/cwd{secret} 0"), "EACCES"),
            ("readlink s:/proc/1/root buf 4096", "EACCES"),
            ("open s:/proc/1/exe 0", "EACCES"),
            ("open s:/proc/self/root/payload 0", "ok"),
            ("open s:/proc/9999999/root 0", "ENOENT"),
        ],
    );
}

#[test]
fn descriptors_of_the_caller_are_not_inherited() {
    let ws = workspace();
    let root = File::open("/").unwrap();
    let leaked = nix::unistd::dup(&root).unwrap();
    assert!(leaked.as_raw_fd() > 2);
    let output = command(ws.path(), &[], &["descriptors"]).output().unwrap();
    assert_eq!(lines(&output), ["0 1 2"]);
    let metadata = root.metadata().unwrap();
    let (device, inode) = (metadata.dev().to_string(), metadata.ino().to_string());
    let found = attempt(ws.path(), &[], "hunt", &[&device, &inode]);
    assert_eq!(found, "nowhere");
    let own = fs::metadata(ws.path()).unwrap();
    let (device, inode) = (own.dev().to_string(), own.ino().to_string());
    let found = attempt(ws.path(), &[], "hunt", &[&device, &inode]);
    assert!(found != "nowhere", "the hunt finds what is there");
}

#[test]
fn a_directory_as_standard_input_is_no_way_up() {
    require!(landlock_abi() >= 1, "Landlock");
    let (ws, other) = (workspace(), workspace());
    fs::write(other.path().join("f"), "kept").unwrap();
    let stdin = File::open(other.path()).unwrap();
    let calls = "call openat 0 s:f 0 + openat 0 s:f 1 + openat 0 s:.. 0 + openat 0 s:new 0x41 0x1a4 + \
                 openat 0 s:../../etc/hostname 0";
    let mut command = command(ws.path(), &[], &calls.split_whitespace().collect::<Vec<_>>());
    let output = command.stdin(Stdio::from(stdin)).output().unwrap();
    // The open is refused, or every step from it.
    if output.status.code() != Some(125) {
        assert_eq!(lines(&output), ["EACCES"; 5]);
    }
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn standard_output_is_not_reopened_for_more() {
    require!(landlock_abi() >= 1, "Landlock");
    let (ws, other) = (workspace(), workspace());
    let log = other.path().join("log");
    fs::write(&log, "before\n").unwrap();
    let file = File::options().append(true).open(&log).unwrap();
    let calls = "call open s:/proc/self/fd/2 0 + open s:/proc/self/fd/2 2 + open s:/dev/stderr 0x201 + \
                 open s:/proc/self/fd/2/../x 0x41 0x1a4 + linkat -100 s:/proc/self/fd/2 -100 s:hard 0x400 + \
                 write 2 s:after 5";
    let mut command = command(ws.path(), quiet(), &calls.split_whitespace().collect::<Vec<_>>());
    let output = command.stderr(Stdio::from(file)).output().unwrap();
    assert_eq!(lines(&output), ["EACCES", "EACCES", "EACCES", "ENOTDIR", "EXDEV", "ok"]);
    assert_eq!(fs::read_to_string(&log).unwrap(), "before\nafter");
}

#[test]
fn files_are_not_opened_by_handle() {
    let ws = workspace();
    fs::write(ws.path().join("f"), "").unwrap();
    check(
        ws.path(),
        &[],
        &[
            ("openat -100 s:f 0", "ok"),
            ("name_to_handle_at -100 s:f w:128 buf 0", "ok"),
            ("open_by_handle_at $ w:8,1,2,0 0", "EPERM"),
            ("fanotify_init 0 0", "EPERM"),
            ("lookup_dcookie 1 buf 4096", "EPERM"),
        ],
    );
    let file = ws.path().join("f").display().to_string();
    assert_eq!(attempt(ws.path(), &[], "spray-handles", &[&file]), "EPERM");
    only_as_root!();
    // Not every file system has such handles, but root may ask for them.
    let outside = Command::new(payload_path()).args(["spray-handles", &file]).output().unwrap();
    let said = stdout(&outside);
    assert!(said.contains("ok") || said == "ESTALE", "{said}");
}

#[test]
fn a_directory_moved_away_meanwhile_does_not_lead_up() {
    let (ws, other) = (workspace(), workspace());
    let dir = ws.path().join("dir");
    fs::create_dir(&dir).unwrap();
    let go = ws.path().join("go");
    let arguments = [&dir, &go].map(|path| path.display().to_string());
    let child = command(ws.path(), &[], &["walk-up", &arguments[0], &arguments[1]])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(patient(Duration::from_millis(500)));
    fs::rename(&dir, other.path().join("dir")).unwrap();
    fs::write(&go, "").unwrap();
    assert_eq!(lines(&child.wait_with_output().unwrap()), ["ok", "ENOENT", "ENOENT", "ENOENT"]);
}

#[test]
fn a_socket_of_the_host_is_reached_only_where_it_is_granted() {
    let (ws, other) = (workspace(), workspace());
    let path = other.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (path, dir) = (path.display().to_string(), other.path().display().to_string());
    assert_eq!(attempt(ws.path(), &[], "unix", &[&path]), "ENOENT");
    let link = ws.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(attempt(ws.path(), &[], "unix", &[&link.display().to_string()]), "ENOENT");
    // A grant of the directory includes the sockets in it.
    assert_eq!(attempt(ws.path(), &["--ro", &dir], "unix", &[&path]), "ok");
    assert_eq!(attempt(ws.path(), &["--ro", &dir, "--mask", &path], "unix", &[&path]), "ECONNREFUSED");
}
