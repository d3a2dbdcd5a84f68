//! The upstream proxy that Kennel's proxy connects through: its address, its credentials, and the hosts that
//! bypass it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;

use crate::policy::network::destination::{Destination, DestinationHost};

/// The value of `network.upstream` that means the caller's environment.
const ENVIRONMENT: &str = "environment";

/// Replaces credentials when Kennel shows a policy.
pub(crate) const LEFT_OUT: &str = "…";

/// An upstream HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Upstream {
    pub(crate) at: Destination,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<String>,
    bypasses: Vec<Bypass>,
}

/// Leaves out the credentials.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("at", &self.at)
            .field("bypasses", &self.bypasses)
            .finish_non_exhaustive()
    }
}

/// Hosts that Kennel's proxy reaches without the upstream proxy: one entry of `no_proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bypass {
    Everything,
    /// A name and everything below it.
    Name(String),
    Network(IpNet),
}

impl Upstream {
    /// Checks a value of `network.upstream`.
    ///
    /// # Errors
    /// Why it is not valid. The message does not repeat the value, because it may contain a password.
    pub(crate) fn check(text: &str) -> Result<(), String> {
        if text == ENVIRONMENT { Ok(()) } else { Self::parse(text, "").map(drop) }
    }

    /// The upstream proxy for a value of `network.upstream`. `None`: the value is `environment`, and the
    /// caller's environment names no proxy.
    ///
    /// # Errors
    /// As [`check`](Self::check), also for the values of the environment.
    pub(crate) fn of(text: &str, environment: &BTreeMap<OsString, OsString>) -> Result<Option<Self>, String> {
        if text == ENVIRONMENT { Self::of_environment(environment) } else { Self::parse(text, "").map(Some) }
    }

    /// The upstream proxy that the caller's environment names, if it names one.
    ///
    /// # Errors
    /// Why what it names is not one.
    pub(crate) fn of_environment(environment: &BTreeMap<OsString, OsString>) -> Result<Option<Self>, String> {
        let variable = |names: [&str; 2]| {
            let value = names.iter().find_map(|name| environment.get(std::ffi::OsStr::new(name)));
            value.map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
        };
        let no_proxy = variable(["no_proxy", "NO_PROXY"]).unwrap_or_default();
        variable(["https_proxy", "HTTPS_PROXY"])
            .map(|url| Self::parse(&url, &no_proxy).map_err(|reason| format!("https_proxy: {reason}")))
            .transpose()
    }

    fn parse(url: &str, no_proxy: &str) -> Result<Self, String> {
        let form = "expected http://host:port or `environment`";
        let rest = url.strip_prefix("http://").ok_or(form)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        if user == Some(LEFT_OUT) {
            let reason = "its credentials were left out when Kennel showed the policy; write \
                          http://user:password@host:port, or `environment` to use https_proxy";
            return Err(reason.to_owned());
        }
        let at = Destination::parse(authority).map_err(|reason| format!("{form}: {reason}"))?;
        let authorization = user.map(|user| format!("Basic {}", STANDARD.encode(percent_decode(user))));
        Ok(Self { at, authorization, bypasses: no_proxy.split(',').filter_map(Bypass::parse).collect() })
    }

    /// Whether `no_proxy` names this host, so that Kennel's proxy connects to it directly.
    pub(crate) fn passes_by(&self, host: &DestinationHost) -> bool {
        self.bypasses.iter().any(|bypass| match (bypass, host) {
            (Bypass::Everything, _) => true,
            (Bypass::Name(name), DestinationHost::Name(host)) => {
                let rest = host.as_str().strip_suffix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Bypass::Network(network), DestinationHost::Address(address)) => network.contains(address),
            _ => false,
        })
    }
}

impl Bypass {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Some(Self::Network(network));
        }
        // Other programs accept IPv6 addresses without brackets here.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Network(address.to_canonical().into()));
        }
        match DestinationHost::parse(text.trim_start_matches("*.").trim_start_matches('.')).ok()? {
            DestinationHost::Address(address) => Some(Self::Network(address.into())),
            DestinationHost::Name(name) => Some(Self::Name(name.to_string())),
        }
    }
}

/// Decodes `%XX` in the userinfo of a URL.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = hex.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|_| first == b'%');
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn the_environment_names_the_proxy_and_its_bypasses() {
        let variables = environment(&[
            ("https_proxy", "http://user:p%40ss@proxy.example:3128/"),
            ("NO_PROXY", "localhost, .corp.example,10.0.0.0/8,192.0.2.1,::1,[2001:db8::1]"),
        ]);
        let upstream = Upstream::of("environment", &variables).expect("valid").expect("there");
        assert_eq!(upstream.at.to_string(), "proxy.example:3128");
        assert_eq!(upstream.authorization.as_deref(), Some("Basic dXNlcjpwQHNz"));
        for (host, bypassed) in [
            ("a.corp.example", true),
            ("corp.example", true),
            ("notcorp.example", false),
            ("10.1.2.3", true),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("[::1]", true),
            ("[2001:db8::1]", true),
            ("[2001:db8::2]", false),
            ("localhost", true),
        ] {
            assert_eq!(upstream.passes_by(&DestinationHost::parse(host).expect(host)), bypassed, "{host}");
        }
        assert!(!format!("{upstream:?}").contains("dXNl"), "credentials are not printed");
        assert_eq!(Upstream::of("environment", &environment(&[])), Ok(None));
    }

    #[test]
    fn invalid_urls_are_refused_and_not_repeated() {
        for text in ["", "proxy:3128", "https://secret:3128", "http://proxy", "socks5://x:1", "http://a b:1"]
        {
            let reason = Upstream::check(text).expect_err(text);
            assert!(!reason.contains("secret"), "{reason}");
        }
        Upstream::check("http://proxy:3128").expect("plain");
        let reason = Upstream::check("http://…@proxy:3128").expect_err("credentials are missing");
        assert!(reason.contains("were left out") && reason.contains("user:password@"), "{reason}");
    }
}
