//! Sessions: many commands after one preparation, what they share, what they do not share, and how everything
//! ends.
//!
//! | module | promise |
//! | --- | --- |
//! | `agent` | 300 steps of an agent, with a server, in both isolations |
//! | `basics` | a session runs commands |
//! | `command` | arguments, directory, commands that cannot run; `embed::doors` has more |
//! | `streams` | standard descriptors, terminals |
//! | `limits` | a command can get less than its policy gives, never more |
//! | `signals` | timeouts, signals, kills and drops of one command |
//! | `sharing` | the workspace, loopback, and private places if the policy says so |
//! | `places` | every command sees the mounts below a private directory |
//! | `between` | nothing else passes from one command to the next |
//! | `neighbours` | commands side by side cannot see, reach or trace each other |
//! | `isolation` | commands share processes, files and IPC if the policy says so |
//! | `narrow` | a command may do less than its policy allows |
//! | `crowd` | many commands at once, and callers that do not wait |
//! | `end` | a session ends with its last handle, and everything of it ends too |
//! | `detached` | commands that stay keep what they wrote, and end with their session |
//! | `death` | somebody outside kills a process: no hang, a clear error |
//! | `killed` | the embedding program is killed: nothing is left |
//! | `forked` | the same if another process has an end of a control socket |
//! | `counts` | many commands and sessions leave nothing in the program |
//! | `ports` | servers of commands are reached from outside |
//! | `replaced` | a replaced grant is refused, with path and remedy |
//! | `report` | enforcement and numbers are true |
//! | `outside` | changes outside meanwhile: walls hold, and the user's files stay |
//! | `whose` | a file at a protected path counts as the user's only if no command can have made it |
//! | `shells` | a shell keeps its state from snippet to snippet |
//! | `shortage` | out of descriptors or processes: errors, and then the session goes on |

mod agent;
mod basics;
mod between;
mod command;
pub mod counts;
mod crowd;
mod death;
mod detached;
mod end;
mod etc;
pub mod files;
mod forked;
mod isolation;
mod killed;
mod limits;
mod narrow;
mod neighbours;
mod outside;
mod places;
mod pool;
mod ports;
mod replaced;
mod report;
mod sharing;
mod shells;
mod shortage;
mod signals;
mod streams;
pub mod tree;
mod whose;

use std::path::Path;

use kennel::{Child, Command, Session, Stdio};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    runtime::Builder,
};

use crate::support::{
    eventually, is_alone,
    session::{PATIENCE, in_time, said, shell},
};

/// Runs a script that must fail by itself. Returns its stderr.
async fn fails(command: &mut Command, script: &str) -> String {
    let script = format!("({script}\n) || exit 99");
    let out = in_time(command.args(["-c", &script]).output()).await.expect("a command");
    assert_eq!(out.outcome.status.code(), Some(99), "{script}: {out:?}");
    String::from_utf8_lossy(&out.stderr).trim_end().to_owned()
}

/// An attempt of the payload, its words separated by spaces.
fn attempt(session: &Session, words: &str) -> Command {
    let mut command = session.command("/payload");
    command.args(words.split_whitespace());
    command
}

/// Makes system calls in one command, and compares every answer.
async fn check(session: &Session, expected: &[(&str, &str)]) {
    let calls = expected.iter().map(|(call, _)| *call).collect::<Vec<_>>().join(" + ");
    let said = said(&mut attempt(session, &format!("call {calls}"))).await;
    let found: Vec<(&str, &str)> = expected.iter().map(|(call, _)| *call).zip(said.lines()).collect();
    assert_eq!(found, expected);
}

/// Starts a command that prints lines when it is ready, and waits for `lines` of them.
async fn ready(command: &mut Command, lines: usize) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = in_time(command.spawn()).await.expect("a command");
    let mut reader = BufReader::new(child.stdout.take().expect("piped")).lines();
    for _ in 0..lines {
        let line = in_time(reader.next_line()).await.expect("readable").expect("a line");
        assert!(["ok", "ready", "EACCES"].contains(&&*line), "{command:?}: {line}");
    }
    child
}

/// Runs the user's git outside, in a workspace.
fn git(workspace: &Path, arguments: &[&str]) {
    let status = std::process::Command::new("git")
        .args(arguments)
        .current_dir(workspace)
        .env("HOME", workspace)
        .status();
    assert!(status.unwrap().success(), "git {arguments:?}");
}

/// Runs a test in a process of its own, in a user namespace. A script there first limits what the kernel
/// allows.
fn in_a_user_namespace(test: &str, script: &str, what: impl AsyncFnOnce()) {
    // Inside, the link in /proc cannot be followed.
    let exe = std::env::current_exe().expect("this program");
    let enter = format!(
        "shift; exec unshare --user --map-root-user sh -c '{script}; exec \"$@\"' sh {} \"$@\"",
        exe.display()
    );
    if is_alone(&format!("session::{test}"), &enter) {
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(what());
    }
}

/// Runs a test in a process of its own, where no other test starts children or opens descriptors.
fn alone(test: &str, what: impl AsyncFnOnce()) {
    if is_alone(&format!("session::{test}"), "exec \"$@\"") {
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(what());
    }
}
