//! Python's own tests, as warm commands: those fail that also fail if they are executed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kennel::{Isolation, Session};

use super::{in_time, require_python, waiting};
use crate::support::{World, patient, require, stdout};

/// Tests of what a start decides.
const TESTS: [&str; 9] = [
    "test_cmd_line",
    "test_runpy",
    "test_sys",
    "test_signal",
    "test_subprocess",
    "test_threading",
    "test_random",
    "test_atexit",
    "test_multiprocessing_fork",
];

/// Longer than any of them takes.
const LONGEST: Duration = Duration::from_secs(600);

/// Tests that fail in only one of the two, and why.
const DIFFERS: &[&str] = &[];

/// The tests that did not pass, each with how.
async fn failing(session: &Session, python: &str, test: &str, is_warm: bool) -> BTreeMap<String, String> {
    in_time(session.interpreters_started()).await;
    let mut command = session.command(python);
    command.args(["-m", "unittest", "-v", &format!("test.{test}")]).warm(is_warm);
    let output = tokio::time::timeout(patient(LONGEST), command.output()).await.expect("it hangs");
    let output = output.expect("a command");
    assert_eq!(output.outcome.start == kennel::Start::Warm, is_warm, "{test}: {:?}", output.outcome.start);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let counted = said.lines().find(|line| line.starts_with("Ran "));
    let counted = counted.unwrap_or_else(|| panic!("{test}: it did not end: {said}"));
    let mut failing = BTreeMap::new();
    failing.insert(test.to_owned(), counted.split(" in ").next().unwrap_or_default().to_owned());
    for block in
        said.split("======================================================================\n").skip(1)
    {
        let mut lines = block.lines();
        if let Some((how, name)) = lines.next().and_then(|line| line.split_once(": ")) {
            failing.insert(name.to_owned(), format!("{how}: {}", lines.last().unwrap_or_default()));
        }
    }
    failing
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn python_s_own_tests_fail_only_where_they_also_fail_executed() {
    let python = require_python!();
    let found =
        std::process::Command::new(python).args(["-c", "import test.test_cmd_line; print('there')"]).output();
    require!(stdout(&found.unwrap()) == "there", "Python's own tests: libpython3.*-testsuite");
    let mut different = BTreeSet::new();
    for isolation in [Isolation::Command, Isolation::Session] {
        let world = World::new();
        let policy = world.policy().isolation(isolation).set_env("LC_ALL", "C.UTF-8");
        let session = waiting(policy, python, &[]).await;
        for test in TESTS {
            let executed = failing(&session, python, test, false).await;
            let warm = failing(&session, python, test, true).await;
            eprintln!("{isolation:?} {test}: {}, {} do not pass", warm[test], warm.len() - 1);
            let names = executed.keys().chain(warm.keys()).filter(|name| !DIFFERS.contains(&name.as_str()));
            for name in names.filter(|name| executed.contains_key(*name) != warm.contains_key(*name)) {
                let how = (executed.get(name), warm.get(name));
                different
                    .insert(format!("{isolation:?} {test} {name}: executed {:?}, warm {:?}", how.0, how.1));
            }
            if executed[test] != warm[test] {
                different.insert(format!("{isolation:?} {test}: {} and {}", executed[test], warm[test]));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.into_iter().collect::<Vec<_>>().join("\n"));
}
