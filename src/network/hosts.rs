//! Hosts by exact name and port, as a manifest lists them. Nothing here resolves a name; the gate does that.

use hyper::Uri;

use crate::policy::network::destination::Destination;
use crate::policy::network::rule::Rules;
use crate::report::error::policy::{PolicyError, escaped_value};
use crate::report::error::spawn::SpawnError;
use crate::report::failure::Boundary;

/// The hosts that may be reached: exactly these, each at its port. Without a host, none is.
///
/// A host is a name or an address; there are no wildcards. Letters of either case mean the same.
///
/// ```
/// use kennel::broker::Manifest;
/// use kennel::network::HostPolicy;
/// use kennel::report::Class;
///
/// let manifest = Manifest::from_toml("capabilities.network.hosts = ['api.example.com:443']")?;
/// let policy = HostPolicy::from(&manifest);
/// assert_eq!(policy, HostPolicy::new(["API.example.com:443"])?);
///
/// policy.check_host_port("api.example.com:443")?;
/// policy.check_url("https://api.example.com/v1?q=x")?;
/// for url in ["http://api.example.com/", "https://other.example.com/", "ftp://api.example.com:443/"] {
///     assert_eq!(policy.check_url(url).unwrap_err().failure().class, Class::CapabilityDenied);
/// }
/// assert!(HostPolicy::default().check_host_port("api.example.com:443").is_err());
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    hosts: Vec<String>,
    pub(crate) rules: Rules,
}

impl HostPolicy {
    /// A policy for these hosts, each as `host:port`.
    ///
    /// # Errors
    /// One of them is not a host and a port.
    pub fn new(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, PolicyError> {
        const KEY: &str = "capabilities.network.hosts";
        let parsed = |host: &str| {
            let reason = |reason: &str| PolicyError::value(KEY, host, reason);
            Destination::parse(host).map(|host| host.to_string()).map_err(|error| reason(error.0))
        };
        let hosts = hosts.into_iter().map(|host| parsed(host.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let rules = Rules::parse(hosts.iter().map(String::as_str))
            .map_err(|(at, error)| PolicyError::value(KEY, &hosts[at], error.to_string()))?;
        Ok(Self { hosts, rules })
    }

    /// The hosts, each as `host:port` in lower case, in the order in which they were given.
    #[must_use]
    pub fn allowed_hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Checks a destination, such as the target of a CONNECT.
    ///
    /// # Errors
    /// [`SpawnError::Denied`]: it is not a host and a port, or is not among the hosts.
    pub fn check_host_port(&self, host_port: &str) -> Result<(), SpawnError> {
        let destination = Destination::parse(host_port).map_err(|error| self.denied(host_port, error.0))?;
        match self.rules.find(&destination) {
            Some(_) => Ok(()),
            None => Err(self.denied(&destination.to_string(), NOT_GRANTED)),
        }
    }

    /// Checks the host of a URL. Without a port, `https` means 443 and `http` 80.
    ///
    /// # Errors
    /// [`SpawnError::Denied`]: it is no URL of `http` or `https`, has a user name or password, or its host is
    /// not among the hosts. What HTTP libraries read differently is no URL here, such as one with a `\`.
    pub fn check_url(&self, url: &str) -> Result<(), SpawnError> {
        let denied = |reason: &str| Err(self.denied(url, reason));
        let Ok(parsed) = url.parse::<Uri>() else { return denied(NO_URL) };
        let port = match parsed.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return denied(NO_URL),
        };
        let Some(authority) = parsed.authority() else { return denied("has no host") };
        if authority.as_str().contains('@') {
            return denied("has a user name or password; set a header instead");
        }
        match authority.as_str().strip_prefix(authority.host()) {
            // A URL may end with the colon of a port that it lacks.
            Some("" | ":") => self.check_host_port(&format!("{}:{port}", authority.host())),
            // `Uri` takes a port that is no number for none.
            _ => self.check_host_port(authority.as_str()),
        }
    }

    fn denied(&self, requested: &str, reason: &str) -> SpawnError {
        SpawnError::denied(Boundary::Manifest, "host", escaped_value(requested), reason, &self.hosts)
    }
}

const NOT_GRANTED: &str = "is not in capabilities.network.hosts of the manifest";

/// Why a URL of another scheme is denied.
const NO_URL: &str = "is not a URL of http or https";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::failure::{Class, Details};

    #[test]
    fn hosts_are_exact_and_without_one_there_is_none() {
        let policy =
            HostPolicy::new(["API.Example.com.:443", "192.0.2.1:80", "[2001:DB8::1]:8080", "localhost:1"])
                .expect("hosts");
        assert_eq!(
            policy.allowed_hosts(),
            ["api.example.com:443", "192.0.2.1:80", "[2001:db8::1]:8080", "localhost:1"]
        );
        for host in ["api.example.com:443", "API.EXAMPLE.COM:443", "192.0.2.1:80", "[2001:db8:0::1]:8080"] {
            policy.check_host_port(host).expect(host);
            HostPolicy::default().check_host_port(host).expect_err(host);
        }
        for host in [
            "api.example.com:444",
            "x.api.example.com:443",
            "example.com:443",
            "api.example.com",
            "api.example.com:",
            "192.0.2.1:81",
            "0xc0.0.2.1:80",
            "127.0.0.1:1",
            "a@api.example.com:443",
            "api.example.com:443/x",
            "",
            ":443",
        ] {
            let failure = policy.check_host_port(host).expect_err(host).failure();
            assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest));
            let Details::Granted { granted, .. } = failure.details else { panic!("{host}") };
            assert_eq!(granted, policy.allowed_hosts());
        }
    }

    #[test]
    fn what_is_no_host_is_no_policy() {
        for host in
            ["*:443", "*.example.com:443", "a.example:*", "a.example", "10.0.0.0/8:1", "@cargo", "", "a b:1"]
        {
            HostPolicy::new([host]).expect_err(host);
        }
    }

    #[test]
    fn urls_have_a_scheme_that_is_served_and_a_port() {
        let policy =
            HostPolicy::new(["a.example:443", "b.example:80", "c.example:8443", "[::1]:80"]).expect("hosts");
        for url in [
            "https://a.example",
            "https://a.example/x?y#z",
            "HTTPS://A.example:443/",
            "http://b.example",
            "https://c.example:8443/",
            "https://a.example:/",
            "http://[::1]:/",
            "http://c.example:8443/",
            "http://[::1]/",
        ] {
            policy.check_url(url).expect(url);
        }
        for (url, reason) in [
            ("http://a.example/", "not in"),
            ("https://b.example/", "not in"),
            ("https://a.example:80/", "not in"),
            ("https://a.example.evil.example/", "not in"),
            ("ftp://a.example:443/", NO_URL),
            ("ws://b.example/", NO_URL),
            ("file:///etc/passwd", NO_URL),
            ("a.example:443", NO_URL),
            ("/x", NO_URL),
            ("", NO_URL),
            ("https://", NO_URL),
            ("https://evil.example@a.example/", "user name"),
            ("https://a.example\\@evil.example/", NO_URL),
            ("https://a.example /", NO_URL),
            ("https://a.example:443:443/", "a"),
            ("https://a.example:65558/", "a port is"),
            ("https://a.example:99999/", "a port is"),
            ("https://a.example:443x/", "a port is"),
            ("https://a.example:-1/", "a port is"),
            ("https://a.example:+443/", "a port is"),
            ("https://a.example:0/", "a port is"),
            ("http://[::1]:x/", "a port is"),
            ("http://[::1]x/", ""),
            ("https://a.exa%6dple/", "a"),
            ("https://a.example\n/", NO_URL),
        ] {
            let said = policy.check_url(url).expect_err(url).failure();
            assert_eq!(said.class, Class::CapabilityDenied);
            assert!(said.message.contains(reason) || url.contains("443:443"), "{url}: {}", said.message);
        }
    }
}
