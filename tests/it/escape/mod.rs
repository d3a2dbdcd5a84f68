//! Attempts to get out, made from inside by `tests/payload`. Each test asserts the exact result and that
//! nothing outside has changed. Where it can, it also asserts that the same call works without the sandbox.
//!
//! | module | what is tried |
//! | --- | --- |
//! | `closed` | closing, removing and planting paths that the next sandbox looks at |
//! | `found` | holes that existed once |
//! | `paths` | files outside the grants, by every kind of path, link, descriptor and handle |
//! | `grants` | writing read-only grants, undoing the mounts, swapping granted paths |
//! | `nodes` | leaving set-user-id files, devices and privileged attributes behind |
//! | `protected` | `.git/hooks`, `.git/config` and `--protect` |
//! | `policy` | the file that the policy was read from |
//! | `git` | ways around the protection of git |
//! | `led` | links that a command makes where the next start looks |
//! | `undone` | keeping Kennel from removing what a command left |
//! | `moved` | redirecting that removal to paths of somebody else |
//! | `secrets` | masked paths |
//! | `mounts` | old and new mount calls, chroot, namespaces |
//! | `root` | things that only real root could do outside |
//! | `kernel` | system calls that reach deep into the kernel, other calling conventions |
//! | `sockets` | socket families, terminals |
//! | `processes` | daemons, fork bombs, orphans, stopped and stubborn processes |
//! | `helper` | PID 1 and the program around the sandbox |
//! | `image` | root of another root, who has two capabilities |
//! | `owner` | `--as-owner`: what the owner can take from Kennel outside |
//! | `network` | no network, and the host's network |
use std::{
    path::Path,
    process::{Command, Output},
};

use super::support::{self, attempt, payload_path};

mod closed;
mod found;
mod git;
mod grants;
mod helper;
mod image;
mod kernel;
mod led;
mod mounts;
mod moved;
mod network;
mod nodes;
mod owner;
mod paths;
mod planted;
mod policy;
mod processes;
mod protected;
mod root;
mod secrets;
mod sockets;
mod undone;

/// System calls, spelled as `tests/payload/call.rs` reads them, with their expected results.
type Expected<'e> = &'e [(&'e str, &'e str)];

/// Makes the calls inside, one after the other in one process, and compares every result.
fn check(workspace: &Path, flags: &[&str], expected: Expected<'_>) {
    let calls = expected.iter().map(|(call, _)| *call).collect::<Vec<_>>().join(" + ");
    let said = attempt(workspace, flags, "call", &calls.split_whitespace().collect::<Vec<_>>());
    compare(&said, expected, "inside");
}

/// Makes the calls without a sandbox. This shows that a refusal came from the sandbox.
fn check_outside(expected: Expected<'_>) {
    let calls = expected.iter().map(|(call, _)| *call).collect::<Vec<_>>().join(" + ");
    let mut command = Command::new(payload_path());
    let output = command.arg("call").args(calls.split_whitespace()).output().unwrap();
    compare(&support::stdout(&output), expected, "outside");
}

fn compare(said: &str, expected: Expected<'_>, place: &str) {
    let found: Vec<String> =
        expected.iter().zip(said.lines()).map(|((call, _), answer)| format!("{call} = {answer}")).collect();
    let wanted: Vec<String> = expected.iter().map(|(call, errno)| format!("{call} = {errno}")).collect();
    assert_eq!(found, wanted, "{place}");
}

/// `kennel run FLAGS -- /payload ATTEMPT`. The test changes descriptors or environment and starts it.
fn command(workspace: &Path, flags: &[&str], attempt: &[&str]) -> Command {
    let mut command = Command::new(support::kennel_path());
    command.current_dir(workspace).args(["run", "--ro", &format!("{}:/payload", payload_path().display())]);
    command.args(flags).args(["--", "/payload"]).args(attempt);
    command
}

/// The lines that the payload printed.
fn lines(output: &Output) -> Vec<String> {
    support::stdout(output).lines().map(str::to_owned).collect()
}

/// The result of calls that name ids of others. Such ids do not exist inside, unless root runs without a user
/// namespace.
fn of_other_ids() -> &'static str {
    if support::is_without_user_namespace() { "EPERM" } else { "EINVAL" }
}

/// The Landlock ABI of this kernel.
fn landlock_abi() -> u32 {
    kennel::probe::Host::detect().landlock_abi
}
