//! A person decides about each host that a command wants to reach and no rule names: standard input answers.
//!
//! ```sh
//! cargo run --example ask -- curl -sI http://example.org
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{env, io, time::Duration};

use kennel::{Decision, NetworkMode, Policy, Profile, Sandbox};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::profile(Profile::RepoWrite, ".").network_mode(NetworkMode::Proxy);
    let sandbox = Sandbox::new(&policy)?.on_request(Duration::from_secs(60), |request| async move {
        println!("may it reach {}:{}? (y/n)", request.host, request.port);
        let answer = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map(|_| line)
        });
        match answer.await {
            Ok(Ok(line)) if line.trim() == "y" => Decision::AllowForSession,
            _ => Decision::Deny,
        }
    });
    let mut words = env::args().skip(1);
    let program = words.next().unwrap_or_else(|| "true".to_owned());
    // Standard input belongs to the person who answers.
    let output = sandbox.command(program).args(words).stdin(kennel::Stdio::null()).output().await?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    for denial in &output.outcome.denials {
        println!("refused: {}: {}", denial.subject, denial.reason);
    }
    Ok(())
}
