//! From what is granted to a policy. Pure: what a policy becomes is the compiler's business.

use super::granted::Granted;
use crate::policy::{NetworkMode, Policy, Profile, Toolchains};

/// The policy that grants what is granted and nothing else.
pub(super) fn policy(granted: &Granted) -> Policy {
    let mode = if granted.network { NetworkMode::Host } else { NetworkMode::None };
    let toolchains = match granted.read {
        None => Toolchains::Auto,
        Some(_) => Toolchains::None,
    };
    let policy =
        Policy::profile(Profile::RepoWrite, &granted.cwd.path).network_mode(mode).toolchains(toolchains);
    let policy = granted.write.iter().fold(policy, |policy, place| policy.read_write(&place.path));
    granted.read.iter().flatten().fold(policy, |policy, place| policy.read_only(&place.path))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Mount, OnUnavailable,
        capabilities::granted::{Place, settled},
    };

    fn of(network: bool, write: &[&str], read: Option<&[&str]>) -> Policy {
        let places = |paths: &[&str]| paths.iter().map(|path| Place::named(path)).collect::<Vec<_>>();
        policy(&settled(network, Place::named("/w"), places(write), read.map(places)))
    }

    #[test]
    fn network_is_the_hosts_or_none() {
        assert_eq!(of(true, &[], None).effective_network(), NetworkMode::Host);
        assert_eq!(of(false, &[], None).effective_network(), NetworkMode::None);
    }

    #[test]
    fn lists_become_mounts_at_their_own_paths() {
        let policy = of(true, &["/out"], Some(&["/srv", "/out/x", "/w/x"]));
        assert_eq!(
            policy.mounts,
            [
                Mount::ReadWrite { source: "/out".into(), target: None },
                Mount::ReadOnly { source: "/srv".into(), target: None },
            ]
        );
        assert_eq!(policy.workspace, std::path::Path::new("/w"));
    }

    #[test]
    fn toolchains_come_with_the_system_default_alone() {
        assert_eq!(of(true, &["/out"], None).toolchains, Toolchains::Auto);
        assert_eq!(of(true, &[], Some(&["/srv"])).toolchains, Toolchains::None);
        assert_eq!(of(true, &[], Some(&[])).toolchains, Toolchains::None);
    }

    proptest! {
        #[test]
        fn it_is_valid_and_refuses_where_a_wall_is_missing(
            network: bool,
            write in prop::collection::vec("/[ab](/[ab]){0,2}", 0..5),
            read in prop::option::of(prop::collection::vec("/[abc](/[ab]){0,2}", 0..5)),
        ) {
            let places = |paths: &[String]| paths.iter().map(|path| Place::named(path)).collect::<Vec<_>>();
            let read = read.as_deref().map(places);
            let policy = policy(&settled(network, Place::named("/w"), places(&write), read));
            prop_assert!(policy.validate().is_ok());
            prop_assert_eq!(policy.on_unavailable, OnUnavailable::Refuse);
            prop_assert_eq!(policy.require, Default::default());
            prop_assert!(policy.env == Default::default(), "the command brings its environment");
        }
    }
}
