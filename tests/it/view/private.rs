//! Directories of the command's own: writable with every profile, empty at the start, gone at the end.

use std::{env, fs, path::Path};

use crate::support::{fails, succeeds, workspace};

#[test]
fn private_places_are_writable_and_gone_afterwards() {
    let dir = workspace();
    let name = format!("kennel-private-{}", std::process::id());
    for profile in ["read-only", "repo-write", "no-network", "full-dev"] {
        for place in ["/tmp", "/dev/shm"] {
            let script = format!("echo x > {place}/{name} && cat {place}/{name}");
            assert_eq!(succeeds(dir.path(), &["--profile", profile], &script), "x", "{profile} {place}");
            assert!(!Path::new(place).join(&name).exists(), "the host does not get it");
            let said = fails(dir.path(), &["--profile", profile], &format!("ls {place}/{name}"));
            assert!(said.contains("No such file or directory"), "nor the next command: {said}");
        }
    }
}

#[test]
fn home_is_private() {
    let dir = workspace();
    let home = env::var("HOME").unwrap();
    // Toolchains and the copy of ~/.gitconfig are what a usual HOME shows.
    let flags = ["--toolchains", "none", "--git", "workspace"];
    assert_eq!(succeeds(dir.path(), &flags, "ls -A ~; echo x > ~/f; cat ~/f"), "x");
    assert!(!Path::new(&home).join("f").exists());
    assert_eq!(succeeds(dir.path(), &[], "stat -c %a ~"), "700");
    succeeds(dir.path(), &[], "mkdir -p ~/.cache/x ~/.config/y && touch ~/.cache/x/z");
}

#[test]
fn home_that_is_granted_is_the_real_one() {
    let (dir, home) = (workspace(), workspace());
    fs::write(home.path().join("file"), "text").unwrap();
    let output = crate::support::kennel(
        dir.path(),
        &["--ro", home.path().to_str().unwrap()],
        &["sh", "-c", "cat ~/file; touch ~/x"],
    )
    .env("HOME", home.path())
    .output()
    .unwrap();
    assert_eq!(crate::support::stdout(&output), "text");
    assert!(crate::support::stderr(&output).contains("Read-only file system"), "{output:?}");
}

#[test]
fn modes_are_those_of_a_usual_system() {
    let dir = workspace();
    assert_eq!(succeeds(dir.path(), &[], "stat -c %a /tmp /var/tmp /dev/shm /"), "1777\n1777\n1777\n755");
    assert_eq!(succeeds(dir.path(), &[], "readlink /var/run"), "/run");
}

#[test]
fn tmpfs_is_empty_writable_and_as_large_as_asked() {
    let dir = workspace();
    let flags = ["--tmpfs", "/scratch:1M"];
    assert_eq!(
        succeeds(
            dir.path(),
            &flags,
            "ls -A /scratch; head -c 900000 /dev/zero > /scratch/f; stat -c %s /scratch/f"
        ),
        "900000"
    );
    let said = fails(dir.path(), &flags, "head -c 2000000 /dev/zero > /scratch/f");
    assert!(said.contains("No space left on device"), "{said}");
    let said = fails(dir.path(), &[], "ls /scratch");
    assert!(said.contains("No such file or directory"), "{said}");
}

#[test]
fn tmpfs_covers_a_part_of_the_workspace() {
    let dir = workspace();
    fs::create_dir(dir.path().join("target")).unwrap();
    fs::write(dir.path().join("target/old"), "old").unwrap();
    let place = dir.path().join("target");
    let flags = ["--tmpfs", place.to_str().unwrap()];
    assert_eq!(succeeds(dir.path(), &flags, "ls -A target; touch target/new; ls -A target"), "new");
    assert_eq!(fs::read_to_string(place.join("old")).unwrap(), "old");
    assert!(!place.join("new").exists());
}

#[test]
fn masked_directory_is_empty_and_closed() {
    let dir = workspace();
    fs::create_dir(dir.path().join("keys")).unwrap();
    fs::write(dir.path().join("keys/id"), "secret").unwrap();
    assert_eq!(succeeds(dir.path(), &[], "cat keys/id"), "secret");
    let flags = ["--mask", "keys"];
    assert_eq!(succeeds(dir.path(), &flags, "ls -A keys"), "");
    assert!(fails(dir.path(), &flags, "cat keys/id").contains("No such file or directory"));
    assert!(fails(dir.path(), &flags, "touch keys/x").contains("Read-only file system"));
    assert!(fails(dir.path(), &flags, "rmdir keys").contains("Device or resource busy"));
    assert!(fails(dir.path(), &flags, "mv keys other").contains("Device or resource busy"));
    assert_eq!(fs::read_to_string(dir.path().join("keys/id")).unwrap(), "secret");
}

#[test]
fn masked_file_is_unreadable_and_stays() {
    let dir = workspace();
    fs::write(dir.path().join(".env"), "secret").unwrap();
    let flags = ["--mask", ".env"];
    assert_eq!(succeeds(dir.path(), &flags, "cat .env"), "");
    assert!(fails(dir.path(), &flags, "rm -f .env").contains("Device or resource busy"));
    assert!(fails(dir.path(), &flags, "mv .env other").contains("Device or resource busy"));
    crate::support::shell(dir.path(), &flags, "echo overwritten > .env");
    assert_eq!(fs::read_to_string(dir.path().join(".env")).unwrap(), "secret");
    let other = fails(dir.path(), &flags, "ln .env copy");
    assert!(other.contains("cross-device") || other.contains("not permitted"), "{other}");
}

#[test]
fn mask_of_the_system_hides_it() {
    let dir = workspace();
    assert!(succeeds(dir.path(), &[], "ls -A /usr/share").lines().count() > 1);
    assert_eq!(succeeds(dir.path(), &["--mask", "/usr/share"], "ls -A /usr/share"), "");
}

#[test]
fn mask_of_a_file_that_the_sandbox_has_a_copy_of_is_a_file() {
    let dir = workspace();
    let script = "test -f /etc/passwd -o -c /etc/passwd && wc -c </etc/passwd";
    assert_ne!(succeeds(dir.path(), &[], script), "0");
    assert_eq!(succeeds(dir.path(), &["--mask", "/etc/passwd"], script), "0");
}
