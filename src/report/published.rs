//! A published port, for people and programs.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A port of a sandbox that programs outside can connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PublishedPort {
    /// Where they connect to, on the host.
    pub address: SocketAddr,
    /// The TCP port of the sandbox's loopback that they reach.
    pub inside: u16,
    /// Whether the kernel chose the port of the host.
    pub chosen: bool,
}

/// As in `127.0.0.1:8080->3000`.
impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.address, self.inside)
    }
}
