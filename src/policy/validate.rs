//! Whether a policy makes sense, and what its parts mean together. Nothing here looks up a path; the plan
//! resolves symlinks and checks what they point to.

use std::path::{Component, Path};

use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::glob::Pattern;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::policy::path::{check_source, check_text, has_parent};
use crate::policy::profile::{Git, OnUnavailable};
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::report::error::policy::PolicyError;

impl Policy {
    /// The network mode of this policy: the one that was set, otherwise the mode of the profile. `read-only`
    /// and `no-network` have no network. `repo-write` and `ci-only` have the proxy, which refuses everything
    /// if the policy allows nothing. `full-dev` has the network of the host.
    ///
    /// If no key of [`Policy::network`] is set and the network namespace may be missing, there is no proxy:
    /// without the namespace, it would be a proxy for the whole host.
    pub fn effective_network(&self) -> NetworkMode {
        match self.network.effective(self.profile) {
            NetworkMode::Proxy if self.network.is_unset() && self.may_lack_network() => NetworkMode::None,
            mode => mode,
        }
    }

    fn may_lack_network(&self) -> bool {
        self.effective_requirement(Protection::NetworkNamespace) == Requirement::IfAvailable
    }

    /// Whether the proxy only answers: the policy leaves the network to the profile, so nothing is allowed.
    pub(crate) fn only_refuses(&self) -> bool {
        self.network.is_unset() && self.effective_network() == NetworkMode::Proxy
    }

    /// Whether a protection is required, taking the whole policy into account. The first rule that applies
    /// decides:
    ///
    /// - [Indispensable](Protection::is_indispensable) protections are always required, and so is a network
    ///   namespace if [`Network::publish`](crate::policy::network::Network::publish) names a port.
    /// - `ci-only` requires everything, whatever [`Policy::require`] says, except limits that the policy does
    ///   not set.
    /// - A protection that [`Policy::require`] names is as it says.
    /// - With [`OnUnavailable::Degrade`], every other protection may be missing.
    /// - A limit that [`Policy::limits`] sets is required.
    /// - Every other protection has the default of
    ///   [`Requirements::of`](crate::policy::require::Requirements::of).
    pub fn effective_requirement(&self, protection: Protection) -> Requirement {
        if protection.is_indispensable() || self.needs(protection) {
            return Requirement::Required;
        }
        let explicit = self.require.get(protection);
        if self.profile.meaning().is_strict {
            let is_unset_limit = protection.is_limit() && !self.limits.asks_for(protection);
            return if is_unset_limit { self.require.of(protection) } else { Requirement::Required };
        }
        let otherwise = match self.on_unavailable {
            OnUnavailable::Degrade => Requirement::IfAvailable,
            OnUnavailable::Refuse if self.limits.asks_for(protection) => Requirement::Required,
            OnUnavailable::Refuse => self.require.of(protection),
        };
        explicit.unwrap_or(otherwise)
    }

    /// Whether nothing runs unless the host enforces a limit in full: the policy says so with its own word,
    /// or the profile.
    pub(crate) fn requires_in_full(&self, protection: Protection) -> bool {
        let is_strict = self.profile.meaning().is_strict;
        let says_so = self.require.get(protection) == Some(Requirement::Required);
        (is_strict || says_so) && self.effective_requirement(protection) == Requirement::Required
    }

    /// Whether a key of the policy makes no sense without a protection.
    fn needs(&self, protection: Protection) -> bool {
        protection == Protection::NetworkNamespace && !self.network.publish.is_empty()
    }

    /// Checks everything that can be checked without asking the host.
    ///
    /// # Errors
    /// [`PolicyError::Value`] for the first invalid value, [`PolicyError::Conflict`] for two different mounts
    /// at one path.
    ///
    /// ```
    /// use kennel::{Policy, Profile};
    ///
    /// let policy = Policy::profile(Profile::NoNetwork, "/home/me/repo").allow("crates.io:443");
    /// let error = policy.validate().unwrap_err();
    /// assert!(error.to_string().starts_with("network.allow `crates.io:443`: profile no-network has"));
    /// ```
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.has_workspace() {
            check_source("workspace", &self.workspace, self.profile.meaning().writes)?;
        }
        self.check_root()?;
        if let Some(cwd) = &self.cwd {
            check_text("cwd", cwd)?;
        }
        if let Some(audit) = &self.audit {
            audit.check()?;
        }
        if let Some(overlay) = &self.overlay {
            overlay.check(self.profile)?;
        }
        check_hostname(&self.hostname)?;
        self.protect.iter().try_for_each(|path| check_protect(path, &self.workspace))?;
        Mount::check_all(&self.mounts)?;
        self.network.check(self.profile)?;
        self.env.check()?;
        self.limits.check()?;
        self.require.check()?;
        self.check_warm()?;
        if self.profile.meaning().is_strict { self.check_ci_only() } else { Ok(()) }
    }

    /// Checks what another root takes, and refuses settings that need the host's system or a workspace.
    fn check_root(&self) -> Result<(), PolicyError> {
        if let Some(upper) = &self.image_upper {
            upper.check(self.has_other_root(), self.profile.meaning().writes)?;
        }
        if !self.has_other_root() {
            return match &self.user {
                Some(user) => {
                    let reason =
                        "commands on the host's system are the caller: name another root, or leave it out";
                    Err(PolicyError::value("user", user, reason))
                }
                None => Ok(()),
            };
        }
        match (&self.root, &self.image) {
            (Some(_), Some(image)) => {
                return Err(PolicyError::value(
                    "image",
                    image,
                    "there is another root already: keep one of the two",
                ));
            }
            (Some(root), None) => check_source("root", root, false)?,
            (None, Some(image)) if image.is_empty() => {
                return Err(PolicyError::value("image", image, "write it as python:3.12, or a digest"));
            }
            (None, _) => {}
        }
        if self.user.as_deref().is_some_and(|user| user.is_empty() || user.contains('\0')) {
            return Err(PolicyError::value("user", "", "write a name or a number"));
        }
        if self.env.base == EnvBase::Inherit {
            let reason =
                "variables of the host's system do not fit another root; name each variable in env.pass";
            return Err(PolicyError::value("env.base", self.env.base, reason));
        }
        let without_workspace = "there is no workspace; name one, or leave it out";
        match self.protect.first() {
            _ if self.has_workspace() => Ok(()),
            Some(path) => Err(PolicyError::path("protect", path, without_workspace)),
            None if self.overlay.is_some() => Err(PolicyError::value("overlay", "", without_workspace)),
            None => Ok(()),
        }
    }

    /// Refuses settings that profile `ci-only` would ignore, so that no caller relies on them.
    fn check_ci_only(&self) -> Result<(), PolicyError> {
        if self.on_unavailable == OnUnavailable::Degrade {
            let reason = "profile ci-only runs only when everything is enforced; write refuse or choose another profile";
            return Err(PolicyError::value("on_unavailable", self.on_unavailable, reason));
        }
        if let Some((protection, requirement)) =
            self.require.iter().find(|(_, requirement)| *requirement == Requirement::IfAvailable)
        {
            let reason = "profile ci-only requires everything; remove it or choose another profile";
            return Err(PolicyError::value(format!("require.{protection}"), requirement, reason));
        }
        if self.git == Git::Trust {
            let reason = "profile ci-only requires that protected paths are enforced; write protect or read-only, or choose \
                          another profile";
            return Err(PolicyError::value("git", self.git, reason));
        }
        if self.env.base == EnvBase::Inherit {
            let reason = "profile ci-only has a fixed environment; name each variable in env.pass, or choose \
                          another profile";
            return Err(PolicyError::value("env.base", self.env.base, reason));
        }
        Ok(())
    }
}

/// The longest host name on Linux, in bytes: HOST_NAME_MAX of sethostname(2).
const HOSTNAME_MAX: usize = 64;

fn check_hostname(hostname: &str) -> Result<(), PolicyError> {
    let is_plain = hostname.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-');
    if is_plain && (1..=HOSTNAME_MAX).contains(&hostname.len()) {
        return Ok(());
    }
    Err(PolicyError::value("hostname", hostname, "expected 1 to 64 letters, digits, `.` or `-`"))
}

fn check_protect(path: &Path, workspace: &Path) -> Result<(), PolicyError> {
    let refuse = |reason| Err(PolicyError::path("protect", path, reason));
    check_text("protect", path)?;
    if has_parent(path) {
        return refuse("must not contain `..`");
    }
    let inside = if path.is_absolute() { path.strip_prefix(workspace).ok() } else { Some(path) };
    let Some(inside) = inside else {
        return refuse("must be below the workspace; write it relative to the workspace");
    };
    if !inside.components().any(|component| matches!(component, Component::Normal(_))) {
        return refuse("is the workspace itself; choose profile read-only for that");
    }
    match Pattern::of_protect(path, workspace) {
        Some(Err(reason)) => Err(PolicyError::path("protect", path, reason)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::limits::Limits;
    use crate::policy::network::Network;
    use crate::policy::profile::Profile;

    fn policy() -> Policy {
        Policy::profile(Profile::RepoWrite, "/w")
    }

    /// The start of an error about a value. An error does not repeat an empty value.
    fn start(key: &str, value: &str) -> String {
        format!("{key}{}", if value.is_empty() { ": " } else { " `" })
    }

    pub(crate) fn refused(policy: &Policy, start: &str, words: &str) {
        let error = policy.validate().expect_err(start).to_string();
        assert!(error.starts_with(start) && error.contains(words), "{error}");
    }

    #[test]
    fn hostnames() {
        for hostname in ["a", "build-1.example", &"x".repeat(64)] {
            policy().hostname(hostname).validate().expect(hostname);
        }
        for hostname in ["", "a b", "a_b", "ä", "a\0", "a/b", &"x".repeat(65)] {
            refused(&policy().hostname(hostname), &start("hostname", hostname), "1 to 64");
        }
    }

    #[test]
    fn workspaces() {
        for workspace in [".", "sub", "../beside", "/dev/shm/w"] {
            Policy::profile(Profile::RepoWrite, workspace).validate().expect(workspace);
        }
        for (workspace, words) in [
            ("", "missing"),
            ("/", "full-dev"),
            ("/w/..", "full-dev"),
            ("/proc/1/cwd", "own /proc"),
            ("/sys", "read-only"),
        ] {
            let policy = Policy::profile(Profile::RepoWrite, workspace);
            refused(&policy, &start("workspace", workspace), words);
        }
    }

    #[test]
    fn working_directory_is_a_path() {
        refused(&policy().cwd(""), "cwd:", "missing");
        refused(&policy().cwd("a\0"), "cwd `a\\u{0}`", "NUL");
    }

    #[test]
    fn protected_paths_are_inside_the_workspace() {
        for path in [".env", "./a/b", "/w/a"] {
            policy().protect(path).validate().expect(path);
        }
        for (path, words) in [
            ("", "missing"),
            (".", "workspace itself"),
            ("/w", "workspace itself"),
            ("/w/", "workspace itself"),
            ("../x", "`..`"),
            ("a/../../x", "`..`"),
            ("/w/../x", "`..`"),
            ("/x", "below the workspace"),
            ("/wx/y", "below the workspace"),
            ("a\0", "NUL"),
        ] {
            refused(&policy().protect(path), &start("protect", path), words);
        }
    }

    #[test]
    fn an_audit_log_needs_a_file_name() {
        policy().audit("log").validate().expect("valid");
        refused(&policy().audit(""), "audit:", "missing");
        refused(&policy().audit("{date}/log"), "audit `{date}/log`", "only in the file name");
    }

    #[test]
    fn each_part_is_checked() {
        refused(&policy().tmpfs("t", None), "mounts[0].target `t`", "absolute");
        refused(&policy().set_env("A=", ""), "env.set `A=`", "`=`");
        refused(&policy().allow("x"), "network.allow `x`", "write `x:443`");
        refused(
            &policy().limits(Limits { pids: Some(0), ..Limits::default() }),
            "limits.pids `0`",
            "at least 1",
        );
        refused(&policy().require(Protection::Root, Requirement::IfAvailable), "require.root", "no sandbox");
    }

    #[test]
    fn ci_only_does_not_degrade() {
        let ci = Policy::profile(Profile::CiOnly, "/w");
        ci.validate().expect("refuse is the default");
        refused(&ci.clone().on_unavailable(OnUnavailable::Degrade), "on_unavailable `degrade`", "ci-only");
        let optional = ci.clone().require(Protection::Keyring, Requirement::IfAvailable);
        refused(&optional, "require.keyring `if_available`", "ci-only requires everything");
        ci.clone().require(Protection::Keyring, Requirement::Required).validate().expect("it is");
        let mut inherits = ci.pass_env("A");
        inherits.env.base = EnvBase::Inherit;
        refused(&inherits, "env.base `inherit`", "env.pass");
    }

    #[test]
    fn ci_only_requires_all_but_unset_limits() {
        let ci =
            Policy::profile(Profile::CiOnly, "/w").require(Protection::Keyring, Requirement::IfAvailable);
        for protection in Protection::ALL {
            let required = ci.effective_requirement(protection) == Requirement::Required;
            assert_eq!(required, !protection.is_limit(), "{protection}");
        }
        let limited = ci.limits(Limits { pids: Some(9), ..Limits::default() });
        assert_eq!(limited.effective_requirement(Protection::Pids), Requirement::Required);
        assert_eq!(limited.effective_requirement(Protection::Memory), Requirement::IfAvailable);
    }

    #[test]
    fn degrade_keeps_indispensable_and_required_protections() {
        let degrade = policy()
            .on_unavailable(OnUnavailable::Degrade)
            .require(Protection::Seccomp, Requirement::Required);
        for protection in Protection::ALL {
            let required = degrade.effective_requirement(protection) == Requirement::Required;
            let expected = protection.is_indispensable() || protection == Protection::Seccomp;
            assert_eq!(required, expected, "{protection}");
        }
    }

    #[test]
    fn a_proxy_that_nobody_asked_for_needs_a_network_namespace() {
        use NetworkMode::{None, Proxy};
        let optional = policy().require(Protection::NetworkNamespace, Requirement::IfAvailable);
        let degrade = policy().on_unavailable(OnUnavailable::Degrade);
        for (policy, expected) in [
            (policy(), Proxy),
            (optional.clone(), None),
            (degrade.clone(), None),
            (degrade.clone().require(Protection::NetworkNamespace, Requirement::Required), Proxy),
            (degrade.clone().allow("a.example:443"), Proxy),
            (optional.network_mode(Proxy), Proxy),
        ] {
            assert_eq!(policy.effective_network(), expected, "{policy:?}");
            assert_eq!(policy.only_refuses(), expected == Proxy && policy.network == Network::default());
        }
    }

    #[test]
    fn refuse_follows_the_requirements() {
        let optional = policy().require(Protection::Landlock, Requirement::IfAvailable);
        assert_eq!(optional.effective_requirement(Protection::Landlock), Requirement::IfAvailable);
        assert_eq!(optional.effective_requirement(Protection::Seccomp), Requirement::Required);
        assert_eq!(optional.effective_requirement(Protection::Memory), Requirement::IfAvailable);
    }

    #[test]
    fn a_limit_that_the_policy_sets_is_required() {
        use Requirement::{IfAvailable, Required};
        let asked = policy().limits(Limits { cpus: Some(1.0), ..Limits::default() });
        let of = |policy: &Policy| {
            (policy.effective_requirement(Protection::Cpus), policy.requires_in_full(Protection::Cpus))
        };
        assert_eq!(of(&policy()), (IfAvailable, false));
        assert_eq!(of(&asked), (Required, false));
        assert_eq!(of(&asked.clone().require(Protection::Cpus, Required)), (Required, true));
        assert_eq!(of(&asked.clone().require(Protection::Cpus, IfAvailable)), (IfAvailable, false));
        assert_eq!(of(&asked.clone().on_unavailable(OnUnavailable::Degrade)), (IfAvailable, false));
        let ci = Policy::profile(Profile::CiOnly, "/w");
        assert_eq!(of(&ci), (IfAvailable, false));
        assert_eq!(of(&ci.limits(asked.limits.clone())), (Required, true));
    }
}
