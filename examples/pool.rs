//! A fresh session for each job, from a pool that keeps some ready: nothing of one job is there for the next
//! one.
//!
//! ```sh
//! cargo run --example pool
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use kennel::{Policy, Pool, Profile};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::fill(&Policy::profile(Profile::ReadOnly, "."), 2).await?;
    let mut jobs = Vec::new();
    for number in 0..8 {
        let pool = pool.clone();
        jobs.push(tokio::spawn(async move {
            let session = pool.checkout().await?;
            let script = format!("ls ~/of-job-* 2>/dev/null | wc -l; touch ~/of-job-{number}");
            let output = session.command("sh").args(["-c", &script]).output().await?;
            session.shutdown().await;
            Ok::<_, kennel::Error>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }));
    }
    for (number, job) in jobs.into_iter().enumerate() {
        println!("job {number} found {} files of others in its home", job.await??);
    }
    Ok(())
}
