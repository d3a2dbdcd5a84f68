//! What this host can enforce, found out by doing it: real sandboxes start, and a program in them tries what must
//! not succeed. Only `trials` and `host` touch the machine; `judge` makes the findings of it and is pure.

pub(crate) mod attempt;
pub(crate) mod facts;
pub(crate) mod host;
pub(crate) mod judge;
#[cfg(test)]
mod tests;
pub(crate) mod trials;

use std::fmt;

use serde::Serialize;

use crate::host::Host;
use crate::policy::Policy;
use crate::policy::profile::{OnUnavailable, Profile};
use crate::probe::attempt::Stage;
use crate::probe::trials::Trials;
use crate::report::error::Error;

/// What a host can enforce under a profile, tested.
///
/// ```
/// use kennel::{Probe, Profile, Verdict};
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
    /// What it comes to.
    pub verdict: Verdict,
    /// What the kernel says of itself.
    pub host: Host,
    /// What was found, one by one: the host's facts, then protections, then attempts.
    pub findings: Vec<Finding>,
}

/// What a probe comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every protection that the profile asks for is in force, and every attempt ended as it must.
    FullyEnforced,
    /// Sandboxes start, but something is missing or was not stopped. With
    /// [`OnUnavailable::Refuse`](crate::policy::profile::OnUnavailable) and a required protection missing, commands do not run.
    Partial,
    /// No sandbox starts under this profile.
    Unavailable,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of thing it is.
    pub area: Area,
    /// Its name, in snake case; that of a [`Protection`](crate::report::enforcement::Protection) where it is one.
    pub name: &'static str,
    /// How it stands.
    pub state: Found,
    /// Whether the verdict rests on it. The rest is good to know.
    pub needed: bool,
    /// What was seen.
    pub detail: String,
    /// What a person can do about it; there whenever the state is degraded or missing.
    pub remedy: Option<String>,
}

/// What kind of thing was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Something that the kernel or its settings offer.
    Host,
    /// A protection, put up for real.
    Protection,
    /// Something that a program in the sandbox tried.
    Attempt,
}

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// As it must be.
    Works,
    /// There, but less than it could be.
    Degraded,
    /// Not there, or not stopped.
    Missing,
    /// Not asked for by the profile, or not reached.
    Untested,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Works => "works",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
            Self::Untested => "untested",
        })
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Protection => "protection",
            Self::Attempt => "attempt",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::FullyEnforced => "fully enforced",
            Self::Partial => "partial",
            Self::Unavailable => "unavailable",
        })
    }
}

impl Finding {
    fn works(area: Area, name: &'static str, detail: impl Into<String>) -> Self {
        Self { area, name, state: Found::Works, needed: false, detail: detail.into(), remedy: None }
    }

    fn needed(self) -> Self {
        Self { needed: true, ..self }
    }

    fn untested(self) -> Self {
        Self { state: Found::Untested, ..self }
    }

    fn negative(self, state: Found, remedy: impl Into<String>) -> Self {
        Self { state, remedy: Some(remedy.into()), ..self }
    }
}

impl Probe {
    /// Tests this host under `profile`, in a workspace of its own that is gone afterwards, also when the future is
    /// dropped half-way. Takes a few dozen milliseconds.
    ///
    /// Protections that the host lacks do not end the test, except under `ci-only`, which runs with all or not at
    /// all.
    ///
    /// # Errors
    /// [`Error::Io`] when the probe's own files or sockets cannot be made. That nothing can be enforced is no
    /// error but a [`Verdict`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(profile: Profile) -> Result<Self, Error> {
        Self::under(Policy::profile(profile, ".")).await
    }

    /// As [`run`](Self::run), under all of a policy but its workspace and what belongs to that.
    pub(crate) async fn under(mut policy: Policy) -> Result<Self, Error> {
        let stage = Stage::set().map_err(Error::io("make files and sockets to test with"))?;
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

    /// What is degraded or missing.
    pub fn negatives(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| matches!(finding.state, Found::Degraded | Found::Missing))
    }

    /// The finding of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.name == name)
    }
}
