//! The tool `publish`: a server of the sandbox becomes reachable on this machine.
//!
//! The address is always loopback and the kernel chooses the port, so no call can take a port that somebody
//! expects another program at. A person chooses both with `--publish`.

use kennel::Session;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use crate::mcp::answer::{Answer, answer, failed};

/// The arguments of `publish`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    /// The TCP port of the server in the sandbox, from 1024 on. It listens on 127.0.0.1, ::1 or every
    /// address.
    port: u16,
}

/// The result of `publish`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PublishResult {
    /// Where programs of this machine connect to.
    address: String,
    /// The address as a URL, if the server speaks HTTP.
    url: String,
}

impl Publish {
    pub(crate) fn call(&self, session: &Session) -> Answer {
        let known = session.published().into_iter().find(|known| known.inside == self.port);
        let published = match known {
            Some(known) => known,
            None => session.publish(format!("127.0.0.1:0:{}", self.port)).map_err(|error| failed(&error))?,
        };
        let (address, url) = (published.address.to_string(), format!("http://{}/", published.address));
        let text =
            format!("port {} of the sandbox is {url} on this machine, until this server ends", self.port);
        Ok(answer(text, &PublishResult { address, url }))
    }
}
