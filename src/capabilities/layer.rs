//! Whether this host holds commands to capabilities: tried out, as `kennel probe` does, not read off a version.

use std::thread;

use crate::{
    Probe, Profile, Requirement, Requirements, Verdict,
    policy::Protection,
    probe::{Area, Finding, Found},
};

/// Tries it: sandboxes start, and a program in them tries what must not succeed. Takes a few dozen milliseconds, in a
/// thread and a runtime of its own that are gone afterwards, so that it can be asked from anywhere.
pub(super) fn is_confined() -> bool {
    let tried = thread::Builder::new().name("kennel-layer".to_owned()).spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(Probe::run(Profile::RepoWrite)).map_err(std::io::Error::other)
    });
    let probe = tried.map(thread::JoinHandle::join);
    matches!(probe, Ok(Ok(Ok(probe))) if suffices(&probe))
}

/// Whether everything that a policy requires which says nothing about it is in force, and each attempt ended as it must.
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
mod tests {
    use super::*;
    use crate::Host;

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
