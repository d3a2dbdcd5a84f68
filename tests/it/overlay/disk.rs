//! All tests of overlays again, with changes in a directory of the host. One test for each module, so that
//! none is silent for longer than a machine may be.

use std::{env, fs, process::Command};

use super::{UPPERS, in_memory, workspace};
use crate::support::{stderr, stdout};

/// Tests with many rounds or files. They are about listing and committing, which do not depend on the place
/// of the changes: the pass with changes in memory is enough.
const SLOW: [&str; 6] = [
    "a_change_right_after_the_session_began_is_a_conflict",
    "long_paths_do_not_fill_memory",
    "a_mount_made_while_a_directory_is_removed_is_kept",
    "paths_that_are_too_deep_are_refused_and_the_rest_is_applied",
    "files_written_right_before_the_session_are_no_conflict",
    "a_commit_stays_in_the_workspace_whatever_is_swapped_meanwhile",
];

/// Runs the tests of a module. At least `least` must pass and none may fail.
fn pass(module: &str, least: usize) {
    let dir = workspace();
    if xattr::set(dir.path(), "user.test", b"x").is_err() {
        // `upper` asserts that Kennel refuses such a file system.
        return assert!(env::var_os("KENNEL_DISK").is_none(), "a disk keeps attributes");
    }
    let uppers = dir.path().join("uppers");
    fs::create_dir(&uppers).unwrap();
    let mut tests = Command::new("/proc/self/exe");
    tests
        .args([&format!("overlay::{module}::"), "--show-output", "--test-threads", "3"])
        .env(UPPERS, &uppers);
    if in_memory() {
        tests.args(SLOW.iter().flat_map(|name| ["--skip", name]));
    }
    let output = tests.output().unwrap();
    let said = format!("{}\n{}", stdout(&output), stderr(&output));
    let (passed, rest): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.ends_with(" ... ok"));
    assert!(output.status.success(), "{}", rest.join("\n"));
    rest.iter()
        .filter(|line| line.starts_with("test result: "))
        .for_each(|line| eprintln!("{module}: {line}"));
    assert!(passed.len() >= least, "{said}");
    let mut skipped =
        rest.iter().filter(|line| line.starts_with("SKIP ") && !line.ends_with("it is about root"));
    assert!(env::var_os("KENNEL_DISK").is_none() || skipped.next().is_none(), "{said}");
    skipped.for_each(|line| eprintln!("{line}"));
    assert!(fs::read_dir(&uppers).unwrap().count() >= least / 2, "they had no directories: {said}");
}

#[test]
fn basics() {
    pass("basics", 12);
}

#[test]
fn random() {
    pass("random", 1);
}

#[test]
fn conflict() {
    pass("conflict", 12);
}

#[test]
fn links() {
    pass("links", 3);
}

#[test]
fn mounts() {
    pass("mounts", 2);
}

#[test]
fn protected() {
    pass("protected", 9);
}

#[test]
fn hostile() {
    pass("hostile", 10);
}

#[test]
fn cli() {
    pass("cli", 5);
}
