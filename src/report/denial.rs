//! Denials: what the sandbox refused, and the texts for people about it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::report::enforcement::Protection;
use crate::report::escape::is_harmless;

/// Something that the sandbox blocked or moved aside, or kept for you to check ([`Basis::Kept`]).
///
/// Connections and protected paths are always reported, the rest only with [`Policy::explain`], which reads the
/// command's output and finds only what it says in English.
///
/// [`Policy::explain`]: crate::policy::Policy::explain
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// The protection that refused it.
    pub protection: Protection,
    /// What was refused: a path, a destination, a system call. One line, without control characters.
    pub subject: String,
    /// Why, and what Kennel did about it.
    pub reason: String,
    /// How Kennel knows.
    pub basis: Basis,
    /// The flag of `kennel run` that would allow it, if there is one. `reason` contains it, too. Unknown parts are in
    /// capitals: `--allow HOST:PORT`.
    pub remedy: Option<String>,
}

/// How Kennel knows that something was refused.
///
/// ```
/// use kennel::Basis;
///
/// assert!(Basis::Observed.is_certain() && Basis::Derived.is_certain() && !Basis::Possible.is_certain());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// Kennel refused it, or the kernel reported it.
    Observed,
    /// The command's output names it with an error, and under this policy no other result is possible. Kennel knows only
    /// from the output that the command tried.
    Derived,
    /// The command's output names it with an error that this policy causes there. Something else may have caused it too.
    Possible,
    /// Nothing was refused: the command created something at a protected path, and Kennel kept it because its directory is
    /// new, too.
    Kept,
}

impl Basis {
    /// Whether it is certain that the sandbox refused it.
    #[must_use]
    pub fn is_certain(self) -> bool {
        matches!(self, Self::Observed | Self::Derived)
    }
}

// Texts of a denial.

/// Longest subject of a denial, in characters.
pub(crate) const LONGEST: usize = 300;

/// A reason, followed by the flag that would change it.
pub(crate) fn advice(reason: String, flag: Option<&str>, would: &str) -> String {
    match flag {
        Some(flag) => format!("{reason}; {flag} {would}"),
        None => reason,
    }
}

/// A path for people: one line, with unsafe characters replaced by `?`, and in quotes if its end would not be clear.
pub(crate) fn shown(path: &Path) -> String {
    let text = clean(&path.to_string_lossy());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "?")) }
}

/// A command's text for people: unsafe characters replaced by `?`, and cut to [`LONGEST`].
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if is_harmless(c) { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

// The limits that can end a command.

/// The limit that ended a command. Each variant tells how Kennel knows. A command that succeeded hit no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::memory`](crate::policy::limits::Limits::memory): the command's cgroup reported it. Without a cgroup, only
    /// the program sees that memory ran out.
    Memory,
    /// [`Limits::pids`](crate::policy::limits::Limits::pids): the command's cgroup reported it.
    Pids,
    /// [`Limits::timeout`](crate::policy::limits::Limits::timeout): Kennel killed it.
    WallTime,
    /// [`Limits::cpu_time`](crate::policy::limits::Limits::cpu_time), if the policy sets it: SIGXCPU ended the command, or
    /// SIGKILL one second later if the command ignores SIGXCPU. The status with which a shell reports such a child (152
    /// or 137) counts too.
    CpuTime,
    /// [`Limits::output`](crate::policy::limits::Limits::output): Kennel killed the command, as
    /// [`output_ends`](crate::policy::limits::Limits::output_ends) demands. Without that, excess output is only cut.
    Output,
    /// [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size) or
    /// [`tmp_inodes`](crate::policy::limits::Limits::tmp_inodes): a private place or a tmpfs of the policy was full when the
    /// command failed.
    Tmpfs,
    /// [`Limits::file_size`](crate::policy::limits::Limits::file_size), if the policy sets it: SIGXFSZ ended the command, or
    /// a child of a shell (153). If the program ignores that signal, only the program sees that the file is too large.
    FileSize,
    /// [`Limits::open_files`](crate::policy::limits::Limits::open_files). Kennel does not report this limit, because only the
    /// program sees it; [`Policy::explain`](crate::policy::Policy::explain) finds it in the program's output.
    OpenFiles,
}

impl Limit {
    /// Its name for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "processes",
            Self::WallTime => "wall time",
            Self::CpuTime => "processor time",
            Self::Output => "output",
            Self::Tmpfs => "private file systems",
            Self::FileSize => "size of a file",
            Self::OpenFiles => "open files",
        }
    }
}
