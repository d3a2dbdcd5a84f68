//! The executable `kennel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_cli::kennel()
}
