//! Ports of a listening session, for its clients.

use std::io;

use kennel_helper::client_wire::{Answer, Ask, LONGEST_ANSWER};
use kennel_helper::wire::{Cursor, Field};

use crate::report::error::Error;
use crate::report::published::PublishedPort;
use crate::serve::client::{Client, refused};
use crate::sys::packet;

impl Client {
    /// Publishes a port of the session: `[ADDR:]PORT[:INSIDE]`; see
    /// [`Session::publish`](crate::session::Session::publish).
    ///
    /// ```no_run
    /// # fn example() -> Result<(), kennel::Error> {
    /// let port = kennel::Client::connect("agent-1")?.publish("0:8000")?;
    /// println!("http://{}/", port.address);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The session refuses it, with its reason, or ends, or does not answer.
    pub fn publish(self, port: &str) -> Result<PublishedPort, Error> {
        let length = u32::try_from(port.len()).map_err(|_| self.failed(io::ErrorKind::InvalidInput))?;
        let mut packet = Vec::new();
        Ask::Publish { length }.put(&mut packet);
        packet.extend_from_slice(port.as_bytes());
        self.ports(&packet)?.into_iter().next().ok_or_else(|| self.gone())
    }

    /// Asks the session for its published ports.
    ///
    /// # Errors
    /// The session ends or does not answer.
    pub fn published(self) -> Result<Vec<PublishedPort>, Error> {
        let mut packet = Vec::new();
        Ask::Ports {}.put(&mut packet);
        self.ports(&packet)
    }

    /// Sends a request that is answered with ports.
    fn ports(&self, request: &[u8]) -> Result<Vec<PublishedPort>, Error> {
        self.limit_waits()?;
        packet::send(&self.socket, request, &[]).map_err(|error| self.failed(error))?;
        let packet = packet::receive(&self.socket, LONGEST_ANSWER).map_err(|error| self.failed(error))?;
        match Answer::take(&mut Cursor::new(&packet.bytes)) {
            Some(Answer::Published { ports }) => serde_json::from_slice(ports).map_err(|_| self.gone()),
            Some(Answer::Ended { message, .. }) => Err(refused(message)),
            _ => Err(self.gone()),
        }
    }
}
