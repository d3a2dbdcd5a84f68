//! The documents are true: every console example runs and prints what it shows, links lead somewhere, pages
//! keep to their length.
//!
//! A block fenced as `console` runs in one bash, in an empty workspace `~/project` below a fresh HOME, with
//! `kennel` on PATH. `$ ` begins a command, `> ` continues it; all other lines are its output, stdout and
//! stderr together. A line `…` stands for any lines, `…` inside a line for any text. HTML comments directly
//! above the block:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- prepare:`, lines of bash, `-->` | runs first, in the same shell; processes that it leaves running are ended afterwards |
//! | `<!-- needs: user -->` | skipped for root; the second pass runs it |
//! | `<!-- needs: cgroup2 -->` | skipped if no cgroup can hold limits |
//! | `<!-- needs: images -->` | skipped if the file system of /tmp cannot hold layers of images |
//! | `<!-- needs: overlay -->` | skipped if the kernel supports no overlay in memory |
//! | `<!-- needs: PROGRAM -->` | skipped if the program is not on PATH |
//!
//! A test beside the flags, in `crates/cli/src/parse/manual.rs`, compares them with docs/cli.md.

mod console;
mod pages;
mod programs;

use std::fs;

use crate::{
    as_user::is_left_to_user,
    support::{TempDir, has, skip},
};
use console::{Block, blocks, read, root};

/// A test for each document, so that they run side by side.
macro_rules! documents {
    ($($name:ident: $file:literal,)*) => {
        /// The documents with examples that run.
        const DOCUMENTS: &[&str] = &[$($file),*];

        mod examples {
            $(#[test]
            fn $name() {
                super::examples_run(concat!("documents::examples::", stringify!($name)), $file);
            })*
        }
    };
}

documents! {
    readme: "README.md",
    agents: "docs/agents.md",
    audit: "docs/audit.md",
    broker: "docs/broker.md",
    cli: "docs/cli.md",
    compatibility: "docs/compatibility.md",
    configuration: "docs/configuration.md",
    contracts: "docs/contracts.md",
    embedding: "docs/embedding.md",
    fleet: "docs/fleet.md",
    from_bwrap: "docs/from-bwrap.md",
    git: "docs/git.md",
    hosts: "docs/hosts.md",
    images: "docs/images.md",
    inspect: "docs/inspect.md",
    limits: "docs/limits.md",
    macos: "docs/macos.md",
    mcp: "docs/mcp.md",
    network: "docs/network.md",
    overlay: "docs/overlay.md",
    performance: "docs/performance.md",
    policy: "docs/policy.md",
    protocol: "docs/protocol.md",
    python: "docs/python.md",
    server: "docs/server.md",
    sessions: "docs/sessions.md",
    threat_notes: "docs/threat-notes.md",
    warm: "docs/warm.md",
}

/// The documents whose examples the tests of a feature run: tests/connector.
const OF_FEATURES: &[&str] = &["docs/connectors.md"];

/// How many lines a document may have. Only the documents above have examples.
const LENGTHS: [(&str, usize); 4] =
    [("README.md", 220), ("ARCHITECTURE.md", 300), ("SECURITY.md", 200), ("CHANGELOG.md", 80)];

/// A copy of the documents for the second pass.
pub(crate) fn copy() -> TempDir {
    let dir = TempDir::new("documents-", "/tmp");
    fs::create_dir(dir.path().join("docs")).unwrap();
    for file in DOCUMENTS.iter().filter(|file| root().join(file).exists()) {
        fs::copy(root().join(file), dir.path().join(file)).unwrap();
    }
    dir
}

/// Runs the examples of a document. `test` is the name of the test.
fn examples_run(test: &str, file: &str) {
    if !root().join("README.md").exists() {
        return skip(module_path!(), "the documents are not here");
    }
    console::examples_run(file, |block| is_provided(test, file, block));
}

/// Whether this host has everything that a block needs.
fn is_provided(test: &str, file: &str, block: &Block) -> bool {
    let missing = block.needs.iter().find(|need| match need.as_str() {
        "user" => is_left_to_user(test),
        "cgroup2" => !crate::launch::cgroups::has_groups(),
        "images" => !crate::image::can_hold_layers(),
        "overlay" => !crate::overlay::available(),
        program => !has(program),
    });
    if let Some(missing) = missing {
        skip(module_path!(), &format!("{file}:{}: needs {missing}", block.line));
    }
    missing.is_none()
}
