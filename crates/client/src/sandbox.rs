//! A sandbox to make: what the client asks for within a template of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use crate::error::Error;
use crate::server::Server;
use crate::session::{Made, Session};
use crate::unless_dropped;

/// A sandbox to make, from [`Server::sandbox`]. What it says can only narrow the template.
///
/// ```no_run
/// # async fn example(server: kennel_client::Server) -> Result<(), kennel_client::Error> {
/// use std::time::Duration;
///
/// let session = server.sandbox().life(Duration::from_secs(3600)).no_network().create().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until `create`"]
pub struct Sandbox {
    server: Server,
    template: Option<String>,
    life: Option<Duration>,
    variables: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
    allowed: Vec<String>,
    is_closed: bool,
}

impl Sandbox {
    pub(crate) fn new(server: Server) -> Self {
        let (variables, metadata) = Default::default();
        Self {
            server,
            template: None,
            life: None,
            variables,
            metadata,
            allowed: Vec::new(),
            is_closed: false,
        }
    }

    /// Sets the template. Default: `base`.
    pub fn template(mut self, name: impl Into<String>) -> Self {
        self.template = Some(name.into());
        self
    }

    /// Sets the time after which the server ends the sandbox, unless it is [renewed](Session::renew).
    /// Default: five minutes.
    pub fn life(mut self, life: Duration) -> Self {
        self.life = Some(life);
        self
    }

    /// Sets a variable of its commands.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Adds a note, by which lists of sandboxes can be filtered.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Takes the network away, but for hosts that are [allowed](Self::allow_host) here.
    pub fn no_network(mut self) -> Self {
        self.is_closed = true;
        self
    }

    /// Allows this host, and of the others in the template's policy only those that are named this way.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.allowed.push(host.into());
        self
    }

    /// Makes it. If the future is dropped, the sandbox ends.
    ///
    /// # Errors
    /// [`Error::Refused`]: 404 or 403 for the template, 400 for what it does not allow, 429 or 503 if there
    /// is no room within [`Server::patience`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn create(self) -> Result<Session, Error> {
        let mut body =
            json!({ "envVars": self.variables, "metadata": self.metadata, "network": self.network() });
        if let Some(template) = self.template {
            body["templateID"] = template.into();
        }
        if let Some(life) = self.life {
            body["timeout"] = seconds(life).into();
        }
        unless_dropped(async move {
            let call = self.server.call(Method::POST, "/v2/sandboxes").json(&body).with_key();
            let made: Made = self.server.ask(call, Made::LONGEST).await?;
            Ok(Session::of(self.server, made, true))
        })
        .await
    }

    fn network(&self) -> serde_json::Value {
        let denied: &[&str] = if self.is_closed { &["0.0.0.0/0"] } else { &[] };
        json!({ "allowOut": self.allowed, "denyOut": denied })
    }
}

/// Whole seconds, at least as long.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}
