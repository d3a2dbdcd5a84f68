//! Tests what this host can enforce: starts real sandboxes, in which a program tries what must fail.
//!
//! `trials`, `host` and the stage of `attempt` touch the machine; `judge` and `facts` turn the answers into
//! findings.

pub(crate) mod attempt;
pub(crate) mod facts;
pub(crate) mod host;
pub(crate) mod judge;
#[cfg(test)]
mod tests;
pub(crate) mod trials;

pub use crate::host::{Host, Version};
pub use crate::report::finding::{Area, Finding, Found, Verdict};

use serde::Serialize;

use crate::policy::Policy;
use crate::policy::profile::{OnUnavailable, Profile};
use crate::probe::attempt::Stage;
use crate::probe::trials::Trials;
use crate::report::error::Error;
use crate::report::remedy::Wording;

/// What a host can enforce under a profile, tested.
///
/// ```
/// use kennel::{Profile, probe::{Probe, Verdict}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), kennel::Error> {
/// let probe = Probe::run(Profile::RepoWrite).await?;
/// if probe.verdict != Verdict::FullyEnforced {
///     for finding in probe.negatives() {
///         eprintln!("{} {}: {:?}", finding.name, finding.detail, finding.remedy);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// The overall result.
    pub verdict: Verdict,
    /// The features that the kernel reports.
    pub host: Host,
    /// All findings: facts about the host, then protections, then attempts.
    pub findings: Vec<Finding>,
}

impl Probe {
    /// The same with each remedy as a text, in the words of a front end.
    #[must_use]
    pub fn worded(mut self, wording: Wording) -> Self {
        for remedy in self.findings.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
            *remedy = remedy.worded(wording);
        }
        self
    }

    /// Tests this host under `profile`, in a temporary workspace. It removes the workspace at the end, also
    /// when the future is dropped early. Takes a few dozen milliseconds.
    ///
    /// A missing protection does not end the test, except under `ci-only`, which requires all of them.
    ///
    /// # Errors
    /// [`Error::Io`] if the probe's own files or sockets cannot be created. A host that can enforce nothing
    /// is no error: see [`Verdict`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(profile: Profile) -> Result<Self, Error> {
        Self::under(Policy::profile(profile, ".")).await
    }

    /// Like [`run`](Self::run), under a whole policy, except its workspace and the paths that depend on it.
    pub(crate) async fn under(mut policy: Policy) -> Result<Self, Error> {
        let stage = Stage::create().map_err(Error::io("create the probe's files and sockets"))?;
        policy.workspace = stage.workspace();
        policy.cwd = None;
        policy.protect.retain(|path| path.is_relative());
        policy.mounts.extend(stage.mounts());
        if !policy.profile.meaning().is_strict {
            policy = policy.on_unavailable(OnUnavailable::Degrade);
        }
        let trials = Trials::run(&policy, &stage).await;
        Ok(judge::judge(&Host::detect(), &trials))
    }

    /// The findings that are degraded or missing.
    pub fn negatives(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| matches!(finding.state, Found::Degraded | Found::Missing))
    }

    /// The finding with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.name == name)
    }
}
