//! All tests run again as an ordinary user, if root runs them. The name comes first in the alphabet, so that this second
//! pass begins at once and fills the time in which other tests wait.

use crate::{
    documents,
    support::{kennel_mcp_path, kennel_path, payload_path, second_pass},
};

#[test]
fn all_tests_pass_as_an_ordinary_user() {
    let documents = documents::copy();
    second_pass(&[
        ("KENNEL_BIN", kennel_path()),
        ("KENNEL_MCP", kennel_mcp_path()),
        ("KENNEL_PAYLOAD", payload_path()),
        ("KENNEL_DOCUMENTS", documents.path().to_owned()),
    ]);
}
