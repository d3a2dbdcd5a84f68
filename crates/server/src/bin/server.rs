//! The executable `kennel-server`, which `kennel serve` executes.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel_server::main()
}
