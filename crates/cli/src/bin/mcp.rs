//! The executable `kennel-mcp`, which `kennel mcp` executes.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_cli::mcp()
}
