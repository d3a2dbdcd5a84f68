//! All tests run again as an ordinary user, if root runs them.

use crate::support::second_pass;

#[test]
fn all_tests_pass_as_an_ordinary_user() {
    second_pass(&[], &[]);
}
