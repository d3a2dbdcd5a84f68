//! Which wall refused what, after a command failed: from what the filter of system calls was asked about (`refused`),
//! and from what the command said on stderr (`text`), judged by the policy. What it says is taken for a hint where to
//! look, never for a fact: whatever is told of a path is true under the policy, whoever made the command say so.

pub(crate) mod refused;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use crate::command::explain::text::{Complaint, Named, Trouble};
use crate::plan::explain::Explainer;
use crate::plan::restrict::Restriction;
use crate::policy::limits::Limits;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::Protection;
use crate::report::outcome::{Basis, Denial, Limit};
use crate::report::subject::advice;

/// More denials than that are not made of what one command says.
const MOST: usize = 16;

/// What explains the errors of one command.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) explainer: Arc<Explainer>,
    /// Where it started.
    pub(crate) directory: PathBuf,
    /// All limits that hold for it.
    pub(crate) limits: Limits,
    /// What it goes without.
    pub(crate) narrowed: Vec<Restriction>,
}

impl Judge {
    /// What the errors are about that the end of its stderr has, as far as the sandbox is the reason.
    pub(crate) fn denials(&self, said: &[u8]) -> Vec<Denial> {
        let mut denials: Vec<Denial> = Vec::new();
        for complaint in text::complaints(said) {
            for denial in self.of(&complaint) {
                if denials.len() < MOST && !denials.contains(&denial) {
                    denials.push(denial);
                }
            }
        }
        denials
    }

    fn of(&self, complaint: &Complaint) -> Vec<Denial> {
        match complaint {
            Complaint::File(errno, named) => {
                let of_paths = named.iter().filter_map(|named| self.of_path(named, *errno));
                of_paths.chain(of_error(&self.limits, *errno)).collect()
            }
            Complaint::Network(what) => network_denial(&self.explainer, what).into_iter().collect(),
        }
    }

    fn of_path(&self, named: &Named, errno: Errno) -> Option<Denial> {
        let mut denial = self.explainer.explain(&self.directory.join(&named.path), errno, &self.narrowed)?;
        // A command may have gone to another directory, and lines near each other may have nothing to do with each other.
        if named.path.is_relative() || !named.beside {
            denial.basis = Basis::Possible;
        }
        Some(denial)
    }
}

// Limits that an error may be the doing of: which, its value, the flag that raises it. Pure.

/// The limit that answers `errno`, where the command has it. Others give the same: the host's own, or one that the
/// command has set itself.
pub(crate) fn of_error(limits: &Limits, errno: Errno) -> Option<Denial> {
    let limit = match errno {
        Errno::EFBIG => Limit::FileSize,
        Errno::EMFILE => Limit::OpenFiles,
        Errno::ENOMEM => Limit::Memory,
        Errno::EAGAIN => Limit::Pids,
        _ => return None,
    };
    of_end(limits, limit)
}

/// The limit that a command seems to have ended for: it ended by the limit's signal, which it may also have sent itself.
/// Wall time, output and private places are no protections of their own, and told as such.
pub(crate) fn of_end(limits: &Limits, limit: Limit) -> Option<Denial> {
    let (protection, value, flag) = match limit {
        Limit::Memory => (Protection::Memory, limits.memory?.to_string(), Some("--memory SIZE")),
        Limit::Pids => (Protection::Pids, limits.pids?.to_string(), Some("--pids N")),
        Limit::CpuTime => (Protection::CpuTime, limits.cpu_time?.to_string(), Some("--cpu-time TIME")),
        Limit::FileSize => (Protection::FileSize, limits.file_size?.to_string(), None),
        Limit::OpenFiles => (Protection::OpenFiles, limits.open_files?.to_string(), None),
        Limit::WallTime | Limit::Output | Limit::Tmpfs => return None,
    };
    Some(denial(protection, &value, flag))
}

fn denial(protection: Protection, value: &str, flag: Option<&str>) -> Denial {
    let reason = match protection {
        Protection::FileSize | Protection::OpenFiles => {
            format!("the limit is {value}, {protection} in [limits] of a policy file")
        }
        _ => format!("the limit is {value}"),
    };
    Denial {
        protection,
        subject: protection.as_str().replace('_', " "),
        reason: advice(reason, flag, "would raise it"),
        basis: Basis::Possible,
        remedy: flag.map(str::to_owned),
    }
}

// Errors of the network that follow from the policy. What the proxy refuses it tells itself.

/// Where the command does not say what it wanted to reach.
const ANYWHERE: &str = "HOST:PORT";

/// What the sandbox has to do with it, if anything.
pub(crate) fn network_denial(explainer: &Explainer, what: &Trouble) -> Option<Denial> {
    match (what, explainer.network) {
        (Trouble::Unreachable, NetworkMode::None) => {
            Some(no_network(explainer, "network".to_owned(), ANYWHERE))
        }
        (Trouble::Name(name), NetworkMode::None) => {
            let subject = name.clone().unwrap_or_else(|| "network".to_owned());
            // The port is not said; most that asks for a name speaks HTTPS.
            let to = name.as_ref().map_or_else(|| ANYWHERE.to_owned(), |name| format!("{name}:443"));
            Some(no_network(explainer, subject, &to))
        }
        (Trouble::Port(port), NetworkMode::Host) => {
            let allowed = explainer.ports.as_ref().filter(|ports| !ports.contains(port))?;
            let allowed: Vec<String> = allowed.iter().map(u16::to_string).collect();
            let flag = format!("--allow '*:{port}'");
            let reason = format!("TCP connections are allowed to port {} only", allowed.join(", "));
            Some(Denial {
                protection: Protection::LandlockNetwork,
                subject: format!("port {port}"),
                reason: advice(reason, Some(&flag), "would allow it"),
                basis: Basis::Derived,
                remedy: Some(flag),
            })
        }
        _ => None,
    }
}

fn no_network(explainer: &Explainer, subject: String, to: &str) -> Denial {
    let flag = explainer.proxy_flags.map(|flags| format!("{flags} {to}"));
    Denial {
        protection: Protection::NetworkNamespace,
        subject,
        reason: advice("the sandbox has no network".to_owned(), flag.as_deref(), "would allow it"),
        basis: Basis::Derived,
        remedy: flag,
    }
}
