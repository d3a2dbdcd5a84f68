//! One command in a sandbox of its own: what it printed, what it used, and what was enforced.
//!
//! ```sh
//! cargo run --example one_shot -- sh -c 'id -u; ls /'
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{env, process::ExitCode};

use kennel::{Policy, Profile, Sandbox};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut words = env::args().skip(1);
    let Some(program) = words.next() else {
        println!("usage: one_shot COMMAND...");
        return Ok(ExitCode::from(2));
    };
    // The profile: system read-only, workspace writable, no network. The workspace is the current directory.
    let sandbox = Sandbox::new(&Policy::profile(Profile::RepoWrite, "."))?;
    let output = sandbox.command(program).args(words).output().await?;
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!(
        "status {:?}, {} ms of processor time, enforced: {:?}",
        output.outcome.status.code(),
        (output.outcome.usage.user_us + output.outcome.usage.system_us) / 1000,
        output.outcome.enforcement.level()
    );
    for denial in &output.outcome.denials {
        println!("refused: {}: {}", denial.subject, denial.reason);
    }
    Ok(if output.outcome.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
