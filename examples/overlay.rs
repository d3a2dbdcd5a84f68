//! Changes stay apart from the workspace until somebody has looked at them: this applies the new files, and
//! drops the rest.
//!
//! ```sh
//! cargo run --example overlay -- sh -c 'echo new > added.txt; rm README.md'
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{env, path::PathBuf};

use kennel::{
    Overlay, Policy, Profile, Session,
    overlay::{ChangeKind, Conflicts},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::profile(Profile::RepoWrite, ".").overlay(Overlay::default());
    let session = Session::prepare(&policy).await?;
    let mut words = env::args().skip(1);
    let program = words.next().unwrap_or_else(|| "true".to_owned());
    let output = session.command(program).args(words).output().await?;
    println!("status {:?}", output.outcome.status.code());
    let changes = session.changes().await?;
    for change in &changes {
        println!("{:?} {}", change.kind, change.path.display());
    }
    let added: Vec<PathBuf> = changes
        .into_iter()
        .filter(|change| change.kind == ChangeKind::Added)
        .map(|change| change.path)
        .collect();
    let committed = session.commit_part(&added, Conflicts::Refuse).await?;
    println!("applied {}", committed.applied.len());
    session.discard().await?;
    session.shutdown().await;
    Ok(())
}
