//! Why a context cannot be prepared or a command not be wrapped, and how the harness is told: as words, for it has no
//! other form.

use std::path::PathBuf;

use fluers_runtime::{RuntimeError, SandboxProfile};

use crate::{Error, Probe};

/// Becomes [`RuntimeError::Sandbox`].
#[derive(Debug, thiserror::Error)]
pub(super) enum FluersError {
    #[error("{}", told(.0.chain(), .0.remedy()))]
    Kennel(#[from] Error),
    #[error("{}", told(reason.clone(), remedy.as_deref()))]
    Policy { reason: String, remedy: Option<String> },
    #[error("no directory for sockets: {}", crate::failure::words(.0))]
    Place(#[from] std::io::Error),
    #[error("the command is empty")]
    NoCommand,
    #[error(
        "workspace {} with profile {profile:?} and this egress list: {}",
        workspace.display(),
        if *was_shut_down { "the sandbox was shut down" } else { "not prepared" }
    )]
    NotPrepared { workspace: PathBuf, profile: SandboxProfile, was_shut_down: bool },
    #[error("the sandbox was shut down meanwhile")]
    ShutDown,
    #[error("cwd {}: {reason}", path.display())]
    Cwd { path: PathBuf, reason: &'static str },
    #[error("{what} {}: is not UTF-8, and the harness takes nothing else", path.display())]
    NotText { what: &'static str, path: PathBuf },
}

impl FluersError {
    /// For a profile that runs with all or not at all.
    pub(super) fn not_in_full(probe: &Probe) -> Self {
        let mut missing = probe.negatives().filter(|finding| finding.needed).peekable();
        let remedy = missing.peek().and_then(|finding| finding.remedy.clone());
        let missing: Vec<_> =
            missing.map(|finding| format!("{} ({})", finding.name, finding.detail)).collect();
        let reason = format!("profile ci-only runs only with everything enforced: {}", missing.join(", "));
        Self::Policy { reason, remedy }
    }
}

impl From<FluersError> for RuntimeError {
    fn from(error: FluersError) -> Self {
        Self::Sandbox(format!("kennel: {error}"))
    }
}

fn told(reason: String, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{reason}; hint: {remedy}"),
        None => reason,
    }
}
