//! `fluers-runtime`: the crate's own `LocalSandbox` runs commands, with Kennel in its slot for process
//! sandboxes.

mod commands;
mod lifetime;
mod profiles;
mod slot;
mod verdicts;

pub use self::commands::quiet;

use std::{path::Path, sync::Arc};

use fluers_runtime::{
    ExecSandboxContext, LocalSandbox, OnUnavailable, ProcessSandbox, RuntimeResult, Sandbox, SandboxPolicy,
    SandboxProfile, SessionEnv, env::ShellResult,
};
use kennel_adapters::fluers::KennelSandbox;

/// An environment of the harness that refuses to run without a protection.
async fn harness(
    kennel: &Arc<KennelSandbox>,
    workspace: &Path,
    profile: SandboxProfile,
    egress: &[&str],
) -> Arc<dyn SessionEnv> {
    try_harness(kennel, workspace, profile, egress, OnUnavailable::Refuse).await.unwrap()
}

async fn try_harness(
    kennel: &Arc<KennelSandbox>,
    workspace: &Path,
    profile: SandboxProfile,
    egress: &[&str],
    on_unavailable: OnUnavailable,
) -> RuntimeResult<Arc<dyn SessionEnv>> {
    let egress = egress.iter().map(|&entry| entry.to_owned()).collect();
    let policy = SandboxPolicy { profile, egress, on_unavailable };
    let backend: Arc<dyn ProcessSandbox> = Arc::<KennelSandbox>::clone(kennel);
    LocalSandbox::new(workspace).with_exec_sandbox(backend, policy).env_for(workspace).await
}

/// Runs a shell script in the workspace.
async fn shell(env: &Arc<dyn SessionEnv>, script: &str) -> ShellResult {
    env.exec(script, Path::new("."), Some(20_000), &Default::default()).await.unwrap()
}

/// Runs a script that must succeed. Returns its stdout, trimmed.
async fn says(env: &Arc<dyn SessionEnv>, script: &str) -> String {
    let result = shell(env, script).await;
    assert_eq!(result.exit_code, 0, "{script}: {result:?}");
    result.stdout.trim_end().to_owned()
}

/// Runs a script that must fail. Returns its stderr.
async fn fails(env: &Arc<dyn SessionEnv>, script: &str) -> String {
    let result = shell(env, script).await;
    assert!(![0, 124, 125].contains(&result.exit_code), "{script}: {result:?}");
    result.stderr.trim_end().to_owned()
}

fn context(workspace: &Path, profile: SandboxProfile) -> ExecSandboxContext {
    ExecSandboxContext { workspace_path: workspace.to_owned(), cwd: None, profile, egress: Vec::new() }
}

/// The command that the adapter tells the harness to start, not yet started.
fn wrapped(kennel: &KennelSandbox, context: &ExecSandboxContext, argv: &[&str]) -> std::process::Command {
    let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
    let wrapped = kennel.wrap(&argv, context).unwrap();
    let mut command = std::process::Command::new(&wrapped.argv[0]);
    command.args(&wrapped.argv[1..]).env_clear().envs(wrapped.env);
    command
}
