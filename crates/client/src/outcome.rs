//! How a command ended, as a local session tells it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::Deserialize;

use crate::events::End;

/// The signal of a kill, and of a timeout.
const SIGKILL: i32 = 9;

/// What ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ended {
    /// It exited on its own.
    Exited,
    /// A signal ended it; also one that the caller sent.
    Signaled,
    /// Its [timeout](crate::Command::timeout) was over, and the server killed it.
    TimedOut,
    /// The caller killed it. Only in a [`Report`](crate::Report).
    Killed,
    /// It did not start. Only in a [`Report`](crate::Report).
    Failed,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The status as wait(2) reports it on the server, which runs Linux: so are the numbers of signals. After
    /// a timeout, that of the kill.
    pub status: ExitStatus,
    /// What ended it.
    pub ended: Ended,
    /// From the start to the end of the command, as this program saw it.
    pub duration: Duration,
}

impl Outcome {
    pub(crate) fn of(end: &End, duration: Duration) -> Option<Self> {
        if end.exited {
            let code = u8::try_from(end.exit_code).ok()?;
            let status = ExitStatus::from_raw(i32::from(code) << 8);
            return Some(Self { status, ended: Ended::Exited, duration });
        }
        let signal = signal(end.status.strip_prefix("signal: ")?)?;
        Some(Self { status: ExitStatus::from_raw(signal), ended: Ended::Signaled, duration })
    }

    pub(crate) fn timed_out(duration: Duration) -> Self {
        Self { status: ExitStatus::from_raw(SIGKILL), ended: Ended::TimedOut, duration }
    }

    /// The exit status that a shell would report: the command's own, 128 + n after signal n, 124 after a
    /// timeout.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.ended == Ended::TimedOut {
            return 124;
        }
        let code = self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
    }
}

/// The number of a signal on x86_64, from the words of the server.
fn signal(words: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    let name = match words {
        "killed" => "SIGKILL",
        "terminated" => "SIGTERM",
        "interrupt" => "SIGINT",
        "segmentation fault" => "SIGSEGV",
        "aborted" => "SIGABRT",
        other => other,
    };
    let named = (1..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| number);
    named.or_else(|| name.parse().ok().filter(|number| (1..=64).contains(number)))
}

/// What [`Command::output`](crate::Command::output) collects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How the command ended.
    pub outcome: Outcome,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_calls_an_end_is_one() {
        let of = |exit_code, exited, status: &str| {
            let end = End { exit_code, exited, status: status.into() };
            Outcome::of(&end, Duration::ZERO).map(|outcome| (outcome.exit_code(), outcome.ended))
        };
        assert_eq!(of(3, true, "exit status 3"), Some((3, Ended::Exited)));
        assert_eq!(of(-1, false, "signal: killed"), Some((137, Ended::Signaled)));
        assert_eq!(of(-1, false, "signal: SIGHUP"), Some((129, Ended::Signaled)));
        assert_eq!(of(-1, false, "signal: 34"), Some((162, Ended::Signaled)));
        for (code, exited, status) in
            [(256, true, ""), (-1, true, ""), (0, false, ""), (0, false, "signal: 0")]
        {
            assert_eq!(of(code, exited, status), None, "{code} {status}");
        }
    }
}
