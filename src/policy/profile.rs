//! The named choices of a policy: the profile and what it grants, toolchains, private files, missing
//! protections.

use crate::report::error::policy::policy_words;

policy_words! {
    /// A named set of grants to start from. Secrets of the home directory are invisible.
    /// [`FullDev`](Profile::FullDev) shows the home directory and masks the secrets that the policy does not
    /// grant.
    ///
    /// ```
    /// use kennel::Profile;
    ///
    /// assert_eq!("ci-only".parse::<Profile>()?, Profile::CiOnly);
    /// assert_eq!(Profile::ReadOnly.to_string(), "read-only");
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    #[derive(Default)]
    pub enum Profile as "profile" {
        /// Workspace and system read-only, private `/tmp`, no network.
        ReadOnly = "read-only",
        /// Workspace writable, system read-only, private `/tmp`; the proxy lets allowed connections through
        /// and refuses all others at once.
        #[default]
        RepoWrite = "repo-write",
        /// As `RepoWrite`, but without any network; an allow-list is then an error.
        NoNetwork = "no-network",
        /// Workspace writable, the whole file tree of the host read-only, the network of the host.
        FullDev = "full-dev",
        /// As `RepoWrite`, with no home directories of the host and a fixed clean environment. Nothing runs
        /// unless every protection is enforced.
        CiOnly = "ci-only",
    }
}

policy_words! {
    /// Whether toolchains outside the system directories (rustup, nvm, pyenv and the like) are visible.
    #[derive(Default)]
    pub enum Toolchains as "toolchains" {
        /// The toolchains and caches that Kennel finds are visible, without their credential files.
        /// [`Caches`] says whether commands can write there.
        #[default]
        Auto = "auto",
        /// No such toolchain is visible, and no cache.
        None = "none",
    }
}

policy_words! {
    /// What commands can do with the caches of package managers and compilers (`~/.cargo/registry`, `~/.npm`,
    /// `~/.cache/pip` and the like), and whether they can install into toolchains. The host's files never
    /// change.
    #[derive(Default)]
    pub enum Caches as "caches" {
        /// Caches and toolchains are writable. What commands add or change is gone with the sandbox or
        /// session.
        #[default]
        Private = "private",
        /// As `Private`, but what commands write to caches is kept for later sandboxes with `Keep`, in
        /// Kennel's own directory `$XDG_CACHE_HOME/kennel/caches`.
        Keep = "keep",
        /// Caches and toolchains are visible, read-only.
        ReadOnly = "read-only",
        /// Caches are not visible; toolchains are read-only.
        None = "none",
    }
}

policy_words! {
    /// How long files in private directories last: `/tmp`, `/var/tmp`, `HOME` if it is not granted, and what
    /// [`Policy::tmpfs`](crate::policy::Policy::tmpfs) adds. `/dev/shm` is new for each command in both
    /// cases.
    #[derive(Default)]
    pub enum TmpLife as "tmp" {
        /// Each command of a session starts with empty ones.
        #[default]
        Exec = "exec",
        /// The commands of a session share them.
        Session = "session",
    }
}

policy_words! {
    /// What the commands of a session share with each other. The walls around all of them are the same.
    pub enum Isolation as "isolation" {
        /// Each command has its own processes, mounts, IPC and keyring. What it started ends with it.
        Command = "command",
        /// Commands share their processes, `/tmp`, `/dev/shm`, IPC and keyring, as on one machine: a command
        /// sees, signals and traces the others. What it leaves in the background lives on until the session
        /// ends.
        Session = "session",
    }
}

policy_words! {
    /// What commands see and change of git repositories. What git obeys in them, such as hooks and the
    /// configuration, decides what git outside runs.
    #[derive(Default)]
    pub enum Git as "git" {
        /// Commands cannot change what git obeys.
        #[default]
        Protect = "protect",
        /// As `Protect`. A repository around the workspace is not shown, nor the caller's own configuration
        /// of git.
        Workspace = "workspace",
        /// Commands change nothing in a repository that exists: no commits either.
        ReadOnly = "read-only",
        /// Commands may change everything, so they can make git outside run programs. The report says so.
        Trust = "trust",
    }
}

policy_words! {
    /// What to do when the host cannot provide a required protection.
    #[derive(Default)]
    pub enum OnUnavailable as "on_unavailable" {
        /// Fail before anything runs.
        #[default]
        Refuse = "refuse",
        /// Run with the protections that the host has; the enforcement report says which are missing.
        Degrade = "degrade",
    }
}

/// What a profile grants. Validation and the plan both read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    /// Whether the workspace is writable.
    pub(crate) writes: bool,
    /// Whether the whole file tree of the host is visible, read-only.
    pub(crate) shows_host: bool,
    /// Whether the command gets the caller's home, user name, environment, toolchains and certificates.
    pub(crate) knows_caller: bool,
    /// Whether nothing runs unless every protection is enforced in full.
    pub(crate) is_strict: bool,
    /// What the network reaches if the policy names no mode.
    pub(crate) reach: Reach,
}

/// What the network of a profile reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Nowhere,
    /// What the policy allows, through the proxy.
    Allowed,
    /// Everything that the host reaches.
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
        assert_eq!(Caches::default(), Caches::Private);
        assert_eq!(Git::default(), Git::Protect);
        assert_eq!(OnUnavailable::default(), OnUnavailable::Refuse);
    }

    #[test]
    fn profiles_are_written_as_the_command_line_documents() {
        let words = Profile::ALL.map(Profile::as_str);
        assert_eq!(words, ["read-only", "repo-write", "no-network", "full-dev", "ci-only"]);
    }
}
