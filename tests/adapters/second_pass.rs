//! All of it once more as an ordinary user, when root runs the tests.

use crate::support::second_pass;

#[test]
fn all_tests_pass_as_an_ordinary_user() {
    second_pass(&[]);
}
