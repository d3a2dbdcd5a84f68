//! The outcome of a command: how it ended, what it used, what was refused. Plain data.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::Serialize;

use crate::report::denial::{self, Denial};
use crate::report::enforcement::{Enforcement, Note, Scope};
use crate::report::failure::{Boundary, Class, Details, Failure, Limit, exit};
use crate::report::network_failure::NetworkFailure;
use crate::report::observed::Observed;
use crate::report::published::PublishedPort;
use crate::report::remedy::{Remedy, Setting, SettingKey, Wording, remedy};

/// What ended a command. If the command ended by itself just before Kennel killed it, its own end counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It exited on its own.
    Exited,
    /// A signal ended it.
    Signaled,
    /// It exceeded its timeout, and Kennel killed it.
    TimedOut,
    /// The caller killed it.
    Killed,
}

/// How a program was started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// By execve(2).
    Executed {
        /// Why, if its interpreter is one of [`Policy::warm`](field@crate::policy::Policy::warm) and the
        /// caller did not ask for it.
        reason: Option<String>,
    },
    /// An interpreter that had started before became the command.
    Warm,
}

impl Default for Start {
    fn default() -> Self {
        Self::Executed { reason: None }
    }
}

impl Start {
    /// The word for it in reports: `exec` or `warm`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Executed { .. } => "exec",
            Self::Warm => "warm",
        }
    }

    /// Why a program whose interpreter was to be warm was executed.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Executed { reason } => reason.as_deref(),
            Self::Warm => None,
        }
    }
}

/// The resources that a command and all its descendants used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// CPU time in user mode, in microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub system_us: u64,
    /// Largest resident set of any one process, in bytes.
    pub max_rss_bytes: u64,
    /// Processes that outlived the command, and that Kennel ended.
    pub killed: u32,
    /// Largest memory of all processes together, with the kernel's memory for them, in bytes. This field and
    /// the following ones are known only if the command had a cgroup (memory.peak, Linux 5.19).
    pub peak_memory_bytes: Option<u64>,
    /// Most processes and threads at the same time (pids.peak, Linux 6.1).
    pub peak_pids: Option<u64>,
    /// Bytes read from block devices (io.stat).
    pub io_read_bytes: Option<u64>,
    /// Bytes written to block devices (io.stat).
    pub io_write_bytes: Option<u64>,
    /// Time for which the CPU limit throttled the command, in microseconds (cpu.stat).
    pub throttled_us: Option<u64>,
    /// Processes that the kernel killed at the memory limit (memory.events).
    pub oom_kills: Option<u64>,
}

impl From<libc::rusage> for Usage {
    /// Counts like waitid(2): one process and the children that it waited for.
    fn from(used: libc::rusage) -> Self {
        let micros = |time: libc::timeval| {
            let parts = u64::try_from(time.tv_sec).ok().zip(u64::try_from(time.tv_usec).ok());
            parts.map_or(0, |(seconds, micros)| seconds * 1_000_000 + micros)
        };
        Self {
            user_us: micros(used.ru_utime),
            system_us: micros(used.ru_stime),
            max_rss_bytes: crate::sys::resident_bytes(&used),
            ..Self::default()
        }
    }
}

/// Most lines for people, as long as hints are among them.
const MOST_HELP: usize = 3;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The status as wait(2) reports it; after a timeout, that of the kill.
    pub status: ExitStatus,
    /// What ended it.
    pub ended: Ended,
    /// The limit that ended it, if any.
    pub limit: Option<Limit>,
    /// From the start to the end of the command.
    pub duration: Duration,
    /// The resources that it used.
    pub usage: Usage,
    /// Bytes that it wrote to stdout, including those beyond the cap, if Kennel collected them. If you read a
    /// pipe yourself, [`ChildOutput::seen`](crate::process::output::ChildOutput::seen) has them;
    /// [`count`](Self::count) enters them here.
    pub stdout_bytes: Option<u64>,
    /// Bytes that it wrote to stderr, likewise.
    pub stderr_bytes: Option<u64>,
    /// Whether output beyond the cap was discarded, or some output could not be written to its destination.
    pub truncated: bool,
    /// Why some output could not be written to its destination, in words: a full disk, or no reader.
    /// [`RunningCopies::finish`](crate::command::outlet::RunningCopies::finish) enters it, or your program if
    /// it copies output itself. The command then counts as failed.
    pub unwritten: Option<String>,
    /// How its program was started.
    pub start: Start,
    /// What Kennel enforced.
    pub enforcement: Enforcement,
    /// What was refused, as far as Kennel knows.
    pub denials: Vec<Denial>,
    /// Connections that the policy allows and that Kennel's proxy could not make. Commands of a session share
    /// the network, so some may be those of others. What a later attempt reached is left out.
    pub network_failures: Vec<NetworkFailure>,
    /// What of the sandbox's doing may have made it fail, the likeliest first, if
    /// [`Command::hints`](crate::command::Command::hints) asked for that.
    pub hints: Vec<Note>,
    /// What it used of the host, if the policy asks for that
    /// ([`Policy::learn`](crate::policy::Policy::learn)) and it could be seen.
    pub observed: Option<Observed>,
    /// Whether a change to a protected path may remain: Kennel could not undo it, or a killed process that is
    /// stuck in a system call may still make it. The denials name the path.
    pub is_left: bool,
    /// The published ports of its sandbox or session.
    pub published: Vec<PublishedPort>,
    /// The command's record in the audit log, if there is one.
    pub audit_id: Option<String>,
    /// How many records of the sandbox could not be written to the audit log so far, and why, in words. With
    /// [`fail_closed`](crate::policy::audit::Audit::fail_closed), nothing runs in that case.
    pub unaudited: Option<String>,
    /// Whether the policy asks for explanations.
    pub(crate) explains: bool,
    /// The configured value of the limit that ended it, in words.
    pub(crate) configured: Option<String>,
    /// How much of that limit it used, in the same words, if known.
    pub(crate) used: Option<String>,
    /// The timeout that applied to it.
    pub(crate) timeout: Option<Duration>,
}

impl Outcome {
    /// The exit status that a shell would report: the command's own, 128 + n after signal n, 124 after a
    /// timeout. If output was [not written](Self::unwritten), it is 125. If a change was
    /// [left](Self::is_left), it is 125 instead of 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.ended == Ended::TimedOut {
            return exit::TIMED_OUT;
        }
        if let Some(signal) = self.status.signal() {
            return u8::try_from(128 + signal).unwrap_or(255);
        }
        if self.unwritten.is_some() || self.is_left && self.status.success() {
            return exit::FAILED;
        }
        self.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
    }

    /// The lines for people besides the exit status: what was refused, which limit or kill ended the command,
    /// and hints as long as there are three lines at most. Escaped. Settings are in the words of a front end.
    #[must_use]
    pub fn remarks(&self, wording: Wording) -> Vec<String> {
        self.sentences(Scope::Command).iter().map(|line| line.in_words(wording)).collect()
    }

    /// The lines of [`remarks`](Self::remarks).
    pub(crate) fn sentences(&self, scope: Scope) -> Vec<Remedy> {
        let (unlisted, others) = denial::split_unlisted_hosts(&self.told_denials().collect::<Vec<_>>());
        let mut lines: Vec<Remedy> = others.into_iter().map(|denial| denial.sentence(scope)).collect();
        lines.extend(unlisted.map(|hosts| hosts.sentence(scope)));
        lines.extend(self.ended_by().map(|failure| self.end_in_words(&failure, scope)));
        lines.extend(self.lost());
        let is_new = |hint: &&Note| self.denials.iter().all(|denial| !is_same(denial, hint));
        let room = MOST_HELP.saturating_sub(lines.len());
        lines.extend(self.hints.iter().filter(is_new).take(room).map(|hint| hint.sentence("hint", scope)));
        lines
    }

    /// What ended the command. The default size of private places applies to callers who set none, so it says
    /// what raises it.
    fn end_in_words(&self, failure: &Failure, scope: Scope) -> Remedy {
        let mut line = Remedy::from(format!("kennel: {}", failure.message));
        if self.limit == Some(Limit::Tmpfs) {
            let places = SettingKey::Tmpfs.to("P:SIZE");
            let more =
                remedy![SettingKey::TmpSize, ", ", SettingKey::TmpInodes, " or ", places, " gives more"];
            line.push(remedy!["; ", scope.of(&more)]);
        }
        line
    }

    /// The denials that a person should see. A command that succeeded did not need what a package manager
    /// asks about itself.
    fn told_denials(&self) -> impl Iterator<Item = &Denial> {
        let needs_all = self.explains || !self.status.success();
        self.denials.iter().filter(move |denial| needs_all || !denial.is_update_check)
    }

    /// The settings that would allow what was certainly refused, as [`remarks`](Self::remarks) advise them:
    /// those of each denial belong together.
    #[must_use]
    pub fn advised(&self) -> Vec<Vec<Setting>> {
        let certain = self.told_denials().filter(|denial| denial.basis.is_certain());
        let mut all: Vec<Vec<Setting>> = Vec::new();
        for settings in certain.map(Denial::advised) {
            if !settings.is_empty() && !all.contains(&settings) {
                all.push(settings);
            }
        }
        all
    }

    /// What was lost of the output and of the audit log.
    pub(crate) fn lost(&self) -> impl Iterator<Item = Remedy> {
        self.unwritten.iter().chain(&self.unaudited).map(|why| format!("kennel: {why}").into())
    }

    /// The limit that ended the command, its value, and how much was used if that is another value.
    fn limit_in_words(&self, limit: Limit) -> String {
        let configured = self.configured.iter().map(|value| format!(", {value}"));
        let more = self.used.iter().filter(|used| self.configured.as_ref() != Some(used));
        let used = more.map(|used| format!(" (used {used})"));
        let values: String = configured.chain(used).collect();
        format!("the command hit a limit: {}{values}", limit.words())
    }

    /// The failure class, if Kennel or a limit ended the command, or its output could not be written.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        let unwritten = |words: &String| {
            let failure = Failure::new(Class::RuntimeError, Boundary::Runtime, words.clone(), Details::None);
            failure.recorded(self.audit_id.clone())
        };
        self.ended_by().or_else(|| self.unwritten.as_ref().map(unwritten))
    }

    /// The failure that ended the command.
    fn ended_by(&self) -> Option<Failure> {
        let details = self.limit.map_or(Details::None, |limit| Details::Limit {
            limit,
            configured: self.configured.clone(),
            used: self.used.clone(),
        });
        let (class, boundary, message) = match (self.ended, self.limit) {
            (Ended::TimedOut, _) => {
                let timeout = self.timeout.unwrap_or(self.duration);
                let message = format!("command timed out after {}ms", timeout.as_millis());
                (Class::Timeout, Boundary::Sandbox, message)
            }
            (Ended::Killed, _) => {
                (Class::Cancelled, Boundary::Action, "the caller killed the command".to_owned())
            }
            (_, Some(limit)) => (Class::ResourceLimitExceeded, Boundary::Sandbox, self.limit_in_words(limit)),
            _ => return None,
        };
        Some(Failure::new(class, boundary, message, details).recorded(self.audit_id.clone()))
    }
}

/// Whether a hint says what a denial says.
fn is_same(denial: &Denial, hint: &Note) -> bool {
    let settings =
        |remedy: &Option<Remedy>| remedy.as_ref().map_or_else(Vec::new, |remedy| remedy.settings().to_vec());
    let denied = settings(&denial.remedy);
    denial.subject == hint.subject || !denied.is_empty() && settings(&hint.remedy).starts_with(&denied)
}

// A command's output together with its outcome.

/// The outcome of a command whose output was collected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to stdout. If the cap cut it, it ends with a marker.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr, likewise.
    pub stderr: Vec<u8>,
}
