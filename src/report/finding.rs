//! What a probe of a host finds.

use std::fmt;

use serde::Serialize;

use crate::report::remedy::Remedy;

/// The overall result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every protection that the profile requests is in force, and every attempt ended as it must.
    FullyEnforced,
    /// Sandboxes start, but a protection is missing or an attempt was not stopped. If that protection is
    /// required under [`OnUnavailable::Refuse`](crate::policy::profile::OnUnavailable), commands do not run.
    Partial,
    /// No sandbox starts under this profile.
    Unavailable,
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was tested.
    pub area: Area,
    /// Its name in snake case; for a protection, the name of the
    /// [`Protection`](crate::report::enforcement::Protection).
    pub name: &'static str,
    /// The result.
    pub state: Found,
    /// Whether the verdict depends on it. Other findings are for information.
    pub needed: bool,
    /// What the test observed.
    pub detail: String,
    /// What a person can do about it. Present if and only if the state is degraded or missing.
    pub remedy: Option<Remedy>,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// A feature of the kernel or its settings.
    Host,
    /// A protection, set up in a real sandbox.
    Protection,
    /// An attempt by a program in the sandbox.
    Attempt,
}

/// The state of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It works as it must.
    Works,
    /// It works in part.
    Degraded,
    /// It is missing, or the attempt was not stopped.
    Missing,
    /// The profile does not request it, or the probe could not test it.
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
    pub(crate) fn works(area: Area, name: &'static str, detail: impl Into<String>) -> Self {
        Self { area, name, state: Found::Works, needed: false, detail: detail.into(), remedy: None }
    }

    pub(crate) fn needed(self) -> Self {
        Self { needed: true, ..self }
    }

    pub(crate) fn untested(self) -> Self {
        Self { state: Found::Untested, ..self }
    }

    pub(crate) fn negative(self, state: Found, remedy: impl Into<Remedy>) -> Self {
        Self { state, remedy: Some(remedy.into()), ..self }
    }
}
