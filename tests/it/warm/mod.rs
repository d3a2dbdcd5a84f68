//! Interpreters that start before their command is known: a command that one of them becomes does what the
//! executed program does, and nothing else than its start is different.
//!
//! | module | promise |
//! | --- | --- |
//! | `programs` | a table of programs, each executed and warm: the same output and the same end |
//! | `between` | nothing passes from one command to the next |
//! | `commands` | time, streams, signals, limits and denials of a warm command; what is executed in any case |
//! | `modules` | a module that was replaced is imported anew; one that cannot be imported harms nothing |
//! | `life` | interpreters that are killed, stopped, traced or dropped: no command is lost, and nothing is left |
//! | `protected` | what a waiting interpreter leaves at a protected path is removed |
//! | `loops` | many commands after each other |
//! | `differences` | what a program notices, as the documents say |
//! | `cpython` | Python's own tests |

mod between;
mod commands;
mod cpython;
mod differences;
mod life;
mod loops;
mod modules;
mod programs;
mod protected;

use std::{path::Path, process::Command as Program, sync::OnceLock};

use kennel::{Command, Isolation, Output, Policy, Session, Start, WarmInterpreter, WarmState};
use tokio::runtime::Builder;

use crate::support::{is_alone, session::in_time, stdout};

const ISOLATIONS: [Isolation; 2] = [Isolation::Session, Isolation::Command];

/// What an interpreter that does not answer in time leaves as the reason. Another process may have stopped
/// it, or the machine is busy.
const SILENT: &str = "the interpreter does not answer";

/// A Python of this host that a policy can name. A shim that starts another one is none.
fn python() -> Option<&'static str> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|directory| directory.join("python3"));
        let found = std::iter::once("/usr/bin/python3".into()).chain(on_path).find(|path| is_python(path))?;
        found.into_os_string().into_string().ok()
    };
    PYTHON.get_or_init(find).as_deref()
}

/// Whether this file is what runs if somebody executes it, and of a version that can wait for a command.
fn is_python(path: &Path) -> bool {
    let script =
        "import os, sys\nif (3, 9) <= sys.version_info < (3, 14): print(os.readlink('/proc/self/exe'))";
    let said = Program::new(path).args(["-c", script]).output().map(|output| stdout(&output));
    said.is_ok_and(|said| path.canonicalize().is_ok_and(|real| real == Path::new(&said)))
}

/// The Python, or the end of the test.
macro_rules! require_python {
    () => {{
        let python = crate::warm::python();
        crate::support::require!(python.is_some(), "a Python from 3.9 to 3.13");
        python.unwrap()
    }};
}
use require_python;

/// A session of this policy in which the Python waits with these modules.
async fn waiting(policy: Policy, python: &str, modules: &[&str]) -> Session {
    let policy = with_usual_python(policy).warm(python, modules.iter().copied());
    let session = Session::prepare(&policy).await.expect("a session");
    let interpreter = settled(&session).await;
    assert_eq!(interpreter.state, WarmState::Waiting, "{interpreter:?}");
    session
}

/// Without the variables of Python that a sandbox takes over from its caller, unless the policy sets them.
fn with_usual_python(mut policy: Policy) -> Policy {
    let usual = [("PYTHONDONTWRITEBYTECODE", ""), ("PYTHONHASHSEED", "random"), ("PYTHONUNBUFFERED", "")];
    for (name, value) in usual {
        policy.env.set.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    policy
}

/// The only interpreter of a session, when it has started.
async fn settled(session: &Session) -> WarmInterpreter {
    in_time(session.interpreters_started()).await;
    session.interpreters().pop().expect("an interpreter")
}

/// `PYTHON -c TEXT`
fn text(session: &Session, python: &str, text: &str) -> Command {
    let mut command = session.command(python);
    command.args(["-c", text]);
    command
}

/// Runs a command that an interpreter becomes. On a busy machine one may not answer in time: then the next
/// one is asked.
async fn warm(session: &Session, command: &mut Command) -> Output {
    for _ in 0..10 {
        in_time(session.interpreters_started()).await;
        let output = in_time(command.output()).await.expect("a command");
        if output.outcome.start == Start::Warm {
            return output;
        }
        assert_eq!(output.outcome.start.reason(), Some(SILENT), "{command:?}: {output:?}");
    }
    panic!("no interpreter answers");
}

/// What a warm command says that must succeed.
async fn warm_said(session: &Session, command: &mut Command) -> String {
    let output = warm(session, command).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.outcome.status.success(), "{command:?}: {output:?}");
    said
}

/// What a command says that must succeed, and why it was executed.
async fn executed_said(command: &mut Command) -> (String, String) {
    let output = in_time(command.output()).await.expect("a command");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.outcome.status.success(), "{command:?}: {output:?}");
    let reason = output.outcome.start.reason();
    (said, reason.unwrap_or_else(|| panic!("no reason: {output:?}")).to_owned())
}

/// Runs a test in a process of its own, where no other test starts children or opens descriptors.
fn alone(test: &str, what: impl AsyncFnOnce()) {
    if is_alone(&format!("warm::{test}"), "exec \"$@\"") {
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(what());
    }
}
