//! tries warm
use kennel::{Isolation, Policy, Profile, Session};
use std::time::Instant;
#[tokio::main]
async fn main() {
    let modules: Vec<String> = std::env::args()
        .nth(2)
        .unwrap_or_default()
        .split(',')
        .filter(|m| !m.is_empty())
        .map(str::to_owned)
        .collect();
    let program = std::env::args().nth(1).unwrap();
    let text = std::env::args().nth(3).unwrap();
    for isolation in [Isolation::Session, Isolation::Command] {
        let mut policy = Policy::profile(Profile::RepoWrite, "/tmp").warm(&program, &modules);
        policy.isolation = Some(isolation);
        let session = Session::prepare(&policy).await.unwrap();
        session.interpreters_started().await;
        println!("{:?}", session.interpreters());
        for round in 0..4 {
            let begun = Instant::now();
            let out = session.command(&program).args(["-c", &text]).warm(round != 1).output().await.unwrap();
            println!(
                "{isolation:?} {:?} {:?} {} {}{}",
                begun.elapsed(),
                out.outcome.start,
                out.outcome.status,
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            );
            if round == 2 {
                continue;
            }
            session.interpreters_started().await;
        }
        session.shutdown().await;
    }
}
