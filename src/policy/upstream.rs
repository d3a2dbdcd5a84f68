//! The proxy that ours goes through: its address, its credentials, and what passes it by. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;

use crate::policy::destination::{Destination, Host};

/// The word for what the caller's environment says.
const ENVIRONMENT: &str = "environment";

/// What stands for credentials where a policy is shown.
pub(crate) const LEFT_OUT: &str = "…";

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Upstream {
    pub(crate) at: Destination,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<String>,
    by: Vec<By>,
}

/// Without the credentials.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("at", &self.at).field("by", &self.by).finish_non_exhaustive()
    }
}

/// What is reached without it, in the forms of `no_proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum By {
    Everything,
    /// A name and everything below it.
    Name(String),
    Network(IpNet),
}

impl Upstream {
    /// Whether a value of `network.upstream` has a meaning.
    ///
    /// # Errors
    /// Why it has none. The value is not repeated: it may hold a password.
    pub(crate) fn check(text: &str) -> Result<(), String> {
        if text == ENVIRONMENT { Ok(()) } else { Self::parse(text, "").map(drop) }
    }

    /// What a value of `network.upstream` means, with the caller's environment. `None`: nothing there.
    ///
    /// # Errors
    /// As [`check`](Self::check), for what the environment says.
    pub(crate) fn of(text: &str, environment: &BTreeMap<OsString, OsString>) -> Result<Option<Self>, String> {
        let variable = |names: [&str; 2]| {
            let value = names.iter().find_map(|name| environment.get(std::ffi::OsStr::new(name)));
            value.map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
        };
        let by = variable(["no_proxy", "NO_PROXY"]).unwrap_or_default();
        if text != ENVIRONMENT {
            return Self::parse(text, "").map(Some);
        }
        variable(["https_proxy", "HTTPS_PROXY"])
            .map(|url| Self::parse(&url, &by).map_err(|reason| format!("https_proxy: {reason}")))
            .transpose()
    }

    fn parse(url: &str, by: &str) -> Result<Self, String> {
        let form = "expected http://host:port or `environment`";
        let rest = url.strip_prefix("http://").ok_or(form)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        if user == Some(LEFT_OUT) {
            let reason = "its credentials were left out when the policy was shown; write http://user:password@host:port, \
                          or `environment` for what https_proxy says";
            return Err(reason.to_owned());
        }
        let at = Destination::parse(authority).map_err(|reason| format!("{form}: {reason}"))?;
        let authorization = user.map(|user| format!("Basic {}", STANDARD.encode(decoded(user))));
        Ok(Self { at, authorization, by: by.split(',').filter_map(By::parse).collect() })
    }

    /// Whether this host is reached without it.
    pub(crate) fn passes_by(&self, host: &Host) -> bool {
        self.by.iter().any(|by| match (by, host) {
            (By::Everything, _) => true,
            (By::Name(name), Host::Name(host)) => {
                let rest = host.as_str().strip_suffix(name.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (By::Network(network), Host::Address(address)) => network.contains(address),
            _ => false,
        })
    }
}

impl By {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Some(Self::Network(network));
        }
        // Without the brackets that IPv6 has in a host, as others take it.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Network(address.to_canonical().into()));
        }
        match Host::parse(text.trim_start_matches("*.").trim_start_matches('.')).ok()? {
            Host::Address(address) => Some(Self::Network(address.into())),
            Host::Name(name) => Some(Self::Name(name.to_string())),
        }
    }
}

/// Undoes %XX of a URL's userinfo.
fn decoded(text: &str) -> Vec<u8> {
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
    fn environment_names_the_proxy_and_what_passes_it_by() {
        let variables = environment(&[
            ("https_proxy", "http://user:p%40ss@proxy.example:3128/"),
            ("NO_PROXY", "localhost, .corp.example,10.0.0.0/8,192.0.2.1,::1,[2001:db8::1]"),
        ]);
        let upstream = Upstream::of("environment", &variables).expect("valid").expect("there");
        assert_eq!(upstream.at.to_string(), "proxy.example:3128");
        assert_eq!(upstream.authorization.as_deref(), Some("Basic dXNlcjpwQHNz"));
        for (host, by) in [
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
            assert_eq!(upstream.passes_by(&Host::parse(host).expect(host)), by, "{host}");
        }
        assert!(!format!("{upstream:?}").contains("dXNl"), "credentials are not printed");
        assert_eq!(Upstream::of("environment", &environment(&[])), Ok(None));
    }

    #[test]
    fn other_urls_are_refused_and_not_repeated() {
        for text in ["", "proxy:3128", "https://secret:3128", "http://proxy", "socks5://x:1", "http://a b:1"]
        {
            let reason = Upstream::check(text).expect_err(text);
            assert!(!reason.contains("secret"), "{reason}");
        }
        Upstream::check("http://proxy:3128").expect("plain");
        let reason = Upstream::check("http://…@proxy:3128").expect_err("nobody's credentials");
        assert!(reason.contains("were left out") && reason.contains("user:password@"), "{reason}");
    }
}
