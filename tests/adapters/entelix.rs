//! `entelix-core`: commands, code and files through the crate's `Sandbox`.

mod code;
mod commands;
mod contexts;
mod files;

use std::{path::Path, sync::Arc};

use entelix_core::{
    Result,
    context::ExecutionContext,
    sandbox::{CommandOutput, CommandSpec, Sandbox},
};
use kennel::{Policy, Profile, Session};
use kennel_adapters::entelix::KennelSandbox;

/// The sandbox as a tool of an agent has it.
type Shared = Arc<dyn Sandbox>;

async fn sandbox(workspace: &Path) -> Shared {
    with_policy(&Policy::profile(Profile::RepoWrite, workspace)).await
}

async fn with_policy(policy: &Policy) -> Shared {
    Arc::new(KennelSandbox::new(Session::prepare(policy).await.unwrap()))
}

fn spec(argv: &[&str]) -> CommandSpec {
    CommandSpec::new(argv.iter().map(|&word| word.to_owned()).collect())
}

fn script(script: &str) -> CommandSpec {
    spec(&["sh", "-c", script])
}

async fn run(sandbox: &Shared, spec: CommandSpec) -> Result<CommandOutput> {
    sandbox.run_command(spec, &ExecutionContext::new()).await
}

/// Runs a script that must succeed. Returns its stdout, trimmed.
async fn says(sandbox: &Shared, words: &str) -> String {
    let output = run(sandbox, script(words)).await.unwrap();
    assert_eq!(output.exit_code, 0, "{words}: {}", output.stderr_lossy());
    output.stdout_lossy().trim_end().to_owned()
}
