//! The executable `kennel-image`, which `kennel image` executes.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_cli::image()
}
