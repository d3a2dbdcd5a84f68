//! All tests of overlays once more, with changes that are kept in a directory of the host. One test a module, so that
//! none says nothing for longer than a machine may be silent.

use std::{env, fs, process::Command};

use super::{UPPERS, in_memory, workspace};
use crate::support::{is_emulated, stderr, stdout};

/// Of those with many rounds or files: they are about what lists and commits, which is the same wherever changes are. Where
/// everything takes twenty times as long, once is enough.
const SLOW: [&str; 6] = [
    "a_change_right_after_the_session_began_is_a_conflict",
    "long_paths_do_not_fill_the_memory_of_whoever_lists_them",
    "what_is_mounted_while_a_directory_is_removed_is_kept",
    "what_lies_too_deep_is_refused_and_the_rest_applied",
    "what_was_written_right_before_the_session_is_no_conflict",
    "whatever_is_exchanged_while_a_commit_goes_on_it_stays_in_the_workspace",
];

/// Runs the tests of a module, of which at least that many must pass and none fail.
fn pass(module: &str, least: usize) {
    let dir = workspace();
    if xattr::set(dir.path(), "user.test", b"x").is_err() {
        // `upper` sees that such a file system is refused.
        return assert!(env::var_os("KENNEL_DISK").is_none(), "a disk keeps attributes");
    }
    let uppers = dir.path().join("uppers");
    fs::create_dir(&uppers).unwrap();
    let mut tests = Command::new("/proc/self/exe");
    tests
        .args([&format!("overlay::{module}::"), "--show-output", "--test-threads", "3"])
        .env(UPPERS, &uppers);
    if is_emulated() && in_memory() {
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
fn what_commands_change_is_seen_and_committed() {
    pass("basics", 12);
}

#[test]
fn what_is_random_is_the_same_without_an_overlay() {
    pass("random", 1);
}

#[test]
fn what_others_changed_is_not_overwritten() {
    pass("conflict", 12);
}

#[test]
fn files_of_several_names_are_committed() {
    pass("links", 3);
}

#[test]
fn what_others_mounted_is_not_changed() {
    pass("mounts", 2);
}

#[test]
fn what_is_protected_stays_so() {
    pass("protected", 9);
}

#[test]
fn what_commands_leave_behind_leads_nobody_astray() {
    pass("hostile", 10);
}

#[test]
fn the_command_line_says_the_same() {
    pass("cli", 5);
}
