//! The examples of docs/connectors.md run and print what it shows.

#[path = "../it/documents/console.rs"]
mod console;

use std::path::Path;

use crate::built::tool;
use crate::support::has;

#[test]
fn examples_of_the_page_run() {
    console::examples_run("docs/connectors.md", |block| {
        let missing = block.needs.iter().find(|program| !has(program) && !tool(program).exists());
        // What scripts/guest-tools has installed is not on the path.
        let tools = block.needs.iter().map(|program| tool(program)).find(|tool| tool.exists());
        if let Some(directory) = tools.as_deref().and_then(Path::parent) {
            block.prepare += &format!("PATH=$PATH:{}", directory.display());
        }
        if let Some(missing) = missing {
            assert!(std::env::var_os("KENNEL_MUST_RUN").is_none(), "required here, but missing: {missing}");
            eprintln!("SKIP {}: docs/connectors.md:{}: needs {missing}", module_path!(), block.line);
        }
        missing.is_none()
    });
}
