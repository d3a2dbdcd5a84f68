//! AppArmor profiles that refuse calls. `scripts/kernels` compiles the profiles of `tests/kernels/apparmor`.
//! A test starts one program under one of them by name, so that it applies to no other program.

use std::{fs, path::Path, process::Command};

use super::{
    super::{report, script},
    Before, is_refused, root_goes_without, runs, user,
};
use crate::support::{skip, stderr, workspace};

const FEATURES: &str = "/sys/kernel/security/apparmor/features/namespaces/mask";
const PROFILES: &str = "/tests/apparmor";
const LOAD: &str = "/sys/kernel/security/apparmor/.replace";

/// Whether this kernel asks AppArmor about user namespaces.
fn is_asked() -> bool {
    let asked = fs::read_to_string(FEATURES).is_ok_and(|mask| mask.contains("userns_create"));
    if !asked {
        skip(module_path!(), "AppArmor that is asked about user namespaces");
    }
    asked
}

/// Starts a program with `starter`, under a profile.
fn under(profile: &str, starter: &[String]) -> Before {
    fs::write(LOAD, fs::read(Path::new(PROFILES).join(profile)).unwrap()).unwrap();
    let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
    script(&starter, &format!("echo 'exec {profile}' > /proc/self/attr/apparmor/exec"))
}

/// The exit status of a shell script in these surroundings, and its messages.
fn shell(before: &Before, text: &str) -> (bool, String) {
    let output = Command::new(&before[0]).args(&before[1..]).args(["sh", "-c", text]).output().unwrap();
    (output.status.success(), stderr(&output))
}

/// The message under a profile.
fn remedy(profile: &str) -> String {
    format!("let this process's AppArmor profile {profile} allow what a sandbox needs (rules `userns,`")
}

#[test]
#[ignore = "loads AppArmor profiles"]
fn user_namespaces_that_a_profile_refuses() {
    if !is_asked() {
        return;
    }
    let profile = "no-user-namespaces";
    let (ordinary, dir) = user();
    runs(&ordinary, &dir, &["-q"]);
    let says = "new user and pid namespace: Permission denied";
    is_refused(&under(profile, &ordinary), &dir, says, &remedy(profile));
    root_goes_without(&under(profile, &[]), &remedy(profile));
}

/// Ubuntu does this too, apart from the sysctl that turns it off: the namespace can be made, but it gives no
/// capability.
#[test]
#[ignore = "loads AppArmor profiles"]
fn capabilities_that_a_profile_refuses_in_user_namespaces() {
    if !is_asked() {
        return;
    }
    let profile = "no-capabilities";
    let (ordinary, dir) = user();
    let ordinary = under(profile, &ordinary);
    assert_eq!(shell(&ordinary, "unshare -U true"), (true, String::new()));
    for (options, words) in [("-Ur", "uid_map: Operation not permitted"), ("-Um", "unshare failed")] {
        let (succeeded, said) = shell(&ordinary, &format!("unshare {options} true"));
        assert!(!succeeded && said.contains(words), "{said}");
    }
    // PID 1 is born in both namespaces at once, and making the second needs a capability in the first.
    let says = "new pid namespace: Operation not permitted";
    is_refused(&ordinary, &dir, says, &remedy(profile));
    // Root loses its own capabilities as well, so it cannot run without a user namespace.
    is_refused(&under(profile, &[]), &workspace(), says, &remedy(profile));
}

/// The remedy works: a profile with these rules, and the rules that every program needs, is enough.
#[test]
#[ignore = "loads AppArmor profiles"]
fn the_rules_in_the_remedy_are_enough() {
    if !is_asked() {
        return;
    }
    let profile = "enough";
    let (ordinary, dir) = user();
    let ordinary = under(profile, &ordinary);
    assert!(shell(&ordinary, "grep -qx 'enough (enforce)' /proc/self/attr/apparmor/current").0);
    runs(&ordinary, &dir, &[]);
    let (root, dir) = (under(profile, &[]), workspace());
    assert_eq!(report(&root, dir.path(), &[])["enforcement"]["level"], "full");
}
