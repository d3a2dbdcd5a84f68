//! A port of the sandbox that programs outside can connect to: `[ADDR:]PORT[:INSIDE]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::report::published::PublishedPort;

/// The lowest port that a command can listen on: below, listening needs a privilege that no command has.
pub(crate) const LOWEST_INSIDE: u16 = 1024;

/// The most published ports of a sandbox: each has a descriptor and a task in the embedding program.
pub(crate) const MOST_PUBLISHED: usize = 100;

/// The form, for messages.
const FORM: &str =
    "expected PORT, PORT:INSIDE or ADDRESS:PORT:INSIDE, such as 8080, 8080:3000 or 127.0.0.1:8080:3000";

/// Where programs outside connect to, and the port of the sandbox that they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    /// On the host. With port 0, the kernel chooses one.
    pub(crate) outside: SocketAddr,
    /// A TCP port of the sandbox's loopback.
    pub(crate) inside: u16,
}

impl Publish {
    /// For a port that only the embedding program connects to.
    pub(crate) fn inward(inside: u16) -> Self {
        Self { outside: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), inside }
    }

    /// The port as people see it, before the kernel has chosen one.
    pub(crate) fn port(self) -> PublishedPort {
        PublishedPort { address: self.outside, inside: self.inside, chosen: self.outside.port() == 0 }
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.outside, self.inside)
    }
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Err("only TCP ports are published: write the number alone".to_owned());
        }
        let (address, ports) = split(text)?;
        let (port, inside) = match ports.split_once(':') {
            Some((port, inside)) => (number(port)?, number(inside)?),
            None => (number(ports)?, number(ports)?),
        };
        match inside {
            0 => {
                Err("name the port inside, as in 0:8080: 0 lets the kernel choose the one outside".to_owned())
            }
            inside if inside < LOWEST_INSIDE => Err(format!(
                "no command can listen below {LOWEST_INSIDE}: publish the port that the server has, as in {port}:8080"
            )),
            inside => Ok(Self { outside: SocketAddr::new(address, port), inside }),
        }
    }
}

/// The address, by default that of loopback, and the rest.
fn split(text: &str) -> Result<(IpAddr, &str), String> {
    let address = |text: &str| {
        let parsed = text.parse::<IpAddr>();
        parsed.map_err(|_| format!("`{text}` is no address: write one, such as 127.0.0.1, [::1] or 0.0.0.0"))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, ports) = rest.split_once("]:").ok_or(FORM)?;
        return Ok((address(inner)?, ports));
    }
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once(':') {
        Some((first, rest)) if !is_port(first) => {
            if first.is_empty() || rest.matches(':').count() > 1 {
                return Err(FORM.to_owned());
            }
            Ok((address(first)?, rest))
        }
        _ => Ok((Ipv4Addr::LOCALHOST.into(), text)),
    }
}

fn number(text: &str) -> Result<u16, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(FORM.to_owned());
    }
    text.parse().map_err(|_| format!("{text} is no port: the highest is {}", u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_says_what_it_means() {
        for (text, expected) in [
            ("8080", "127.0.0.1:8080:8080"),
            ("80:8080", "127.0.0.1:80:8080"),
            ("0:8080", "127.0.0.1:0:8080"),
            ("127.0.0.1:8080", "127.0.0.1:8080:8080"),
            ("0.0.0.0:80:8080", "0.0.0.0:80:8080"),
            ("[::1]:8080:3000", "[::1]:8080:3000"),
            ("[::1]:8080", "[::1]:8080:8080"),
            ("65535:1024", "127.0.0.1:65535:1024"),
        ] {
            let publish: Publish = text.parse().expect(text);
            assert_eq!(publish.to_string(), expected);
            assert_eq!(publish.to_string().parse(), Ok(publish), "its own text means the same");
        }
    }

    #[test]
    fn what_is_no_port_is_refused_in_words() {
        for (text, words) in [
            ("", "expected PORT"),
            (":", "expected PORT"),
            (":8080", "expected PORT"),
            ("8080:", "expected PORT"),
            ("+8080", "expected PORT"),
            ("8080:8081:8082", "expected PORT"),
            ("1:2:3:4", "expected PORT"),
            ("::1:8080:80", "expected PORT"),
            ("[::1]8080", "expected PORT"),
            ("[::1]", "expected PORT"),
            ("[x]:8080", "no address"),
            ("-1", "expected PORT"),
            (" 8080", "expected PORT"),
            ("70000", "70000 is no port"),
            ("8080:65536", "65536 is no port"),
            ("localhost:8080", "`localhost` is no address"),
            ("*:8080", "`*` is no address"),
            ("127.1:8080", "`127.1` is no address"),
            ("8080/udp", "only TCP"),
            ("0", "name the port inside"),
            ("8080:0", "name the port inside"),
            ("80", "below 1024"),
            ("8080:80", "below 1024"),
            ("８０８０", "expected PORT"),
        ] {
            let error = text.parse::<Publish>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
