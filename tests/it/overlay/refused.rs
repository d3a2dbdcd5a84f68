//! If an overlay is impossible, nothing runs, and the command does not get the workspace itself instead.

use std::{fs, path::Path};

use crate::support::{TempDir, refused, stderr, workspace};

/// The promise of kernels before Linux 6.6.
pub(crate) fn is_refused_in_memory() {
    let dir = workspace();
    let said = refused(dir.path(), &["--overlay-size", "1M"]);
    assert!(said.contains("cannot keep the changes of an overlay in memory"), "{said}");
    assert!(said.contains("--overlay-upper"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// An empty directory beside a workspace, on a file system that may be suitable for changes.
fn upper() -> TempDir {
    let dir = workspace();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    dir
}

fn flag(directory: &Path) -> [&str; 2] {
    ["--overlay-upper", directory.to_str().unwrap()]
}

#[test]
fn profile_read_only_has_no_changes_to_keep() {
    let dir = workspace();
    let said = refused(dir.path(), &["--profile", "read-only", "--overlay"]);
    assert!(said.contains("overlay `read-only`"), "{said}");
}

#[test]
fn a_grant_that_bypasses_the_overlay() {
    if !super::in_memory() {
        return is_refused_in_memory();
    }
    let dir = workspace();
    fs::create_dir_all(dir.path().join("w/sub")).unwrap();
    let workspace = dir.path().join("w");
    for (grant, target) in [("sub", ""), ("sub", ":/elsewhere"), ("", ":/elsewhere"), ("..", ":/elsewhere")] {
        let spec = format!("{}{target}", workspace.join(grant).display());
        let said = refused(&workspace, &["--overlay-size", "1G", "--rw", &spec]);
        assert!(said.contains("past the overlay") && said.contains("hint:"), "{said}");
    }
    let spec = format!("{}:/elsewhere", workspace.join("sub").display());
    let output = crate::support::shell(
        &workspace,
        &["--quiet", "--overlay-size", "1G", "--ro", &spec],
        "! touch /elsewhere/x",
    );
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn directories_that_cannot_keep_changes() {
    let (dir, upper) = (workspace(), upper());
    fs::create_dir(dir.path().join("up")).unwrap();
    fs::write(upper.path().join("x"), "x").unwrap();
    let inside = dir.path().join("up");
    for (directory, words) in [
        (&*inside, "overlaps the workspace"),
        (dir.path().parent().unwrap(), ""),
        (Path::new("/nowhere/at/all"), "No such file"),
        (&upper.path().join("x"), "not a directory"),
        (upper.path(), "not empty"),
    ] {
        let said = refused(dir.path(), &flag(directory));
        assert!(said.contains(words) && said.contains("hint:"), "{said}");
    }
    assert_eq!(fs::read(upper.path().join("x")).unwrap(), b"x");
    let granted = upper.path().to_str().unwrap();
    let said = refused(dir.path(), &["--overlay-upper", granted, "--rw", granted]);
    assert!(said.contains("overlaps a writable grant"), "{said}");
    let said = refused(dir.path(), &["--overlay-upper", granted, "--overlay-size", "1M"]);
    assert!(said.contains("one of the two"), "{said}");
}

#[test]
fn a_session_by_name_keeps_no_changes_in_memory() {
    let dir = workspace();
    let kennel = std::process::Command::new(crate::support::kennel_path())
        .current_dir(dir.path())
        .args(["session", "start", "--name", "overlaid", "--overlay-size", "1M"])
        .output()
        .unwrap();
    assert_eq!(kennel.status.code(), Some(125));
    assert!(stderr(&kennel).contains("changes in memory would be lost"), "{}", stderr(&kennel));
}

/// A file system with one directory, owned by root and of mode 700, which a program serves at `sys.argv[1]`.
/// The program runs the other arguments meanwhile.
const FUSE: &str = r#"
import ctypes, os, struct, subprocess, sys
fuse = os.open('/dev/fuse', os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % fuse
if libc.mount(b'x', sys.argv[1].encode(), b'fuse', 0, options):
    sys.exit('no mount: ' + os.strerror(ctypes.get_errno()))
child = os.fork()
if child == 0:
    while True:
        try: request = os.read(fuse, 1 << 18)
        except OSError: os._exit(0)
        _, code, unique = struct.unpack_from('IIQ', request)
        answer = {
            3: struct.pack('QII6Q10I', 9, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40700, 2, 0, 0, 0, 4096, 0),
            17: struct.pack('5Q4I24x', 0, 0, 0, 0, 0, 4096, 255, 4096, 0),
            26: struct.pack('4I48x', 7, 31, 0, 0),
        }.get(code)
        if code in (2, 38, 42): continue
        error = 0 if answer else -38
        os.write(fuse, struct.pack('IiQ', 16 + len(answer or b''), error, unique) + (answer or b''))
status = subprocess.run(sys.argv[2:]).returncode
os.kill(child, 9)
sys.exit(status)
"#;

#[test]
fn a_directory_that_a_program_serves() {
    crate::support::only_as_root!();
    crate::support::require!(crate::support::has("python3"), "python3");
    crate::support::require!(crate::support::has("unshare"), "unshare");
    crate::support::require!(Path::new("/dev/fuse").exists(), "/dev/fuse");
    let (dir, served) = (workspace(), upper());
    let output = std::process::Command::new("timeout")
        .args(["60", "unshare", "-m", "python3", "-c", FUSE])
        .arg(served.path())
        .arg(crate::support::kennel_path())
        .args(["run", "--overlay-upper"])
        .arg(served.path())
        .args(["--", "true"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(said.contains("lies on a network or FUSE file system"), "{output:?}");
    assert_eq!(output.status.code(), Some(125), "{said}");
}
