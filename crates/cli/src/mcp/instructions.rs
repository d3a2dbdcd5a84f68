//! What the server tells a model at the start: what the sandbox allows, in a few sentences.

use std::path::Path;

use kennel::{
    NetworkMode, Policy, Profile,
    internal::escape::harmless,
    report::{InForce, Place, PlaceAccess, PlaceOrigin},
};

use super::tools::Name;

/// The most places or hosts in one sentence.
const MOST: usize = 12;

/// The text for a policy and what it comes to.
pub(super) fn instructions(policy: &Policy, in_force: &InForce, may_commit: bool) -> String {
    let directory = escaped_path(&in_force.directory);
    let mut text = format!(
        "These tools work in a Kennel sandbox on the user's machine. Commands start in {directory}. "
    );
    text += &writable(in_force);
    if policy.overlay.is_some() {
        text += " Changes to the workspace are kept apart from it until somebody applies them.";
    }
    text += match policy.profile {
        Profile::FullDev => " Other files of the machine can be read, known secrets cannot. ",
        _ => {
            " Of the rest of the machine, programs and their libraries can be read; secrets and most of the home directory cannot. "
        }
    };
    text += &network(policy);
    text += " Packages of the system cannot be installed: use those of a language in the workspace (a venv of Python, npm, cargo), or ask \
              the person.";
    text += " A line that begins with `[kennel: ` is from the sandbox, everything else from commands; a command that writes that gets \
              a backslash before it. You cannot change these rules. If something is refused, the result says so, with the flag with which a person could \
              start `kennel mcp` to allow it: tell the person, and do not look for a way around it.";
    let mut missing: Vec<&str> =
        Name::ALL.iter().filter_map(|name| name.missing(policy, may_commit)).collect();
    missing.dedup();
    missing.iter().for_each(|why| text += &format!(" There is {why}."));
    text
}

fn escaped_path(path: &Path) -> String {
    harmless(&path.to_string_lossy())
}

fn listed(all: &[String]) -> String {
    let more = all.len().saturating_sub(MOST);
    let first = all.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

fn writable(in_force: &InForce) -> String {
    let places = |access: PlaceAccess, origin: Option<PlaceOrigin>| {
        let is_meant = |place: &&Place| {
            place.access == access
                && origin.is_none_or(|origin| place.origin == origin)
                && !place.path.starts_with("/dev")
        };
        let found: Vec<&Path> =
            in_force.places.iter().filter(is_meant).map(|place| place.path.as_path()).collect();
        // What is below another one is no news.
        let is_below = |path: &Path| found.iter().any(|other| *other != path && path.starts_with(other));
        found.iter().filter(|path| !is_below(path)).map(|path| escaped_path(path)).collect::<Vec<_>>()
    };
    let mut text = match &*places(PlaceAccess::Write, None) {
        [] => "Nothing of the machine is writable.".to_owned(),
        write => format!("Writable: {}.", listed(write)),
    };
    let granted = places(PlaceAccess::Read, Some(PlaceOrigin::Policy));
    if !granted.is_empty() {
        text += &format!(" Readable, because the user granted it: {}.", listed(&granted));
    }
    let private = places(PlaceAccess::Private, None);
    if !private.is_empty() {
        text += &format!(" Empty, private, and gone at the end: {}.", listed(&private));
    }
    text
}

fn network(policy: &Policy) -> String {
    let allowed: Vec<String> = policy.network.allow.iter().map(|rule| in_full(policy, rule)).collect();
    match policy.effective_network() {
        NetworkMode::None => "There is no network but the sandbox's own loopback.".to_owned(),
        NetworkMode::Host => "Commands use the network of the machine.".to_owned(),
        _ if policy.network.proxy.is_some() => {
            "Network connections go through another program's proxy.".to_owned()
        }
        _ if allowed.is_empty() => "No host can be reached over the network.".to_owned(),
        _ => format!("Over the network, commands reach only: {}.", listed(&allowed)),
    }
}

/// A rule, and the hosts of a preset.
fn in_full(policy: &Policy, rule: &str) -> String {
    let mut alone = policy.network.clone();
    alone.allow = vec![rule.to_owned()];
    let hosts = alone.shown().allow;
    let rule = harmless(rule);
    if hosts == [&*rule] { rule } else { format!("{rule} ({})", hosts.join(", ")) }
}
