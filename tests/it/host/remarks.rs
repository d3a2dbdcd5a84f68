//! Things that many machines lack are reported by the run report and the probe, not on stderr with every
//! command.

use super::{place, refusing, report, run};
use crate::support::{has_scopes, protection, stdout};

#[test]
fn a_default_run_says_nothing() {
    let dir = place();
    let output = run(&Vec::new(), dir.path(), &[]);
    assert!(stdout(&output) == "ran" && output.stderr.is_empty(), "{output:?}");
    let report = report(&Vec::new(), dir.path(), &[]);
    let scope = if has_scopes() { ("enforced", "full") } else { ("off", "partial") };
    assert_eq!(
        (protection(&report, "landlock_scope").0, &report["enforcement"]["level"]),
        (scope.0, &scope.1.into())
    );
}

/// Default lists of engines refuse keyctl(2). The keys are out of reach anyway: Kennel's filter refuses it
/// too.
#[test]
fn a_keyring_that_nobody_could_reach_is_no_remark() {
    let (dir, before) = (place(), refusing(&["keyctl=EPERM"]));
    let output = run(&before, dir.path(), &[]);
    assert!(stdout(&output) == "ran" && output.stderr.is_empty(), "{output:?}");
    let report = report(&before, dir.path(), &[]);
    assert_eq!(
        (protection(&report, "keyring").0, &report["enforcement"]["level"]),
        ("off", &"partial".into())
    );
    // Without Kennel's filter there is something to report.
    let before = refusing(&["keyctl=EPERM", "seccomp=EPERM"]);
    let output = run(&before, dir.path(), &super::DEGRADE);
    let said = crate::support::stderr(&output);
    assert!(said.contains("kennel: keyring off: make a session keyring: Operation not permitted"), "{said}");
}
