//! Builds a policy from the settings of the harness. Pure.

use fluers_runtime::{ExecSandboxContext, SandboxProfile};
use kennel::{Network, NetworkMode, OnUnavailable, Policy, Profile};

/// "Everything" in an egress list, and the same as a rule of a policy.
const EVERYTHING: [&str; 2] = ["*", "*:*"];

fn profile(profile: SandboxProfile) -> Profile {
    match profile {
        SandboxProfile::ReadOnly => Profile::ReadOnly,
        SandboxProfile::RepoWrite => Profile::RepoWrite,
        SandboxProfile::NoNetwork => Profile::NoNetwork,
        SandboxProfile::FullDev => Profile::FullDev,
        SandboxProfile::CiOnly => Profile::CiOnly,
    }
}

/// The policy of a context.
pub(crate) fn of_context(base: &Policy, asked: &ExecSandboxContext, wanted: OnUnavailable) -> Policy {
    let mut policy = Policy {
        profile: profile(asked.profile),
        workspace: asked.workspace_path.clone(),
        cwd: None,
        on_unavailable: wanted,
        ..base.clone()
    };
    let is_open = policy.effective_network() == NetworkMode::Host;
    let [word, rule] = EVERYTHING;
    let egress = asked.egress.iter().map(|entry| if entry == word { rule } else { entry });
    // The host's network already allows everything, and a policy with it must not have such a rule.
    policy.network.allow.extend(egress.filter(|entry| !(is_open && *entry == rule)).map(str::to_owned));
    policy
}

/// The policy to test a host with, before the workspace and egress list are known.
pub(crate) fn to_probe(base: &Policy, asked: SandboxProfile) -> Policy {
    let mut policy = Policy { profile: profile(asked), ..base.clone() };
    // Settings of the proxy are valid only together with the egress list.
    if policy.effective_network() != NetworkMode::Proxy {
        policy.network = Network { mode: base.network.mode, ..Network::default() };
    }
    policy.audit = None;
    policy
}

#[cfg(test)]
#[path = "../../../../src/policy/arbitrary.rs"]
mod arbitrary;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    const PROFILES: [SandboxProfile; 5] = [
        SandboxProfile::ReadOnly,
        SandboxProfile::RepoWrite,
        SandboxProfile::NoNetwork,
        SandboxProfile::FullDev,
        SandboxProfile::CiOnly,
    ];

    fn context(profile: SandboxProfile, egress: &[&str]) -> ExecSandboxContext {
        let egress = egress.iter().map(|&entry| entry.to_owned()).collect();
        ExecSandboxContext { workspace_path: "/w".into(), cwd: None, profile, egress }
    }

    fn policy(profile: SandboxProfile, egress: &[&str]) -> Policy {
        of_context(&Policy::default(), &context(profile, egress), OnUnavailable::Refuse)
    }

    #[test]
    fn profiles_have_the_network_that_the_contract_says() {
        use NetworkMode::{Host, None, Proxy};
        for (profile, without, with) in [
            (SandboxProfile::ReadOnly, None, Option::None),
            (SandboxProfile::RepoWrite, Proxy, Some(Proxy)),
            (SandboxProfile::NoNetwork, None, Option::None),
            (SandboxProfile::FullDev, Host, Option::None),
            (SandboxProfile::CiOnly, Proxy, Some(Proxy)),
        ] {
            let plain = policy(profile, &[]);
            plain.validate().unwrap_or_else(|error| panic!("{profile:?}: {error}"));
            assert_eq!(plain.effective_network(), without, "{profile:?}");
            let listed = policy(profile, &["a.example:443"]);
            match with {
                Some(mode) => {
                    listed.validate().expect("valid");
                    assert_eq!(listed.effective_network(), mode, "{profile:?}");
                }
                Option::None => drop(listed.validate().expect_err("the profile cannot enforce a list")),
            }
        }
    }

    #[test]
    fn the_word_for_everything_is_a_rule() {
        let policy = |profile| policy(profile, &["*"]);
        assert_eq!(policy(SandboxProfile::RepoWrite).network.allow, ["*:*"]);
        assert_eq!(policy(SandboxProfile::FullDev).network.allow, [""; 0]);
        policy(SandboxProfile::FullDev).validate().expect("the host's network");
        policy(SandboxProfile::NoNetwork).validate().expect_err("the profile has no network");
    }

    #[test]
    fn the_harness_says_what_is_its_own_to_say() {
        let base = Policy::profile(Profile::FullDev, "/elsewhere")
            .cwd("/elsewhere")
            .on_unavailable(OnUnavailable::Degrade)
            .allow("a:1")
            .read_only("/srv");
        let policy = of_context(&base, &context(SandboxProfile::CiOnly, &["b:2"]), OnUnavailable::Refuse);
        assert_eq!(policy.profile, Profile::CiOnly);
        assert_eq!((policy.workspace, policy.cwd), (PathBuf::from("/w"), None));
        assert_eq!(policy.on_unavailable, OnUnavailable::Refuse);
        assert_eq!(policy.network.allow, ["a:1", "b:2"]);
        assert_eq!(policy.mounts, base.mounts);
    }

    proptest! {
        /// A policy that is valid with an egress list must be valid for the probe too. Otherwise a valid
        /// policy would look like an unsuitable host.
        #[test]
        fn a_policy_that_can_be_used_can_be_probed(base in arbitrary::policies(), at in 0usize..5) {
            let profile = PROFILES[at];
            let asked = context(profile, &["a.example:443"]);
            let used = [&[][..], &asked.egress].map(|egress| {
                let asked = ExecSandboxContext { egress: egress.to_vec(), ..asked.clone() };
                let base = Policy { protect: Vec::new(), ..base.clone() };
                of_context(&base, &asked, OnUnavailable::Refuse).validate().is_ok()
            });
            if used.contains(&true) {
                let probed = to_probe(&Policy { protect: Vec::new(), cwd: None, ..base }, profile);
                let probed = Policy { workspace: "/w".into(), on_unavailable: OnUnavailable::Refuse, ..probed };
                prop_assert!(probed.validate().is_ok(), "{:?}", probed.validate());
            }
        }
    }
}
