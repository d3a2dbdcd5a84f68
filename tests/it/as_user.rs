//! What depends on the user runs again as an ordinary user, if root runs the tests. The name comes first in
//! the alphabet, so that this second pass begins at once and fills the time in which other tests wait.

use std::process::Command;

use crate::{
    documents,
    support::{is_root, kennel_image_path, kennel_mcp_path, kennel_path, payload_path, second_pass, stdout},
};

/// The modules and tests of the second pass. `scripts/kernels` reads the same file.
const AGAIN: &str = include_str!("as-user");

/// The modules and tests in [`AGAIN`], and whether each runs again.
fn again() -> impl Iterator<Item = (&'static str, bool)> {
    let lines = AGAIN.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.strip_prefix('!').map_or((line, true), |left_out| (left_out, false)))
}

/// Whether the second pass runs a test, given by its full name.
fn runs_again(test: &str) -> bool {
    let mut runs = again().filter_map(|(part, runs)| is_part(part, test).then_some(runs)).peekable();
    runs.peek().is_some() && runs.all(|runs| runs)
}

/// Whether this pass leaves a test about an ordinary user to the second pass. It fails if that does not run
/// the test, which would then never run.
pub(crate) fn is_left_to_user(test: &str) -> bool {
    let is_root = is_root();
    assert!(!is_root || runs_again(test), "{test} never runs: add it to tests/it/as-user");
    is_root
}

/// The names of all tests that run here.
fn all_tests() -> Vec<String> {
    let list = |more: &[&str]| {
        let mut tests = Command::new("/proc/self/exe");
        let output = tests.args(["--list", "--format", "terse"]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let names = stdout(&output);
        names.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect::<Vec<_>>()
    };
    let ignored = list(&["--ignored"]);
    list(&[]).into_iter().filter(|test| !ignored.contains(test)).collect()
}

/// Whether `test` is `part`, or is in that module.
fn is_part(part: &str, test: &str) -> bool {
    test.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[test]
fn what_depends_on_the_user_passes_as_an_ordinary_user() {
    let documents = documents::copy();
    let all = all_tests();
    for (part, _) in again() {
        assert!(all.iter().any(|test| is_part(part, test)), "tests/it/as-user: no test is {part}");
    }
    let tests: Vec<&str> = all.iter().map(String::as_str).filter(|test| runs_again(test)).collect();
    second_pass(
        &tests,
        &[
            ("KENNEL_BIN", kennel_path()),
            ("KENNEL_MCP", kennel_mcp_path()),
            ("KENNEL_IMAGE", kennel_image_path()),
            ("KENNEL_PAYLOAD", payload_path()),
            ("KENNEL_DOCUMENTS", documents.path().to_owned()),
        ],
    );
}
