//! The tool of a coding agent: each line of standard input is a snippet that a model wrote. All run in one
//! shell, which keeps its directory and variables, and none runs longer than ten seconds.
//!
//! ```sh
//! printf '%s\n' 'cd /tmp; x=1' 'pwd; echo $x' 'curl https://example.org' | cargo run --example agent
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{io, time::Duration};

use kennel::{Limits, Policy, Profile, Session, Size};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The most output that the model gets to read.
    let limits = Limits { output: Some(Size::from_bytes(30_000)), ..Limits::default() };
    let policy = Policy::profile(Profile::RepoWrite, ".").limits(limits).timeout(Duration::from_secs(10));
    let session = Session::prepare(&policy).await?;
    let shell = session.shell();
    for line in io::stdin().lines() {
        let done = shell.run(&line?).await?;
        print!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        println!("[status {:?}, {:?}]", done.outcome.status.code(), done.outcome.ended);
    }
    session.shutdown().await;
    Ok(())
}
