//! `--image-upper`: what commands change in another root is on a disk, and goes with the session.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Output,
};

use kennel::{Error, ImageUpper, Policy, Sandbox, overlay::OverlayError};

use super::{
    fixtures::Images,
    run::{Running, images},
    snapshot::Started,
};
use crate::support::{
    is_without_user_namespace, kennel_path, other_root, require_root, skip, stderr, stdout, until,
};

/// More than `--tmp-size` of these tests.
const LARGE: &str = "dd if=/dev/zero of=/srv/large bs=1M count=3 2>&1";

fn own(images: &Images, name: &str) -> PathBuf {
    let path = images.at(name);
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

/// `kennel run` of a script as root of the image.
fn script(running: &Running, flags: &[&str], script: &str) -> Output {
    running.run(&[&["--user", "0"], flags, &["--entrypoint", "sh", "--", "-c", script]].concat())
}

#[test]
fn changes_are_in_the_directory_while_the_session_lives() {
    let running = images!();
    let upper = own(&running.images, "upper");
    let session = Started::new(running, &["--tmp-size", "1M", "--image-upper", upper.to_str().unwrap()]);
    session.says(&format!(
        "{LARGE}; rm /etc/passwd; echo x > /srv/closed; chmod 000 /srv/closed; mkdir -m 0 /shut"
    ));
    assert_eq!(fs::metadata(upper.join("upper/srv/large")).unwrap().len(), 3 << 20);
    // Two sessions with one directory would spoil each other's.
    let flags = ["--image-upper", upper.to_str().unwrap()];
    let output = script(session.running(), &flags, "true");
    assert!(
        output.status.code() == Some(125) && stderr(&output).contains("another session uses it"),
        "{output:?}"
    );
    // A snapshot is the same from a disk.
    let said = session.run(&["session", "snapshot", "s", "mine:1"]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(
        session.in_image("mine:1", "stat -c %s /srv/large; ls /etc/passwd 2>/dev/null || true"),
        "3145728"
    );
    session.run(&["session", "stop", "s"]);
    // The next one waits until the last has gone.
    let output = script(session.running(), &flags, "ls -A /srv/large 2>/dev/null; true");
    assert!(output.status.success() && stdout(&output).is_empty(), "{output:?}");
    assert!(is_empty(&upper));
}

#[test]
fn one_command_has_its_changes_on_the_disk_too() {
    let running = images!();
    let upper = own(&running.images, "upper");
    for flags in [["--image-upper", "disk"], ["--image-upper", upper.to_str().unwrap()]] {
        let output = script(
            &running,
            &[&flags[..], &["--tmp-size", "1M"]].concat(),
            &format!("{LARGE}; stat -c %s /srv/large"),
        );
        assert!(output.status.success() && stdout(&output).ends_with("3145728"), "{output:?}");
    }
    let output = script(&running, &["--tmp-size", "1M"], LARGE);
    assert!(stdout(&output).contains("No space left"), "{output:?}");
    assert!(is_empty(&upper) && is_empty(&running.images.store().join("tmp")));
    // Names end where they began: the directory of the policy file.
    own(&running.images, "beside");
    let policy = running.images.file("p.toml", "image = 'app:1'\nuser = '0'\nimage_upper = 'beside'");
    let mut kennel = std::process::Command::new(kennel_path());
    kennel.args(["run", "--policy", &policy, "--entrypoint", "sh", "--", "-c", "echo x > /new; cat /new"]);
    let output = kennel.env("KENNEL_IMAGES", running.images.store()).output().unwrap();
    assert_eq!(stdout(&output), "x", "{output:?}");
}

#[test]
fn what_a_killed_session_left_goes_with_the_next() {
    let running = images!();
    let left = running.images.store().join("tmp");
    let session = Started::new(running, &["--image-upper", "disk"]);
    session.says("echo x > /srv/x; mkdir -m 0 /shut");
    let list: serde_json::Value =
        serde_json::from_slice(&session.run(&["session", "list", "--json"]).stdout).unwrap();
    let pid = i32::try_from(list[0]["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(!is_empty(&left));
    // Its processes may take a moment.
    until("the next one has removed it", || {
        let output = script(session.running(), &["--image-upper", "disk"], "ls /srv/x 2>/dev/null; true");
        assert_eq!(stdout(&output), "", "{output:?}");
        is_empty(&left)
    });
}

#[test]
fn directories_that_cannot_hold_changes_are_refused() {
    let running = images!();
    let refused = |flags: &[&str], why: &str| {
        let output = script(&running, flags, "true");
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
        assert!(stderr(&output).contains(why), "{why}: {output:?}");
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (open, full, upper) =
        (own(&running.images, "open"), own(&running.images, "full"), own(&running.images, "upper"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(full.join("file"), "mine").unwrap();
    refused(&["--image-upper", "/none"], "No such file");
    refused(&["--image-upper", &text(&full.join("file"))], "Not a directory");
    refused(&["--image-upper", &text(&open)], "accessible to other users");
    refused(&["--image-upper", &text(&full)], "it is not empty");
    refused(&["--image-upper", &text(&upper), "--rw", &text(&upper)], "overlaps a writable grant");
    refused(
        &["--image-upper", &text(&upper), "--workspace", &text(&running.images.at("."))],
        "overlaps a writable grant",
    );
    refused(&["--image-upper", "disk", "--profile", "read-only"], "change nothing of the root");
    refused(&["--image-upper", ""], "");
    assert!(fs::read(full.join("file")).is_ok() && is_empty(&upper));
    let mut host = std::process::Command::new(kennel_path());
    let output = host.args(["run", "--image-upper", "disk", "--", "true"]).output().unwrap();
    assert!(stderr(&output).contains("the root is the host's"), "{output:?}");
}

/// In the library, a sandbox of one command has its changes in memory.
#[test]
fn a_sandbox_of_one_command_says_that_it_needs_a_session() {
    require_root!();
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    let root = other_root();
    let policy = Policy::default().root(root.path()).image_upper(ImageUpper::Disk);
    let error = Sandbox::new(&policy).unwrap_err();
    assert!(matches!(&error, Error::Overlay(OverlayError::NeedsSession)), "{error:?}");
}
