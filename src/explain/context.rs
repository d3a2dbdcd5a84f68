//! Explains after a failure which wall refused what to one command.
//!
//! The sources are facts: what the supervisor has seen the command try ([`FailedUses`]), the limit that ended
//! it, and the policy. Nothing that a command writes counts here.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use crate::explain::unread::Unread;
use crate::explain::{Attempt, Explainer};
use crate::launch::restrict::Restriction;
use crate::launch::supervisor::failed_uses::{FailedUse, FailedUses, Miss};
use crate::policy::limits::Limits;
use crate::policy::network::NetworkMode;
use crate::policy::path::without_dots;
use crate::report::denial::{Basis, Denial, WOULD_ALLOW};
use crate::report::enforcement::Protection;
use crate::report::failure::Limit;
use crate::report::remedy::{Setting, SettingKey, remedy};
use crate::view::node::TmpfsSize;

/// Most denials of paths for one command: the last ones.
const MOST: usize = 16;

/// How many of them may be about hidden paths, and how many of those may be about paths that nobody typed.
const MOST_HIDDEN: usize = 8;
const MOST_GUESSES: usize = 3;

/// How many uses of a kind are explained. Some have no reason, or the same, and a command can make each slow.
pub(super) const MOST_LOOKS: usize = 32;

/// How many words of a command line are read.
const MOST_WORDS: usize = 256;

/// Where programs look for files of the system. Of what is not there, only what was typed is told.
const SYSTEM: &[&str] = &[
    "/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var",
];

/// What errors of one command are explained with.
#[derive(Clone, Debug)]
pub(crate) struct ExplainContext {
    pub(crate) explainer: Explainer,
    /// Its working directory.
    pub(crate) directory: PathBuf,
    /// All limits of the command.
    pub(crate) limits: Limits,
    pub(crate) restrictions: Vec<Restriction>,
    /// What the caller typed: the program and its arguments, or what a shell was given.
    pub(crate) words: Vec<String>,
    /// What was typed and is there, but read-only. `None` without hints, or if there is no such path.
    pub(crate) unread: Option<Arc<Unread>>,
}

/// What the caller typed, as far as it is text.
pub(crate) fn words<'w>(words: impl Iterator<Item = &'w OsStr>) -> Vec<String> {
    words.take(MOST_WORDS).filter_map(OsStr::to_str).map(str::to_owned).collect()
}

/// A path in what somebody typed or wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    /// Absolute, without `.` and `..`.
    pub(crate) path: PathBuf,
    /// Whether `>` is before it.
    pub(crate) is_output: bool,
}

impl ExplainContext {
    /// The paths in a text: `PATH`, `--flag=PATH`, `-IPATH`, `@PATH`, `PATH:PATH`, quoted or not. Only what
    /// has a slash in it counts.
    pub(crate) fn paths_in(&self, text: &str) -> Vec<NamedPath> {
        let ends = |c: char| c.is_whitespace() || "'\"`\u{2018}\u{2019};|&<>()=:,@{}$*?[]".contains(c);
        let mut at = 0;
        let named = |piece: &str| {
            let before = text.get(..at)?;
            at += piece.len();
            let word = piece.trim_end_matches(ends);
            let begin = if word.starts_with('-') { word.find(['/', '.'])? } else { 0 };
            let path = word.get(begin..).filter(|path| path.contains('/') && !path.starts_with("//"))?;
            let path = match path.strip_prefix("~/") {
                Some(rest) => self.explainer.policy.home.join(rest),
                None => self.directory.join(path),
            };
            let is_output = before.trim_end_matches([' ', '"', '\'']).ends_with('>');
            Some(NamedPath { path: without_dots(&path), is_output })
        };
        text.split_inclusive(ends).filter_map(named).collect()
    }

    /// The paths that were typed.
    pub(crate) fn typed_paths(&self) -> Vec<NamedPath> {
        self.words.iter().flat_map(|word| self.paths_in(word)).collect()
    }

    /// The same context for what the caller types now. `watches`: with hints for paths that are read-only.
    pub(crate) fn typed(self, words: Vec<String>, watches: bool) -> Self {
        let mut context = Self { words, unread: None, ..self };
        if watches {
            context.unread = Unread::watch(context.unchangeable()).map(Arc::new);
        }
        context
    }

    /// The typed paths that the command may have wanted to change in vain, each with its path outside. A
    /// directory counts only at the end, as in `cp FILE DIRECTORY`: others are mostly entered, or read below.
    fn unchangeable(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        let end = self.words.last().and_then(|word| word.split_whitespace().next_back()).unwrap_or_default();
        let last = self.paths_in(end).pop().map(|named| named.path);
        let typed = self.typed_paths().into_iter().map(|named| named.path);
        typed.filter_map(move |path| {
            self.explainer.hint_of_change(&path)?;
            let outside = self.explainer.view.host_path(&path)?;
            (Some(&path) == last.as_ref() || !outside.is_dir()).then_some((path, outside))
        })
    }

    /// The attempts that the sandbox made fail.
    pub(crate) fn denials(&self, uses: &FailedUses) -> Vec<Denial> {
        let written = uses.writes.iter().skip(uses.writes.len().saturating_sub(MOST_LOOKS));
        let written = written.filter_map(|failed| Some((failed.order, self.denial(&failed.path, failed)?)));
        let mut denials: Vec<(u64, Denial)> = written.chain(self.hidden(uses)).collect();
        denials.sort_by_key(|(order, _)| *order);
        let mut denials = once_each(denials.into_iter().map(|(_, denial)| denial));
        denials.drain(..denials.len().saturating_sub(MOST));
        let addresses = uses.addresses.iter().filter_map(|address| self.network_denial(address));
        denials.extend(once_each(addresses));
        denials
    }

    fn denial(&self, path: &Path, failed: &FailedUse) -> Option<Denial> {
        let attempt = Attempt { errno: failed.errno, writes: failed.writes };
        self.explainer.explain(path, attempt, &self.restrictions)
    }

    /// Paths that the sandbox does not show. Programs look for many files that are nowhere, so this tells
    /// what was typed, and of the rest only the last ones that look as if somebody meant them.
    fn hidden(&self, uses: &FailedUses) -> Vec<(u64, Denial)> {
        let typed = self.typed_paths();
        let is_typed = |path: &Path| path != Path::new("/") && typed.iter().any(|named| named.path == path);
        let mut looks = 0..MOST_LOOKS;
        let (mut named, mut guesses): (Vec<(u64, Denial)>, Vec<&FailedUse>) = (Vec::new(), Vec::new());
        for Miss { failed: missed, was_wanted, is_found } in uses.misses.iter().rev() {
            let path = without_dots(&missed.path);
            let mut typed = path.ancestors().filter(|above| is_typed(above));
            // What is to be made needs its own directory, and not one above.
            let subject = |above| {
                looks.next()?;
                self.denial(if missed.writes { &path } else { above }, missed)
            };
            match typed.find_map(subject) {
                Some(denial) if named.iter().any(|(_, other)| other.subject == denial.subject) => {}
                Some(denial) => named.push((missed.order, denial)),
                // Where a search goes on, the last directory counts.
                None if *was_wanted
                    && !is_found
                    && self.is_meant(&path)
                    && guesses.iter().all(|later| later.path.file_name() != missed.path.file_name()) =>
                {
                    guesses.push(missed);
                }
                None => {}
            }
        }
        let guesses = guesses.into_iter().take(MOST_LOOKS);
        let guesses = guesses.filter_map(|missed| Some((missed.order, self.denial(&missed.path, missed)?)));
        let mut last: Vec<_> = guesses.take(MOST_GUESSES).chain(named).take(MOST_HIDDEN).collect();
        last.reverse();
        last
    }

    /// Whether a path that is not there looks as if somebody meant it: it is no file of the system, no
    /// configuration that programs look for by themselves, and none in the directories above, where they
    /// search for the top of a project.
    fn is_meant(&self, path: &Path) -> bool {
        let is_configuration = path.iter().any(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_above = path.parent().is_some_and(|parent| self.directory.starts_with(parent));
        let is_system = SYSTEM.iter().any(|system| path.starts_with(system));
        !is_configuration && !is_above && !is_system && !self.explainer.is_own(path, &self.directory)
    }

    /// The denial for a connection that the policy makes fail. The proxy itself reports what it refuses.
    fn network_denial(&self, address: &SocketAddr) -> Option<Denial> {
        let policy = &self.explainer.policy;
        let (port, is_lookup) = (address.port(), address.port() == NAME_SERVER);
        let is_beyond = !address.ip().is_loopback() && !address.ip().is_unspecified();
        match policy.network {
            NetworkMode::None if is_beyond || is_lookup => Some(no_network(&self.explainer)),
            // A program that connects to an address and asks no proxy.
            NetworkMode::Proxy if policy.only_refuses && is_beyond => Some(no_network(&self.explainer)),
            // Landlock restricts TCP only, and names are looked up by UDP.
            NetworkMode::Host if !is_lookup && port != 0 => {
                let allowed = policy.ports.as_ref().filter(|ports| !ports.contains(&port))?;
                let allowed: Vec<String> = allowed.iter().map(u16::to_string).collect();
                let allow = SettingKey::Allow.to(format!("*:{port}"));
                let reason = format!("TCP connections are allowed to port {} only", allowed.join(", "));
                let denial =
                    Denial::new(Protection::LandlockNetwork, format!("port {port}"), reason, Basis::Derived);
                Some(Denial { remedy: Some(remedy![allow, WOULD_ALLOW]), ..denial })
            }
            _ => None,
        }
    }

    /// A denial for the limit that seems to have ended the command. `is_full` tells which private file system
    /// was full at its end.
    pub(crate) fn limit_denial(&self, limit: Limit, is_full: impl Fn(&TmpfsSize) -> bool) -> Option<Denial> {
        if limit != Limit::Tmpfs {
            return denial_for_limit(&self.limits, limit);
        }
        let path = self.explainer.full_place(is_full)?;
        self.denial(path, &FailedUse { order: 0, path: path.to_owned(), errno: Errno::ENOSPC, writes: true })
    }
}

/// One denial for each subject: the surest.
fn once_each(all: impl Iterator<Item = Denial>) -> Vec<Denial> {
    let mut denials: Vec<Denial> = Vec::new();
    for denial in all {
        let same =
            |other: &&mut Denial| (&other.subject, other.protection) == (&denial.subject, denial.protection);
        match denials.iter_mut().find(same) {
            Some(known) if !known.basis.is_certain() && denial.basis.is_certain() => *known = denial,
            Some(_) => {}
            None => denials.push(denial),
        }
    }
    denials
}

/// The port of name servers.
const NAME_SERVER: u16 = 53;

/// Stands for the destination.
const ANYWHERE: &str = "HOST:PORT";

/// The limit that causes `errno`, if the command has it. Only a possible cause: limits of the host, or limits
/// that the command sets itself, cause the same error.
pub(crate) fn denial_for_errno(limits: &Limits, errno: Errno) -> Option<Denial> {
    let limit = match errno {
        Errno::EMFILE => Limit::OpenFiles,
        Errno::ENOMEM => Limit::Memory,
        Errno::EAGAIN => Limit::Pids,
        _ => return None,
    };
    denial_for_limit(limits, limit)
}

/// A denial for the limit that seems to have ended a command. Only a possible cause: the command may have
/// sent itself the signal of the limit. Wall time and output are not protections;
/// [`Outcome`](crate::report::outcome::Outcome) reports them.
pub(crate) fn denial_for_limit(limits: &Limits, limit: Limit) -> Option<Denial> {
    let (protection, value) = match limit {
        Limit::Memory => (Protection::Memory, limits.memory?.to_string()),
        Limit::Pids => (Protection::Pids, limits.pids?.to_string()),
        Limit::CpuTime => (Protection::CpuTime, limits.cpu_time?.to_string()),
        Limit::FileSize => (Protection::FileSize, limits.file_size?.to_string()),
        Limit::OpenFiles => (Protection::OpenFiles, limits.open_files?.to_string()),
        Limit::WallTime | Limit::Output | Limit::Tmpfs => return None,
    };
    Some(limit_denial(protection, &value, limit.setting()))
}

fn limit_denial(protection: Protection, value: &str, setting: Option<Setting>) -> Denial {
    let reason = match protection {
        Protection::FileSize | Protection::OpenFiles => {
            format!("the limit is {value}, {protection} in [limits] of a policy file")
        }
        _ => format!("the limit is {value}"),
    };
    let subject = protection.as_str().replace('_', " ");
    let remedy = setting.map(|setting| remedy![setting, " would raise it"]);
    Denial { remedy, ..Denial::new(protection, subject, reason, Basis::Possible) }
}

pub(crate) fn no_network(explainer: &Explainer) -> Denial {
    let allow = |mut settings: Vec<Setting>| {
        settings.push(SettingKey::Allow.to(ANYWHERE));
        remedy![settings, WOULD_ALLOW]
    };
    let policy = &explainer.policy;
    let reason = if policy.only_refuses { "no rule allows it" } else { "the sandbox has no network" };
    let denial =
        Denial::new(Protection::NetworkNamespace, "network".to_owned(), reason.to_owned(), Basis::Derived);
    Denial { remedy: policy.proxy_settings.clone().map(allow), ..denial }
}
