//! Builds a policy from the granted paths, and tests whether this host can enforce it.

use std::path::Path;
use std::thread;

use crate::capabilities::linux::granted::{Granted, GrantedPath};
use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::policy::profile::{Git, Profile, Toolchains};
use crate::policy::require::{Requirement, Requirements};
use crate::probe::Probe;
use crate::report::enforcement::Protection;
use crate::report::finding::{Area, Finding, Found, Verdict};

/// The policy that grants exactly what `granted` says. Pure.
pub(crate) fn policy(granted: &Granted) -> Policy {
    let mode = if granted.network { NetworkMode::Host } else { NetworkMode::None };
    // The command sees its directory and the listed paths, and no repository around them. The root of the
    // host holds everything, so toolchains and that repository too.
    let (profile, toolchains, git) = match &granted.read {
        Some(list) if list.iter().any(is_root) => (Profile::FullDev, Toolchains::Auto, Git::Protect),
        Some(_) => (Profile::RepoWrite, Toolchains::None, Git::Workspace),
        None => (Profile::RepoWrite, Toolchains::Auto, Git::Workspace),
    };
    let policy = Policy::profile(profile, &granted.cwd.path).network_mode(mode);
    let policy = policy.toolchains(toolchains).git(git);
    let policy = granted.write.iter().fold(policy, |policy, place| policy.read_write(&place.path));
    let listed = granted.read.iter().flatten().filter(|place| !is_root(place));
    listed.fold(policy, |policy, place| policy.read_only(&place.path))
}

/// Whether it is `/`: a profile shows that, because a mount cannot.
fn is_root(place: &GrantedPath) -> bool {
    place.path == Path::new("/")
}

// Tests whether this host enforces capabilities: by attempts, as `kennel probe` does, not by version numbers.

/// Starts sandboxes and attempts forbidden actions inside. Takes a few dozen milliseconds. Uses its own
/// thread and runtime, which end with the call, so that any caller can use it.
pub(crate) fn is_confined() -> bool {
    let tried = thread::Builder::new().name("kennel-layer".to_owned()).spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(Probe::run(Profile::RepoWrite)).map_err(std::io::Error::other)
    });
    let probe = tried.map(thread::JoinHandle::join);
    matches!(probe, Ok(Ok(Ok(probe))) if suffices(&probe))
}

/// Whether every protection that a default policy requires is in force, and each attempt ended as it must.
fn suffices(probe: &Probe) -> bool {
    let required = Requirements::default();
    let is_required = |finding: &&Finding| match finding.area {
        Area::Host => false,
        Area::Attempt => finding.needed,
        Area::Protection => {
            let protection = finding.name.parse::<Protection>();
            finding.needed && protection.is_ok_and(|name| required.of(name) == Requirement::Required)
        }
    };
    probe.verdict != Verdict::Unavailable
        && probe.findings.iter().filter(is_required).all(|finding| finding.state == Found::Works)
}

#[cfg(test)]
mod layer_tests {
    use super::*;
    use crate::host::Host;

    fn finding(area: Area, name: &'static str, state: Found, needed: bool) -> Finding {
        Finding { area, name, state, needed, detail: String::new(), remedy: None }
    }

    fn probe(verdict: Verdict, findings: Vec<Finding>) -> Probe {
        Probe { verdict, host: Host::detect(), findings }
    }

    #[test]
    fn a_wall_that_is_required_decides() {
        use Found::{Degraded, Missing, Works};
        for (area, name, state, needed, enough) in [
            (Area::Protection, "seccomp", Works, true, true),
            (Area::Protection, "seccomp", Missing, true, false),
            (Area::Protection, "landlock", Degraded, true, false),
            (Area::Protection, "landlock_scope", Missing, true, true),
            (Area::Protection, "keyring", Missing, true, true),
            (Area::Attempt, "read", Missing, true, false),
            (Area::Attempt, "read", Missing, false, true),
            (Area::Host, "cgroup", Missing, true, true),
        ] {
            let probe = probe(Verdict::Partial, vec![finding(area, name, state, needed)]);
            assert_eq!(suffices(&probe), enough, "{name} {state}");
        }
    }

    #[test]
    fn where_no_sandbox_starts_there_is_no_layer() {
        assert!(!suffices(&probe(Verdict::Unavailable, Vec::new())));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capabilities::linux::granted::settled;
    use crate::policy::mount::Mount;
    use crate::policy::profile::OnUnavailable;

    fn of(network: bool, write: &[&str], read: Option<&[&str]>) -> Policy {
        let places = |paths: &[&str]| paths.iter().map(|path| GrantedPath::named(path)).collect::<Vec<_>>();
        policy(&settled(network, GrantedPath::named("/w"), places(write), read.map(places)))
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

    #[test]
    fn the_root_shows_the_host_and_what_is_named_beside_it() {
        let policy = of(false, &["/out"], Some(&["/", "/home/me/.ssh"]));
        assert_eq!((policy.profile, policy.toolchains), (Profile::FullDev, Toolchains::Auto));
        assert_eq!(policy.effective_network(), NetworkMode::None);
        assert_eq!(
            policy.mounts,
            [
                Mount::ReadWrite { source: "/out".into(), target: None },
                Mount::ReadOnly { source: "/home/me/.ssh".into(), target: None },
            ]
        );
        assert!(policy.validate().is_ok());
    }

    proptest! {
        #[test]
        fn it_is_valid_and_refuses_where_a_wall_is_missing(
            network: bool,
            write in prop::collection::vec("/[ab](/[ab]){0,2}", 0..5),
            read in prop::option::of(prop::collection::vec("/[abc](/[ab]){0,2}", 0..5)),
        ) {
            let places = |paths: &[String]| paths.iter().map(|path| GrantedPath::named(path)).collect::<Vec<_>>();
            let read = read.as_deref().map(places);
            let policy = policy(&settled(network, GrantedPath::named("/w"), places(&write), read));
            prop_assert!(policy.validate().is_ok());
            prop_assert_eq!(policy.on_unavailable, OnUnavailable::Refuse);
            prop_assert_eq!(policy.require, Default::default());
            prop_assert!(policy.env == Default::default(), "the command brings its environment");
        }
    }
}
