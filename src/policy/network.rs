//! What the commands can reach. Opens no socket; what an allowed name resolves to is the proxy's business.

use serde::{Deserialize, Serialize};

use super::words::words;
use super::{PolicyError, Profile};

/// The network of a sandbox.
///
/// ```
/// use kennel::{Network, NetworkMode};
///
/// let network = Network { mode: Some(NetworkMode::Proxy), allow: vec!["crates.io:443".into()] };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// `None`: as the profile says; see [`Policy::effective_network`](crate::Policy::effective_network).
    pub mode: Option<NetworkMode>,
    /// What the proxy lets pass: `host:port`, `*.host:port` or `host:*`. Empty: nothing.
    pub allow: Vec<String>,
}

words! {
    /// How much of the network there is.
    pub enum NetworkMode as "network.mode" {
        /// A loopback interface of its own, and nothing else.
        None = "none",
        /// As `None`, and a proxy that reaches what is allowed.
        Proxy = "proxy",
        /// The network of the host, unfiltered.
        Host = "host",
    }
}

impl Network {
    pub(super) fn effective(&self, profile: Profile) -> NetworkMode {
        self.mode.unwrap_or(match profile {
            Profile::ReadOnly | Profile::NoNetwork => NetworkMode::None,
            Profile::RepoWrite | Profile::CiOnly if self.allow.is_empty() => NetworkMode::None,
            Profile::RepoWrite | Profile::CiOnly => NetworkMode::Proxy,
            Profile::FullDev => NetworkMode::Host,
        })
    }

    pub(super) fn check(&self, profile: Profile) -> Result<(), PolicyError> {
        self.allow.iter().try_for_each(|rule| check_rule(rule))?;
        self.check_mode(profile)?;
        let Some(first) = self.allow.first() else { return Ok(()) };
        if matches!(profile, Profile::ReadOnly | Profile::NoNetwork) {
            let reason = format!("profile {profile} has no network; remove it or choose profile repo-write");
            return Err(PolicyError::value("network.allow", first, reason));
        }
        // A list that nobody enforces would be worse than none.
        let reason = match self.effective(profile) {
            NetworkMode::Proxy => return Ok(()),
            NetworkMode::None => "network.mode is none; remove it or choose mode proxy",
            NetworkMode::Host => "the host's network is not filtered; remove it or choose mode proxy",
        };
        Err(PolicyError::value("network.allow", first, reason))
    }

    fn check_mode(&self, profile: Profile) -> Result<(), PolicyError> {
        let reason = match (profile, self.mode) {
            (Profile::NoNetwork, Some(NetworkMode::Proxy | NetworkMode::Host)) => {
                "profile no-network has no network; remove it or choose another profile"
            }
            (Profile::CiOnly, Some(NetworkMode::Host)) => {
                "profile ci-only reaches only what is allowed; choose mode proxy or another profile"
            }
            _ => return Ok(()),
        };
        Err(PolicyError::value("network.mode", self.effective(profile), reason))
    }
}

/// Only the shape: the grammar of hosts belongs to the proxy, which parses the rule.
fn check_rule(rule: &str) -> Result<(), PolicyError> {
    let shaped = rule.rsplit_once(':').is_some_and(|(host, port)| {
        let host_fits =
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        host_fits && (port == "*" || digits && port.parse::<u16>().is_ok_and(|port| port > 0))
    });
    let reason = "expected host:port, *.host:port or host:*, such as crates.io:443";
    if shaped { Ok(()) } else { Err(PolicyError::value("network.allow", rule, reason)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(mode: Option<NetworkMode>, allow: &[&str]) -> Network {
        Network { mode, allow: allow.iter().map(|&rule| rule.to_owned()).collect() }
    }

    #[test]
    fn profile_decides_when_no_mode_is_given() {
        use NetworkMode as Mode;
        let listed = network(None, &["a:1"]);
        for (profile, without, with) in [
            (Profile::ReadOnly, Mode::None, Mode::None),
            (Profile::RepoWrite, Mode::None, Mode::Proxy),
            (Profile::NoNetwork, Mode::None, Mode::None),
            (Profile::FullDev, Mode::Host, Mode::Host),
            (Profile::CiOnly, Mode::None, Mode::Proxy),
        ] {
            assert_eq!(Network::default().effective(profile), without, "{profile}");
            assert_eq!(listed.effective(profile), with, "{profile}");
            for mode in Mode::ALL {
                assert_eq!(network(Some(mode), &[]).effective(profile), mode);
            }
        }
    }

    #[test]
    fn list_without_a_proxy_is_refused() {
        for (profile, mode, words) in [
            (Profile::NoNetwork, None, "profile no-network"),
            (Profile::ReadOnly, None, "profile read-only"),
            (Profile::ReadOnly, Some(NetworkMode::Proxy), "profile read-only"),
            (Profile::RepoWrite, Some(NetworkMode::None), "network.mode is none"),
            (Profile::FullDev, None, "not filtered"),
            (Profile::RepoWrite, Some(NetworkMode::Host), "not filtered"),
        ] {
            let error = network(mode, &["crates.io:443"]).check(profile).expect_err(words).to_string();
            assert!(error.starts_with("network.allow `crates.io:443`: ") && error.contains(words), "{error}");
        }
        network(Some(NetworkMode::Proxy), &["crates.io:443"]).check(Profile::FullDev).expect("filtered");
        network(None, &["crates.io:443"]).check(Profile::CiOnly).expect("filtered");
    }

    #[test]
    fn mode_that_contradicts_the_profile_is_refused() {
        for (profile, mode) in [
            (Profile::NoNetwork, NetworkMode::Host),
            (Profile::NoNetwork, NetworkMode::Proxy),
            (Profile::CiOnly, NetworkMode::Host),
        ] {
            let error = network(Some(mode), &[]).check(profile).expect_err("contradiction").to_string();
            assert!(error.contains(mode.as_str()) && error.contains(profile.as_str()), "{error}");
        }
        network(Some(NetworkMode::None), &[]).check(Profile::NoNetwork).expect("the same said twice");
    }

    #[test]
    fn rules_have_a_host_and_a_port() {
        for rule in ["crates.io:443", "*.github.com:443", "localhost:*", "127.0.0.1:80", "[::1]:65535"] {
            check_rule(rule).expect(rule);
        }
        for rule in [
            "",
            "crates.io",
            ":443",
            "a:",
            "a:0",
            "a:+1",
            "a:65536",
            "a b:1",
            "https://a:443",
            "a\n:1",
            "a:http",
        ] {
            check_rule(rule).expect_err(rule);
        }
    }
}
