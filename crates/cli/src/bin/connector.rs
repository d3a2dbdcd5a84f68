//! The executable `kennel-connector`, which `kennel connector` executes.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_cli::connector()
}
