//! Attempts to get out, made from inside by `tests/payload`. Each test asserts the exact answer and that nothing
//! outside has changed; where it can, also that the same call works where no wall is in the way.
//!
//! | module | what is tried |
//! | --- | --- |
//! | `closed` | closing, taking away and planting what the next sandbox looks at |
//! | `found` | holes that there were |
//! | `paths` | files outside the grants by every kind of path, link, descriptor and handle |
//! | `grants` | writing what is read-only, undoing the mounts, swapping what is granted |
//! | `nodes` | leaving set-user-id files, devices and privileged attributes behind |
//! | `protected` | `.git/hooks`, `.git/config` and `--protect` |
//! | `policy` | the file that the policy was read from |
//! | `git` | ways around what git obeys |
//! | `led` | links where the next start looks |
//! | `undone` | keeping what is undone afterwards from being undone |
//! | `moved` | leading what undoes to what is somebody else's |
//! | `secrets` | what is masked |
//! | `mounts` | mount calls old and new, chroot, namespaces |
//! | `root` | what only real root could do outside |
//! | `kernel` | system calls that reach deep into the kernel, other calling conventions |
//! | `sockets` | socket families, terminals |
//! | `processes` | daemons, bombs, orphans, stopped and stubborn ones |
//! | `helper` | PID 1 and the program around the sandbox |
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
mod kernel;
mod led;
mod mounts;
mod moved;
mod network;
mod nodes;
mod paths;
mod planted;
mod policy;
mod processes;
mod protected;
mod root;
mod secrets;
mod sockets;
mod undone;

/// System calls spelled as `tests/payload/call.rs` reads them, and what each must answer.
type Expected<'e> = &'e [(&'e str, &'e str)];

/// Makes the calls inside, one after the other in one process, and compares every answer.
fn check(workspace: &Path, flags: &[&str], expected: Expected<'_>) {
    let calls = expected.iter().map(|(call, _)| *call).collect::<Vec<_>>().join(" + ");
    let said = attempt(workspace, flags, "call", &calls.split_whitespace().collect::<Vec<_>>());
    compare(&said, expected, "inside");
}

/// Makes the calls without a sandbox: the other direction, which shows that a refusal was the sandbox's.
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

/// `kennel run FLAGS -- /payload ATTEMPT`, to be altered (descriptors, environment) and started by the test.
fn command(workspace: &Path, flags: &[&str], attempt: &[&str]) -> Command {
    let mut command = Command::new(support::kennel_path());
    command.current_dir(workspace).args(["run", "--ro", &format!("{}:/payload", payload_path().display())]);
    command.args(flags).args(["--", "/payload"]).args(attempt);
    command
}

/// Lines that the payload said.
fn lines(output: &Output) -> Vec<String> {
    support::stdout(output).lines().map(str::to_owned).collect()
}

/// What calls answer that name ids of others: there are none inside, unless root goes without a user namespace.
fn of_other_ids() -> &'static str {
    if support::is_without_user_namespace() { "EPERM" } else { "EINVAL" }
}

/// Which Landlock there is here.
fn landlock_abi() -> u32 {
    kennel::Host::detect().landlock_abi
}
