//! Short help after a failure: what of the sandbox's own doing may be the reason, and the setting that helps.
//!
//! It knows what the caller typed, how the command ended and what the policy shows. It reads messages only of
//! a command whose output passes through Kennel anyway, on a terminal or a pipe of Kennel's own: a pipe for
//! that alone would be noticed. So elsewhere a path that a program does not have from its arguments gets no
//! hint.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::explain::context::Judge;
use crate::explain::hint::Use;
use crate::explain::words::{Typed, destination, paths, typed};
use crate::policy::destination::Host;
use crate::policy::network::NetworkMode;
use crate::policy::preset::{self, Preset};
use crate::report::denial::{Denial, shown};
use crate::report::enforcement::Note;
use crate::report::network_failure::NetworkFailure;
use crate::report::outcome::{Ended, Outcome};
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::lexical;

/// Programs that make or fill what they name.
const WRITERS: &[&str] = &["chmod", "chown", "mkdir", "mkfifo", "tee", "touch", "truncate"];

/// Programs that write to the last path that they name.
const COPIERS: &[&str] = &["cp", "install", "ln", "rsync", "scp"];

/// Programs that replace or remove what they name.
const REPLACERS: &[&str] = &["mv", "rm", "rmdir", "sed", "shred", "unlink"];

/// Words after which a program leaves a server behind.
const LEAVING: &[&str] = &["--background", "--daemon", "--daemonize", "--detach", "start"];

/// Files that programs search in the directories above.
const MARKERS: &[(&[&str], &[&str])] = &[
    (&["cargo"], &["Cargo.toml"]),
    (&["npm", "npx", "pnpm", "yarn", "bun"], &["package.json"]),
    (&["go"], &["go.mod", "go.work"]),
    (&["gradle"], &["settings.gradle", "settings.gradle.kts"]),
    (&["poetry", "uv", "pdm", "hatch"], &["pyproject.toml"]),
    (&["bazel"], &["MODULE.bazel", "WORKSPACE"]),
    (&["bundle"], &["Gemfile"]),
    (&["just"], &["justfile", ".justfile"]),
    (&["git"], &[".git"]),
    (&["hg"], &[".hg"]),
    (&["svn"], &[".svn"]),
];

/// Commands of git that make a commit or a tag.
const COMMITTING: &[&str] =
    &["am", "cherry-pick", "commit", "merge", "notes", "pull", "rebase", "revert", "stash", "tag"];

/// Commands of git that write its configuration, and the words of which one follows. Without words, any may.
const CONFIGURING: &[(&str, &[&str])] = &[
    ("branch", &["-m", "-M", "--move", "--edit-description"]),
    ("config", &[]),
    ("init", &[]),
    ("remote", &["add", "remove", "rename", "rm", "set-branches", "set-url"]),
    ("sparse-checkout", &["init", "set", "disable"]),
    ("submodule", &["add", "deinit", "init", "sync", "update"]),
    ("worktree", &["remove"]),
];

/// Programs that change packages of the system, and their words for that.
const INSTALLERS: &[(&str, &[&str])] = &[
    ("apk", &["add", "del", "upgrade"]),
    ("apt", &["full-upgrade", "install", "remove", "update", "upgrade"]),
    ("apt-get", &["build-dep", "dist-upgrade", "install", "remove", "update", "upgrade"]),
    ("aptitude", &["install", "remove", "update"]),
    ("dnf", &["install", "remove", "update", "upgrade"]),
    ("dpkg", &["-i", "--install", "-r", "--remove"]),
    ("pacman", &["-S", "-Sy", "-Syu", "-U", "-R"]),
    ("rpm", &["-i", "-U", "-e", "--install", "--upgrade", "--erase"]),
    ("snap", &["install", "remove"]),
    ("yum", &["install", "remove", "update"]),
    ("zypper", &["in", "install", "remove", "update"]),
];

/// The status of git for a fatal error, and for a configuration that it cannot write.
const FATAL: i32 = 128;
const NOT_WRITTEN: i32 = 4;

/// What hints of one command are made from.
#[derive(Clone, Debug)]
pub(crate) struct HintSource {
    pub(crate) judge: Judge,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

impl HintSource {
    /// The hints for an end, the surest first.
    /// `registries` are those whose downloads are gone with the sandbox.
    pub(crate) fn hints(&self, outcome: &Outcome, registries: &[String]) -> Vec<Note> {
        let mut hints: Vec<Note> = self.of_limit(outcome).into_iter().collect();
        hints.extend(of_network_failures(outcome));
        let lines = typed(&self.program, &self.arguments);
        if let Some(code) = failed(outcome) {
            for line in &lines {
                hints.extend(self.of_network(line));
                hints.extend(self.of_paths(line));
                hints.extend(self.of_directory(line));
                hints.extend(self.of_git(line, code));
                hints.extend(of_packages(line));
            }
        }
        hints.extend(of_background(&lines, outcome));
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
    pub(crate) fn add_of_errors(&self, outcome: &mut Outcome, errors: impl FnOnce() -> Vec<Denial>) {
        if failed(outcome).is_none() {
            return;
        }
        let Judge { explainer, directory, .. } = &self.judge;
        let typed = typed(&self.program, &self.arguments);
        let words = typed.iter().flat_map(|line| line.words.iter().chain(&line.outputs));
        let paths = words.flat_map(|word| paths(word, &explainer.policy.home));
        let mut subjects: HashSet<String> =
            paths.map(|path| shown(&lexical::clean(directory.join(path)))).collect();
        subjects.extend(outcome.hints.iter().map(|hint| hint.subject.clone()));
        for Denial { subject, reason, remedy, .. } in errors() {
            let Some(remedy) = remedy.filter(|_| !explainer.is_secret(Path::new(&subject))) else { continue };
            let is_told = |hint: &Note| hint.remedy.iter().any(|told| told.names(remedy.settings()));
            if !outcome.hints.iter().any(is_told) && subjects.insert(subject.clone()) {
                outcome.hints.push(Note::new(&subject, &reason, Some(remedy)));
            }
        }
    }

    fn of_limit(&self, outcome: &Outcome) -> Option<Note> {
        let setting = outcome.limit?.setting()?;
        let value = outcome.configured.as_deref().unwrap_or("reached");
        Some(Note::new(
            outcome.limit?.words(),
            &format!("the limit is {value}"),
            Some(remedy![setting, " raises it"]),
        ))
    }

    fn of_network(&self, line: &Typed) -> Option<Note> {
        let explainer = &self.judge.explainer;
        let (host, port) = line.arguments().find_map(destination)?;
        let with = |rule: String| {
            let other_profile = || vec![SettingKey::Profile.to("repo-write")];
            let mut settings = explainer.policy.proxy_settings.clone().unwrap_or_else(other_profile);
            settings.push(SettingKey::Allow.to(rule));
            settings
        };
        let host_alone = with(format!("{host}:{port}"));
        let preset = Host::parse(host).ok().and_then(|host| preset::of_host(&host, Some(port)));
        let remedy = match preset.map(Preset::word) {
            Some(preset) => remedy![with(preset), " allows it, or ", host_alone, " that one host"],
            None => remedy![host_alone, " allows it"],
        };
        (explainer.policy.network == NetworkMode::None)
            .then(|| Note::new(host, "the sandbox has no network", Some(remedy)))
    }

    fn of_paths(&self, line: &Typed) -> Vec<Note> {
        let Judge { explainer, directory, .. } = &self.judge;
        let hint = |word: &str, used| {
            let paths = paths(word, &explainer.policy.home);
            paths.iter().find_map(|path| explainer.hint(&directory.join(path), used))
        };
        let outputs = line.outputs.iter().filter_map(|word| hint(word, Use::Write));
        let last = line.arguments().rev().find(|word| !word.starts_with('-'));
        let program = line.program();
        let used = |word: &str| match program {
            _ if REPLACERS.contains(&program) => Use::Replace,
            _ if WRITERS.contains(&program) => Use::Write,
            _ if COPIERS.contains(&program) && Some(word) == last => Use::Write,
            _ => Use::Read,
        };
        // The program itself was found.
        let arguments = line.arguments().filter_map(|word| hint(word, used(word)));
        outputs.chain(arguments).collect()
    }

    fn of_directory(&self, line: &Typed) -> Option<Note> {
        let (_, markers) = MARKERS.iter().find(|(programs, _)| programs.contains(&line.program()))?;
        self.judge.explainer.hint_of_directory(&self.judge.directory, markers)
    }

    fn of_git(&self, line: &Typed, code: i32) -> Option<Note> {
        let (command, words) = git_command(line)?;
        let explainer = &self.judge.explainer;
        if code == FATAL && COMMITTING.contains(&command) {
            return explainer.hint_of_identity();
        }
        let (_, one_of) = CONFIGURING.iter().find(|(name, _)| *name == command)?;
        let writes = one_of.is_empty() || words.clone().any(|word| one_of.contains(&word));
        let is_refused = code == FATAL || code == if command == "config" { NOT_WRITTEN } else { 1 };
        (writes && is_refused).then(|| explainer.hint_of_git_settings(Path::new(&self.judge.directory)))?
    }
}

/// What the proxy could not reach, if the command did not succeed.
pub(crate) fn of_network_failures(outcome: &Outcome) -> Vec<Note> {
    let failures = outcome.network_failures.iter().filter(|_| !outcome.status.success());
    failures.map(NetworkFailure::note).collect()
}

/// The status of a command that failed by itself. From 129 on, a shell says that a signal ended its child.
fn failed(outcome: &Outcome) -> Option<i32> {
    outcome.status.code().filter(|code| (1..=FATAL).contains(code))
}

/// The command of git, and the words after it.
fn git_command(line: &Typed) -> Option<(&str, impl Iterator<Item = &str> + Clone)> {
    let mut words = line.arguments();
    if line.program() != "git" {
        return None;
    }
    loop {
        match words.next()? {
            "-C" | "-c" => drop(words.next()),
            word if word.starts_with('-') => {}
            word => return Some((word, words)),
        }
    }
}

/// The caller wanted to install packages of the system, which no setting makes possible.
fn of_packages(line: &Typed) -> Option<Note> {
    let program = line
        .words
        .iter()
        .map(String::as_str)
        .find(|word| !["sudo", "env", "-E"].contains(word) && !word.contains('='))?;
    let program = program.rsplit('/').next().unwrap_or(program);
    let (name, words) = INSTALLERS.iter().find(|(name, _)| *name == program)?;
    let remedy = "install it outside of the sandbox, which then shows it; inside, install packages of a language in the workspace (a venv of \
                  Python, npm, cargo), or unpack a package there (dpkg -x FILE DIR)";
    line.arguments()
        .any(|word| words.contains(&word))
        .then(|| Note::new(name, "the sandbox cannot change the system", Some(remedy.into())))
}

/// What package managers downloaded into their caches is gone.
fn of_caches(registries: &[String]) -> Option<Note> {
    let text = format!("what it downloaded from {} is gone with the sandbox", registries.join(", "));
    (!registries.is_empty()).then(|| {
        Note::new("caches", &text, Some(remedy![SettingKey::Caches.to("keep"), " keeps it for the next one"]))
    })
}

/// The caller wanted to leave processes behind, and Kennel ended them with the command.
fn of_background(lines: &[Typed], outcome: &Outcome) -> Option<Note> {
    let count = outcome.usage.killed;
    let leaves = |line: &Typed| {
        line.is_background
            || ["nohup", "setsid", "daemonize"].contains(&line.program())
            || line.arguments().any(|word| LEAVING.contains(&word))
    };
    let is_over = outcome.ended == Ended::Exited && outcome.status.signal().is_none();
    if count == 0 || !is_over || !lines.iter().any(leaves) {
        return None;
    }
    let processes = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
    let text = format!("{processes} that the command left running ended with it");
    let exec = SettingKey::Exec.to("NAME -- SERVER &");
    let remedy = remedy!["a server of a session is a command of its own: ", exec];
    Some(Note::new("background", &text, Some(remedy)))
}
