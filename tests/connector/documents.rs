//! The examples of docs/connectors.md run and print what it shows.

#[path = "../it/documents/console.rs"]
mod console;

use std::process::Command;

use crate::built::tool;
use crate::support::has;

#[test]
fn examples_of_the_page_run() {
    console::examples_run("docs/connectors.md", |block| {
        // What scripts/guest-tools has installed is not on the path, and another user may not be able to run
        // it.
        let installed = |program: &String| {
            Some(tool(program)).filter(|tool| Command::new(tool).arg("--version").output().is_ok())
        };
        if let Some(tool) = block.needs.iter().find_map(installed) {
            block.prepare += &format!("PATH=$PATH:{}", tool.parent().unwrap().display());
        }
        let missing = block.needs.iter().find(|program| !has(program) && installed(program).is_none());
        if let Some(missing) = missing {
            assert!(std::env::var_os("KENNEL_MUST_RUN").is_none(), "required here, but missing: {missing}");
            eprintln!("SKIP {}: docs/connectors.md:{}: needs {missing}", module_path!(), block.line);
        }
        missing.is_none()
    });
}
