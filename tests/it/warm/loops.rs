//! Many commands after each other: each gets its own answer, and nothing is left.

use kennel::{Isolation, Session};

use super::{alone, in_time, require_python, text, waiting, warm};
use crate::{
    session::counts::Counts,
    support::{World, eventually, is_emulated},
};

/// The variable that asks for more commands.
const COMMANDS: &str = "KENNEL_WARM_COMMANDS";

/// How many commands a test runs.
fn commands(usual: u32) -> u32 {
    let asked = std::env::var(COMMANDS).ok().map(|count| count.parse().expect("a number"));
    asked.unwrap_or(if is_emulated() { usual / 10 } else { usual })
}

/// A text for `-c`, and what it prints and returns.
fn snippet(number: u32) -> (String, String, u8) {
    let code = (number % 7) as u8;
    let (text, said) = match number % 8 {
        0 => (format!("print({number} * 3)"), format!("{}\n", number * 3)),
        1 => (format!("import json; print(json.dumps([{number}]))"), format!("[{number}]\n")),
        2 => (format!("import sys; sys.stdout.write('{number}' * 3)"), number.to_string().repeat(3)),
        3 => (
            format!("for n in range({number} % 9): print(n)"),
            (0..number % 9).map(|n| format!("{n}\n")).collect(),
        ),
        4 => (
            format!(
                "import os; os.environ['LEFT'] = '{number}'; print(os.popen('echo $LEFT').read(), end='')"
            ),
            format!("{number}\n"),
        ),
        5 => (format!("LEFT = {number}; print(LEFT)"), format!("{number}\n")),
        6 => (
            format!(
                "import threading; t = threading.Thread(target=print, args=({number},)); t.start(); t.join()"
            ),
            format!("{number}\n"),
        ),
        _ => ("print('LEFT' in globals(), __name__)".to_owned(), "False __main__\n".to_owned()),
    };
    (format!("{text}\nraise SystemExit({code})"), said, code)
}

async fn run_many(session: &Session, python: &str, count: u32) {
    let mut warm_ones = 0;
    for number in 0..count {
        // Some come while the next interpreter is still getting ready.
        if number % 4 != 3 {
            in_time(session.interpreters_started()).await;
        }
        let (script, said, code) = snippet(number);
        let output = in_time(text(session, python, &script).output()).await.expect("a command");
        let found = (String::from_utf8_lossy(&output.stdout), output.outcome.exit_code());
        assert_eq!(found, (said.into(), code), "{number}: {output:?}");
        assert!(output.stderr.is_empty(), "{number}: {output:?}");
        warm_ones += u32::from(output.outcome.start == kennel::Start::Warm);
    }
    assert!(warm_ones > count / 4, "{warm_ones} of {count}");
}

async fn loops(isolation: Isolation, count: u32) {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.policy().isolation(isolation), python, &["json"]).await;
    let settle = async || {
        warm(&session, &mut text(&session, python, "pass")).await;
        in_time(session.interpreters_started()).await;
        eventually("ready workers", || session.stats().ready == 2).await;
    };
    settle().await;
    let before = Counts::now();
    run_many(&session, python, count).await;
    settle().await;
    Counts::back_to(&before, || {}).await;
    assert_eq!(session.stats().background, 0);
    in_time(session.shutdown()).await;
}

#[test]
fn many_commands_among_shared_processes_leave_nothing() {
    alone("loops::many_commands_among_shared_processes_leave_nothing", async || {
        loops(Isolation::Session, commands(800)).await;
    });
}

#[test]
fn many_commands_in_processes_of_their_own_leave_nothing() {
    alone("loops::many_commands_in_processes_of_their_own_leave_nothing", async || {
        loops(Isolation::Command, commands(200)).await;
    });
}
