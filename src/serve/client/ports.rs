//! Ports of a listening session, for its clients.

use std::net::TcpStream;

use crate::report::error::Error;
use crate::report::published::PublishedPort;
use crate::serve::client::Client;
use crate::serve::question::Question;

impl Client {
    /// Publishes a port of the session: `[ADDR:]PORT[:INSIDE]`; see
    /// [`Session::publish`](crate::session::Session::publish).
    ///
    /// ```no_run
    /// # fn example() -> Result<(), kennel::Error> {
    /// let port = kennel::client::Client::connect("agent-1")?.publish("0:8000")?;
    /// println!("http://{}/", port.address);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The session refuses it, with its reason, or ends, or does not answer.
    pub fn publish(self, port: &str) -> Result<PublishedPort, Error> {
        self.question(&Question::Publish { port: port.to_owned() })
    }

    /// Asks the session for its published ports.
    ///
    /// # Errors
    /// The session ends or does not answer.
    pub fn published(self) -> Result<Vec<PublishedPort>, Error> {
        self.question(&Question::Published)
    }

    /// Connects to a server that a command of the session started, on this port of the session's loopback.
    /// Nothing is published; see [`Session::connect`](crate::session::Session::connect).
    ///
    /// # Errors
    /// Nothing listens there; the session has the network of the host, ends, or does not answer.
    pub fn connect_port(self, port: u16) -> Result<TcpStream, Error> {
        let ((), socket) = self.reply_to(&Question::Connect { port })??;
        Ok(socket.ok_or_else(|| self.gone())?.into())
    }
}
