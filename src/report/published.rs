//! A published port, for people and programs.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::report::enforcement::Note;

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

impl PublishedPort {
    /// The note about a port that programs of other machines can connect to, too.
    #[must_use]
    pub fn note(&self) -> Option<Note> {
        let Self { address, inside, .. } = self;
        let is_public = !address.ip().to_canonical().is_loopback();
        let remedy = "leave out the address to publish it on this machine only";
        let subject = format!("publish {address}:{inside}");
        is_public.then(|| Note::new(&subject, "other machines can connect to it", Some(remedy.into())))
    }
}

/// As in `127.0.0.1:8080->3000`.
impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.address, self.inside)
    }
}
