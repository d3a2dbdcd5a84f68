//! What each profile means: a row each. Data only; a policy is checked against it, and compiled by it.

use super::Profile;

/// What a policy begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    /// Whether the workspace is writable.
    pub(crate) writes: bool,
    /// Whether everything of the host is shown, read-only.
    pub(crate) shows_host: bool,
    /// Whether the command has something of the caller's: home and name, environment, toolchains, certificates.
    pub(crate) knows_caller: bool,
    /// Whether nothing runs unless everything is enforced in full.
    pub(crate) is_strict: bool,
    /// Where the network leads, if the policy names no mode.
    pub(crate) reach: Reach,
}

/// Where the network leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Nowhere,
    /// To what is allowed, through the proxy.
    Allowed,
    /// Wherever the host's does.
    Everywhere,
}

impl Profile {
    pub(crate) const fn meaning(self) -> Meaning {
        let usual = Meaning {
            writes: true,
            shows_host: false,
            knows_caller: true,
            is_strict: false,
            reach: Reach::Allowed,
        };
        match self {
            Self::ReadOnly => Meaning { writes: false, reach: Reach::Nowhere, ..usual },
            Self::RepoWrite => usual,
            Self::NoNetwork => Meaning { reach: Reach::Nowhere, ..usual },
            Self::FullDev => Meaning { shows_host: true, reach: Reach::Everywhere, ..usual },
            Self::CiOnly => Meaning { knows_caller: false, is_strict: true, ..usual },
        }
    }
}
