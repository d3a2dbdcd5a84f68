//! The named choices of a policy: profile, toolchains, and what to do when the host falls short.

use crate::report::words::words;

words! {
    /// A named set of grants to start from. Secrets of the home directory are invisible in all but
    /// [`FullDev`](Profile::FullDev), and masked there unless granted.
    ///
    /// ```
    /// use kennel::Profile;
    ///
    /// assert_eq!("ci-only".parse::<Profile>()?, Profile::CiOnly);
    /// assert_eq!(Profile::ReadOnly.to_string(), "read-only");
    /// # Ok::<(), kennel::PolicyError>(())
    /// ```
    #[derive(Default)]
    pub enum Profile as "profile" {
        /// Workspace and system read-only, private `/tmp`, no network.
        ReadOnly = "read-only",
        /// Workspace writable, system read-only, private `/tmp`, network through the proxy to what is
        /// allowed.
        #[default]
        RepoWrite = "repo-write",
        /// As `RepoWrite`, and no network at all; an allow-list with it is an error.
        NoNetwork = "no-network",
        /// Workspace writable, the host's tree read-only, the host's network.
        FullDev = "full-dev",
        /// As `RepoWrite`, with nothing of the host's home directories, a fixed clean environment, and a
        /// refusal to run unless everything is enforced.
        CiOnly = "ci-only",
    }
}

words! {
    /// Whether toolchains kept outside the system directories (rustup, nvm, pyenv and the like) are visible.
    #[derive(Default)]
    pub enum Toolchains as "toolchains" {
        /// Those that are found are visible read-only, never their credential files.
        #[default]
        Auto = "auto",
        /// None are visible.
        None = "none",
    }
}

words! {
    /// How long files in private places last: `/tmp`, `/var/tmp`, `HOME` if it is not granted, and what
    /// [`Policy::tmpfs`](crate::policy::Policy::tmpfs) adds. `/dev/shm` is always new for each command.
    #[derive(Default)]
    pub enum TmpLife as "tmp" {
        /// Each command of a session finds them empty.
        #[default]
        Exec = "exec",
        /// The commands of a session share them.
        Session = "session",
    }
}

words! {
    /// What to do when the host cannot provide a required protection.
    #[derive(Default)]
    pub enum OnUnavailable as "on_unavailable" {
        /// Fail before anything runs.
        #[default]
        Refuse = "refuse",
        /// Run with what there is, and say what is missing in the enforcement report.
        Degrade = "degrade",
    }
}

// What each profile means: a row each. Data only; a policy is checked against it, and compiled by it.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_documented_ones() {
        assert_eq!(Profile::default(), Profile::RepoWrite);
        assert_eq!(Toolchains::default(), Toolchains::Auto);
        assert_eq!(OnUnavailable::default(), OnUnavailable::Refuse);
    }

    #[test]
    fn profiles_are_written_as_the_command_line_documents() {
        let words = Profile::ALL.map(Profile::as_str);
        assert_eq!(words, ["read-only", "repo-write", "no-network", "full-dev", "ci-only"]);
    }
}
