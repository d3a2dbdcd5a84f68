//! `kennel session ps`: what runs in a session.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use kennel::{
    Error, SessionProcess, SessionProcesses, Signal, Size,
    client::{Client, DetachedCommand, DetachedState},
    internal::escape::harmless,
};
use serde::Serialize;

use crate::{
    report,
    terminal::{
        style::{self, Paint},
        table::age,
    },
};

/// A detached command that has ended.
#[derive(Serialize)]
struct Ended {
    command: u32,
    program: String,
    age_ms: u64,
    /// Nothing if it was killed together with its sandbox.
    exit_code: Option<u8>,
    signal: Option<i32>,
}

impl Ended {
    /// `None` if it runs.
    fn of(command: &DetachedCommand) -> Option<Self> {
        let (exit_code, signal) = match command.state {
            DetachedState::Running => return None,
            DetachedState::Ended { code, signal } => (Some(code), signal.map(Signal::number)),
            _ => (None, None),
        };
        let age = SystemTime::now().duration_since(command.started).unwrap_or_default();
        Some(Self {
            command: command.id,
            program: command.program.to_string_lossy().into_owned(),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            exit_code,
            signal,
        })
    }

    fn state(&self) -> String {
        match (self.signal, self.exit_code) {
            (Some(signal), _) => format!("signal {signal}"),
            (None, Some(code)) => format!("exit {code}"),
            (None, None) => "killed".to_owned(),
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    running: SessionProcesses,
    /// With `--all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Vec<Ended>>,
}

/// Runs `kennel session ps`.
pub(crate) fn ps(name: &str, all: bool, json: bool) -> Result<ExitCode, Error> {
    let running = Client::connect(name)?.processes()?;
    let detached = all.then(|| Client::connect(name)?.detached()).transpose()?;
    let ended = detached.map(|commands| commands.iter().filter_map(Ended::of).collect());
    let listed = Listed { running, ended };
    let text = if json { report::json(&listed)? + "\n" } else { table(&listed) };
    report::print(text.as_bytes())?;
    if !json && listed.running.unlisted > 0 {
        report::say(format_args!("kennel: note: {} more processes are not listed", listed.running.unlisted));
    }
    let cold = listed.running.interpreters.iter().filter_map(|one| Some((one, one.reason.as_deref()?)));
    for (interpreter, reason) in cold.filter(|_| !json) {
        let (program, reason) = (harmless(&interpreter.program), harmless(reason));
        report::say(format_args!("kennel: note: {program} does not wait for commands: {reason}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(listed: &Listed) -> String {
    let header = row("PID", "ID", "STATE", "AGE", "CPU", "MEMORY", "COMMAND");
    let mut text = Paint::stdout().paint(style::TITLE, header.trim_end()) + "\n";
    for process in &listed.running.processes {
        text += &of_process(process);
    }
    for ended in listed.ended.iter().flatten() {
        let age = age(ended.age_ms / 1000);
        text +=
            &row("-", &ended.command.to_string(), &ended.state(), &age, "-", "-", &harmless(&ended.program));
    }
    text
}

fn of_process(process: &SessionProcess) -> String {
    let id = process.command.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let memory = Size::from_bytes(process.memory.next_multiple_of(unit(process.memory))).to_string();
    row(
        &process.pid.to_string(),
        &id,
        process.state.as_str(),
        &age(process.age.as_secs()),
        &cpu(process.cpu),
        &memory,
        &command_line(process),
    )
}

fn row(pid: &str, id: &str, state: &str, age: &str, cpu: &str, memory: &str, command: &str) -> String {
    format!("{pid:>7} {id:>4} {state:<9} {age:>5} {cpu:>8} {memory:>7}  {command}\n")
}

/// Sizes from 10 MiB on are in MiB.
fn unit(size: u64) -> u64 {
    if size < 10 << 20 { 1 << 10 } else { 1 << 20 }
}

/// Seconds, with hundredths.
fn cpu(time: Duration) -> String {
    format!("{}.{:02}", time.as_secs(), time.subsec_millis() / 10)
}

/// The arguments in one line; as ps(1) does, the name in brackets if there are none.
fn command_line(process: &SessionProcess) -> String {
    if process.arguments.is_empty() {
        return format!("[{}]", harmless(&process.name));
    }
    let words: Vec<_> = process.arguments.iter().map(|word| word.to_string_lossy()).collect();
    harmless(&words.join(" ")) + if process.is_cut { "…" } else { "" }
}
