//! Files that their owner cannot read, and directories that their owner may not enter: a diff shows them all
//! the same, and leads to no conflict.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use super::place::require_kept;

#[test]
fn what_is_closed_is_shown_and_then_committed() {
    let kept = require_kept!();
    let at = |name: &str| kept.dir.path().join(name);
    let mode = |name: &str, mode: u32| fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
    for name in ["closed", "closed/deep", "unsearchable", "gone"] {
        fs::create_dir(at(name)).unwrap();
    }
    let files = ["closed/f", "closed/deep/f", "unsearchable/f", "locked", "gone/f"];
    files.iter().for_each(|name| kept.write(name, "old\n"));
    let closed = [("locked", 0o200), ("closed/deep", 0o000), ("closed", 0o000), ("unsearchable", 0o600)];
    closed.iter().for_each(|(name, bits)| mode(name, *bits));
    kept.run(
        &[],
        "chmod 700 closed closed/deep unsearchable; chmod 600 locked
         for f in closed/f closed/deep/f unsearchable/f locked; do echo newer > $f; done; echo added > closed/added
         rm -r gone; chmod 0 closed/deep closed; chmod 600 unsearchable; chmod 200 locked",
    );
    mode("gone", 0o000);
    let before = fs::metadata(at("closed")).unwrap();
    let diff = kept.succeeds(&["diff"]);
    assert_eq!((diff.matches("\n-old\n").count(), diff.matches("\n+newer\n").count()), (5, 4), "{diff}");
    assert!(diff.contains("\n+added\n") && !diff.contains("cannot"), "{diff}");
    kept.succeeds(&["diff", "--stat", "closed"]);
    let after = fs::metadata(at("closed")).unwrap();
    assert_eq!(before.permissions(), after.permissions());
    mode("gone", 0o700);
    let done = kept.output(&["commit", "closed", "unsearchable", "locked"]);
    let done = (crate::support::stdout(&done), crate::support::stderr(&done));
    let expected = "A closed/added\nM closed/deep/f\nM closed/f\nM locked\nM unsearchable/f\n\
                    5 changes committed; 1 left: kennel diff";
    assert_eq!(done, (expected.to_owned(), String::new()));
    for (name, _) in closed.iter().rev() {
        mode(name, 0o700);
    }
    files.iter().take(4).for_each(|name| assert_eq!(kept.read(name), "newer\n", "{name}"));
}
