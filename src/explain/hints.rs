//! Short help after a failure: what of the sandbox's own doing may be the reason, and the setting that helps.
//!
//! It knows what the caller typed, how the command ended and what the policy shows. It reads messages only of
//! a command whose output passes through Kennel anyway, on a terminal or a pipe of Kennel's own: a pipe for
//! that alone would be noticed.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use nix::errno::Errno;

use crate::explain::Attempt;
use crate::explain::context::{ExplainContext, MOST_LOOKS, denial_for_errno, no_network};
use crate::policy::network::NetworkMode;
use crate::policy::network::destination::DestinationHost;
use crate::policy::network::preset::{self, Preset};
use crate::report::denial::{Denial, shown};
use crate::report::enforcement::Note;
use crate::report::network_failure::NetworkFailure;
use crate::report::outcome::{Ended, Outcome};
use crate::report::remedy::{SettingKey, remedy};

/// What programs say of errors that a wall may cause, in lower case, where no fact tells.
const PHRASES: &[(&str, Errno)] = &[
    ("no such file", Errno::ENOENT),
    ("not found", Errno::ENOENT),
    ("does not exist", Errno::ENOENT),
    ("nonexistent", Errno::ENOENT),
    ("read-only file system", Errno::EROFS),
    ("resource busy", Errno::EBUSY),
    ("no space left", Errno::ENOSPC),
    ("too many open files", Errno::EMFILE),
    ("cannot allocate memory", Errno::ENOMEM),
    ("resource temporarily unavailable", Errno::EAGAIN),
    ("network is unreachable", Errno::ENETUNREACH),
    ("resolve host", Errno::ENETUNREACH),
];

/// Parts of words about an attempt to write.
const WRITING: &[&str] = &["creat", "mkdir", "touch", "writ"];

/// How many of the last lines are read, and how much of each.
const MOST_LINES: usize = 64;
const LONGEST_LINE: usize = 8192;

/// How many hints may be about what the command perhaps wanted.
const MOST_GUESSES: usize = 2;

/// What is known of a program that was typed.
enum Known {
    /// It searches this file in the directories above.
    Searches(&'static str),
    /// This command of git writes the configuration, and fails with one of these statuses.
    Configures(&'static str, &'static [i32]),
    /// This command of git makes a commit, and fails with 128.
    Commits(&'static str),
    /// It changes packages of the system.
    Installs,
}

/// What no fact tells: what a program is for.
const PROGRAMS: &[(&str, Known)] = &[
    ("cargo", Known::Searches("Cargo.toml")),
    ("npm", Known::Searches("package.json")),
    ("go", Known::Searches("go.mod")),
    ("git", Known::Searches(".git")),
    ("git", Known::Configures("config", &[4, FATAL])),
    ("git", Known::Configures("remote", &[1, FATAL])),
    ("git", Known::Configures("branch", &[FATAL])),
    ("git", Known::Configures("submodule", &[1, FATAL])),
    ("git", Known::Commits("commit")),
    ("apt", Known::Installs),
    ("apt-get", Known::Installs),
    ("dnf", Known::Installs),
];

/// Words for a change of packages.
const CHANGES: &[&str] = &["install", "remove", "update", "upgrade"];

/// The status of git for a fatal error, and the last one of a command that failed by itself.
const FATAL: i32 = 128;

impl ExplainContext {
    /// The hints for an end, the surest first.
    /// `registries` are those whose downloads are gone with the sandbox.
    pub(crate) fn hints(&self, outcome: &Outcome, registries: &[String]) -> Vec<Note> {
        let mut hints: Vec<Note> = of_limit(outcome).into_iter().collect();
        hints.extend(of_network_failures(outcome));
        if let Some(code) = failed(outcome) {
            hints.extend(self.of_network());
            hints.extend(self.of_paths());
            hints.extend(self.of_directory_outside());
            hints.extend(self.of_programs(code));
            if hints.is_empty() && outcome.denials.is_empty() {
                hints.extend(self.of_unread());
            }
        }
        hints.extend(self.of_background(outcome));
        hints.extend(of_caches(registries));
        let (mut subjects, mut remedies) = (HashSet::new(), HashSet::new());
        hints.retain(|hint| {
            let is_advised = hint.remedy.as_ref().is_some_and(|remedy| !remedies.insert(remedy.clone()));
            !is_advised && subjects.insert(hint.subject.clone())
        });
        hints
    }

    /// Adds hints for errors that the command wrote: those with a setting. What the caller typed has its hint
    /// already, or no setting helps. A command must not make Kennel recommend a secret.
    pub(crate) fn add_of_errors(&self, outcome: &mut Outcome, text: &[u8]) {
        if failed(outcome).is_none() {
            return;
        }
        let mut subjects: HashSet<String> =
            self.typed_paths().into_iter().map(|typed| shown(&typed.path)).collect();
        subjects.extend(outcome.hints.iter().map(|hint| hint.subject.clone()));
        subjects.extend(outcome.denials.iter().map(|denial| denial.subject.clone()));
        for Denial { subject, reason, remedy, .. } in self.errors_in(text) {
            let is_secret = self.explainer.is_secret(Path::new(&subject));
            let Some(remedy) = remedy.filter(|_| !is_secret) else { continue };
            let told = outcome.hints.iter().filter_map(|hint| hint.remedy.as_ref());
            let mut told = told.chain(outcome.denials.iter().filter_map(|denial| denial.remedy.as_ref()));
            if !told.any(|told| told.names(remedy.settings())) && subjects.insert(subject.clone()) {
                outcome.hints.push(Note::new(&subject, &reason, Some(remedy)));
            }
        }
    }

    /// The errors in a text that the sandbox may have caused. What is said about them is true under the
    /// policy, even if the command was made to print a false message.
    pub(super) fn errors_in(&self, text: &[u8]) -> Vec<Denial> {
        let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n' || byte == b'\r').collect();
        lines.drain(..lines.len().saturating_sub(MOST_LINES));
        let mut seen = HashSet::new();
        lines.retain(|line| seen.insert(*line));
        lines.iter().flat_map(|line| self.errors_of_line(line.get(..LONGEST_LINE).unwrap_or(line))).collect()
    }

    fn errors_of_line(&self, line: &[u8]) -> Vec<Denial> {
        let line = String::from_utf8_lossy(line);
        let lower = line.to_ascii_lowercase();
        let Some((_, errno)) = PHRASES.iter().find(|(phrase, _)| lower.contains(phrase)) else {
            return Vec::new();
        };
        let policy = &self.explainer.policy;
        match *errno {
            Errno::ENETUNREACH if policy.network == NetworkMode::None || policy.only_refuses => {
                vec![no_network(&self.explainer)]
            }
            errno => {
                let attempt = Attempt { errno, writes: WRITING.iter().any(|word| lower.contains(word)) };
                let paths = self.paths_in(&line).into_iter().map(|named| named.path);
                // A command may have made a link.
                let paths = paths.filter(|path| self.explainer.is_direct(path));
                let denials =
                    paths.filter_map(|path| self.explainer.explain(&path, attempt, &self.restrictions));
                denials.chain(denial_for_errno(&self.limits, errno)).collect()
            }
        }
    }

    /// A host that was typed.
    fn of_network(&self) -> Option<Note> {
        let explainer = &self.explainer;
        let (host, port) = self.words.iter().find_map(|word| destination(word))?;
        let with = |rule: String| {
            let other_profile = || vec![SettingKey::Profile.to("repo-write")];
            let mut settings = explainer.policy.proxy_settings.clone().unwrap_or_else(other_profile);
            settings.push(SettingKey::Allow.to(rule));
            settings
        };
        let host_alone = with(format!("{host}:{port}"));
        let preset = DestinationHost::parse(host).ok().and_then(|host| preset::of_host(&host, Some(port)));
        let remedy = match preset.map(Preset::word) {
            Some(preset) => remedy![with(preset), " allows it, or ", host_alone, " that one host"],
            None => remedy![host_alone, " allows it"],
        };
        (explainer.policy.network == NetworkMode::None)
            .then(|| Note::new(host, "the sandbox has no network", Some(remedy)))
    }

    /// Paths that were typed, and that the view hides or shows read-only.
    fn of_paths(&self) -> Vec<Note> {
        let typed = self.typed_paths().into_iter();
        typed.filter_map(|typed| self.explainer.hint(&typed.path, typed.is_output)).collect()
    }

    /// A file of the caller's directory that was typed.
    fn of_directory_outside(&self) -> Option<Note> {
        let words = self.words.iter().flat_map(|word| word.split_whitespace());
        words.take(MOST_LOOKS).find_map(|word| self.explainer.hint_of_directory_outside(word))
    }

    /// Paths that were typed and are read-only, which the command has not read: it may have wanted to change
    /// them.
    fn of_unread(&self) -> Vec<Note> {
        let unread = self.unread.as_ref().map(|unread| unread.paths()).unwrap_or_default();
        unread.iter().filter_map(|path| self.explainer.hint_of_change(path)).take(MOST_GUESSES).collect()
    }

    /// What is known of programs that were typed.
    fn of_programs(&self, code: i32) -> Vec<Note> {
        let words = self.words.iter().flat_map(|word| word.split([' ', ';', '&', '|', '(', '\n']));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let typed = |program: &str| words.iter().any(|word| word.rsplit('/').next() == Some(program));
        let explainer = &self.explainer;
        let hint = |(program, known): &(&'static str, Known)| {
            match known {
            _ if !typed(program) => None,
            Known::Searches(file) => explainer.hint_of_directory(&self.directory, file),
            Known::Configures(command, codes) => (words.contains(command) && codes.contains(&code))
                .then(|| explainer.hint_of_git_settings(&self.directory))?,
            Known::Commits(command) => {
                (words.contains(command) && code == FATAL).then(|| explainer.hint_of_identity())?
            }
            Known::Installs if !CHANGES.iter().any(|change| words.contains(change)) => None,
            Known::Installs => Some(Note::new(
                program,
                "the sandbox cannot change the system",
                Some(
                    "install it outside of the sandbox, which then shows it; inside, install packages of a language in the workspace (a venv of \
                     Python, npm, cargo), or unpack a package there (dpkg -x FILE DIR)"
                        .into(),
                ),
            )),
        }
        };
        PROGRAMS.iter().filter_map(hint).collect()
    }

    /// The caller wanted to leave processes behind, and Kennel ended them with the command.
    fn of_background(&self, outcome: &Outcome) -> Option<Note> {
        let count = outcome.usage.killed;
        let is_over = outcome.ended == Ended::Exited && outcome.status.signal().is_none();
        if count == 0 || !is_over || !self.words.iter().any(|word| leaves(word)) {
            return None;
        }
        let processes = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
        let text = format!("{processes} that the command left running ended with it");
        let exec = SettingKey::Exec.to("NAME -- SERVER &");
        let remedy = remedy!["a server of a session is a command of its own: ", exec];
        Some(Note::new("background", &text, Some(remedy)))
    }
}

fn of_limit(outcome: &Outcome) -> Option<Note> {
    let setting = outcome.limit?.setting()?;
    let value = outcome.configured.as_deref().unwrap_or("reached");
    Some(Note::new(
        outcome.limit?.words(),
        &format!("the limit is {value}"),
        Some(remedy![setting, " raises it"]),
    ))
}

/// What the proxy could not reach, if the command did not succeed.
pub(crate) fn of_network_failures(outcome: &Outcome) -> Vec<Note> {
    let failures = outcome.network_failures.iter().filter(|_| !outcome.status.success());
    failures.map(NetworkFailure::note).collect()
}

/// What package managers downloaded into their caches is gone.
fn of_caches(registries: &[String]) -> Option<Note> {
    let text = format!("what it downloaded from {} is gone with the sandbox", registries.join(", "));
    (!registries.is_empty()).then(|| {
        Note::new("caches", &text, Some(remedy![SettingKey::Caches.to("keep"), " keeps it for the next one"]))
    })
}

/// The status of a command that failed by itself. From 129 on, a shell says that a signal ended its child.
fn failed(outcome: &Outcome) -> Option<i32> {
    outcome.status.code().filter(|code| (1..=FATAL).contains(code))
}

/// Whether a word has a `&` that leaves a process behind: neither `&&` nor part of a redirection.
fn leaves(word: &str) -> bool {
    word == "nohup" || word.split("&&").any(|part| part.replace(">&", "").replace("&>", "").contains('&'))
}

/// The host and port that a word names: `https://HOST/…`, `user@HOST:path`.
fn destination(word: &str) -> Option<(&str, u16)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let (scheme, rest) = match word.split_once("://") {
        Some((scheme, rest)) => (scheme.rsplit(|c| !is_part(c)).next().unwrap_or(scheme), rest),
        None => ("ssh", word.split_once('@').map(|(_, rest)| rest).filter(|rest| rest.contains(':'))?),
    };
    let authority = rest.split(['/', '?', '#', ' ', '\'', '"']).next()?;
    let authority = authority.rsplit('@').next()?;
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    let port = match (port.parse(), scheme) {
        (Ok(port), _) => port,
        (_, "https" | "wss") => 443,
        (_, "http" | "ws") => 80,
        (_, "ssh") => 22,
        (_, "git") => 9418,
        (_, "ftp") => 21,
        _ => return None,
    };
    let is_here = host == "localhost" || host.starts_with("127.");
    (!host.is_empty() && host.chars().all(is_part) && !is_here).then_some((host, port))
}
