//! Explains after a failure which wall refused what. The sources are the seccomp filter (`refused`) and the
//! error messages on stderr (`text`).
//!
//! A message is only a hint where to look. The policy decides: what a denial says about a path is true, even
//! if the command was made to print a false message.

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::explain::context::text::{Complaint, FileTrouble, Named, Trouble};
use crate::explain::{Attempt, Explainer};
use crate::plan::restrict::Restriction;
use crate::policy::destination::Host;
use crate::policy::limits::Limits;
use crate::policy::network::NetworkMode;
use crate::policy::preset::{self, Preset};
use crate::report::denial::{Basis, Denial, WOULD_ALLOW};
use crate::report::enforcement::Protection;
use crate::report::failure::Limit;
use crate::report::remedy::{Setting, SettingKey, remedy};

/// Most denials from the messages of one command.
const MOST: usize = 16;

/// Explains the errors of one command.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) explainer: Explainer,
    /// Its working directory.
    pub(crate) directory: PathBuf,
    /// All limits of the command.
    pub(crate) limits: Limits,
    pub(crate) restrictions: Vec<Restriction>,
    /// Whether to name what a symbolic link leads to. A command may have made the link, so only who asks is
    /// told.
    pub(crate) follows_links: bool,
}

impl Judge {
    /// The errors in `stderr` that the sandbox caused.
    pub(crate) fn denials(&self, stderr: &[u8]) -> Vec<Denial> {
        let mut denials: Vec<Denial> = Vec::new();
        for denial in text::complaints(stderr).iter().flat_map(|complaint| self.denials_for(complaint)) {
            let same = |other: &&mut Denial| {
                (&other.subject, other.protection) == (&denial.subject, denial.protection)
            };
            match denials.iter_mut().find(same) {
                // One line for each subject: the surest.
                Some(known) if !known.basis.is_certain() && denial.basis.is_certain() => *known = denial,
                Some(_) => {}
                None => denials.push(denial),
            }
            if denials.len() == MOST {
                break;
            }
        }
        denials
    }

    fn denials_for(&self, complaint: &Complaint) -> Vec<Denial> {
        match complaint {
            Complaint::File(trouble) => {
                let mut denials = Vec::new();
                let mut is_explained = false;
                for named in &trouble.named {
                    // Another reading of the same words.
                    if !(named.is_alternative && is_explained) {
                        let denial = self.denial_for_path(named, trouble);
                        is_explained = denial.is_some();
                        denials.extend(denial);
                    }
                }
                denials.extend(denial_for_errno(&self.limits, trouble.errno));
                denials
            }
            Complaint::Network(trouble) => network_denial(&self.explainer, trouble).into_iter().collect(),
        }
    }

    fn denial_for_path(&self, named: &Named, trouble: &FileTrouble) -> Option<Denial> {
        let attempt = Attempt { errno: trouble.errno, writes: trouble.writes };
        // In a subdirectory, git names its files from the top of the work tree.
        let is_of_git = named.path.starts_with(".git") && trouble.errno != Errno::ENOENT;
        let is_start = |start: &&Path| {
            **start == *self.directory || is_of_git && self.explainer.shows(&start.join(".git"))
        };
        let starts = self.directory.ancestors().filter(is_start);
        let explain = |start: &Path| {
            let path = start.join(&named.path);
            let is_told = self.follows_links || self.explainer.is_direct(&path);
            is_told.then(|| self.explainer.explain(&path, attempt, &self.restrictions))?
        };
        let mut denial = starts.map(explain).find_map(|denial| denial)?;
        // The command may have changed its directory, and neighbouring lines may be about different things.
        if named.path.is_relative() || !named.is_same_line {
            denial.basis = Basis::Possible;
        }
        Some(denial)
    }
}

// Limits: which limit may have caused an error, its value, and the setting that raises it.

/// The limit that causes `errno`, if the command has it. Only a possible cause: limits of the host, or limits
/// that the command sets itself, cause the same error.
fn denial_for_errno(limits: &Limits, errno: Errno) -> Option<Denial> {
    let limit = match errno {
        Errno::EFBIG => Limit::FileSize,
        Errno::EMFILE => Limit::OpenFiles,
        Errno::ENOMEM => Limit::Memory,
        Errno::EAGAIN => Limit::Pids,
        _ => return None,
    };
    denial_for_limit(limits, limit)
}

/// A denial for the limit that seems to have ended a command. Only a possible cause: the command may have
/// sent itself the signal of the limit. Wall time, output and tmpfs size are not protections;
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

// Network errors that follow from the policy. The proxy itself reports what it refuses.

/// Stands for the destination if the message names none.
const ANYWHERE: &str = "HOST:PORT";

/// The denial for a network error, if the sandbox caused it.
fn network_denial(explainer: &Explainer, trouble: &Trouble) -> Option<Denial> {
    match (trouble, explainer.policy.network) {
        (Trouble::Unreachable, NetworkMode::None) => {
            Some(no_network(explainer, "network".to_owned(), ANYWHERE))
        }
        // A program that connects to an address and asks no proxy.
        (Trouble::Unreachable, NetworkMode::Proxy) if explainer.policy.only_refuses => {
            Some(no_network(explainer, "network".to_owned(), ANYWHERE))
        }
        (Trouble::Name(name), NetworkMode::None) => {
            let subject = name.clone().unwrap_or_else(|| "network".to_owned());
            // The message names no port.
            let to = name.as_ref().map_or_else(|| ANYWHERE.to_owned(), |name| format!("{name}:PORT"));
            Some(no_network(explainer, subject, &to))
        }
        (Trouble::Port(port), NetworkMode::Host) => {
            let allowed = explainer.policy.ports.as_ref().filter(|ports| !ports.contains(port))?;
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

fn no_network(explainer: &Explainer, subject: String, to: &str) -> Denial {
    let allow = |mut settings: Vec<Setting>| {
        settings.push(SettingKey::Allow.to(to));
        remedy![settings, WOULD_ALLOW]
    };
    let reason =
        if explainer.policy.only_refuses { "no rule allows it" } else { "the sandbox has no network" };
    let host = Host::parse(&subject).ok();
    let preset = host.and_then(|host| preset::of_host(&host, None)).map(Preset::word);
    Denial {
        remedy: explainer.policy.proxy_settings.clone().map(allow),
        preset,
        ..Denial::new(Protection::NetworkNamespace, subject, reason.to_owned(), Basis::Derived)
    }
}
