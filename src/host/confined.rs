//! What this process was confined by when it was started. Only for sentences to people: nothing is decided by it.

use std::fs;

use procfs::process::Process;

#[derive(Clone, Debug, Default)]
pub(super) struct Confined {
    /// A seccomp filter.
    pub(super) filtered: bool,
    /// That, no new privileges and an empty bounding set, as in a sandbox of ours.
    pub(super) sandboxed: bool,
    /// The AppArmor profile.
    pub(super) profile: Option<String>,
}

impl Confined {
    pub(super) fn here() -> Self {
        let profile = apparmor_profile();
        let Ok(status) = Process::myself().and_then(|process| process.status()) else {
            return Self { profile, ..Self::default() };
        };
        let filtered = status.seccomp == Some(2);
        let sandboxed = filtered && status.nonewprivs == Some(1) && status.capbnd == Some(0);
        Self { filtered, sandboxed, profile }
    }
}

/// Not `attr/current`, which may be another security module's.
fn apparmor_profile() -> Option<String> {
    profile_in(&fs::read_to_string("/proc/self/attr/apparmor/current").ok()?)
}

/// `unconfined`, or `NAME (MODE)`. A profile that only complains still keeps to its `deny` rules.
fn profile_in(label: &str) -> Option<String> {
    let (name, mode) = label.trim_matches(['\n', '\0']).rsplit_once(" (")?;
    // Who loads profiles may choose any name; a terminal obeys some characters.
    (mode != "unconfined)").then(|| name.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_profiles_that_refuse_something_have_a_name() {
        for (label, name) in [
            ("unconfined\n", None),
            ("chrome (unconfined)\n", None),
            ("docker-default (enforce)\n", Some("docker-default")),
            ("/usr/bin/my tool (beta) (complain)\n", Some("/usr/bin/my tool (beta)")),
            ("a//&:ns:b (mixed)\0", Some("a//&:ns:b")),
            ("a\u{1b}[2J (enforce)\n", Some("a\\u{1b}[2J")),
            ("", None),
        ] {
            assert_eq!(profile_in(label).as_deref(), name, "{label:?}");
        }
    }
}
