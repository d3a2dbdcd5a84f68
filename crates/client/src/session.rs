//! A sandbox on a server: its commands, its life and its end.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::command::Command;
use crate::error::Error;
use crate::sandbox::seconds;
use crate::server::{Call, Server, encoded};

/// How long it is asked what became of a session whose stream broke off, and how often.
const LOOK: Duration = Duration::from_secs(2);
const LOOKS: u32 = 20;

/// The longest answer of a call that is not for contents, in bytes.
pub(crate) const LONGEST: usize = 64 << 20;

/// A sandbox on a server, with the calls of a local `kennel::Session`.
///
/// Its commands share their processes, `/tmp` and network, as on one machine. They begin in a directory of
/// the sandbox's own, in which the relative paths of [files](Session#files-of-a-session) begin, too.
///
/// A clone is the same session. Dropping the last clone of one that this program has
/// [created](crate::Sandbox::create) ends it: a task of the runtime tells the server, which ends it by itself
/// after its [life](crate::Sandbox::life) if that task does not get that far. [`end`](Self::end) waits for
/// that, and [`leave`](Self::leave) keeps the sandbox.
///
/// ```no_run
/// # async fn example(server: kennel_client::Server) -> Result<(), kennel_client::Error> {
/// let session = server.sandbox().create().await?;
/// session.write("notes.txt", b"remember the milk\n").await?;
/// let out = session.command("wc").arg("notes.txt").output().await?;
/// println!("{} {}", out.outcome.status, String::from_utf8_lossy(&out.stdout));
/// session.end().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Session(Arc<Owner>);

/// Ends the session with its last handle, unless it is to stay. Commands hold only `access`.
#[derive(Debug)]
struct Owner {
    access: Access,
    is_kept: AtomicBool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !*self.is_kept.get_mut() {
            let access = self.access.clone();
            self.access.spawn(async move { access.end().await });
        }
    }
}

impl Session {
    pub(crate) fn of(server: Server, made: Made, is_owned: bool) -> Self {
        let (runtime, id, token) = (Handle::current(), made.id, made.token);
        let access = Access { server, runtime, id: id.into(), token: token.into() };
        Self(Arc::new(Owner { access, is_kept: AtomicBool::new(!is_owned) }))
    }

    pub(crate) async fn attach(server: Server, id: &str) -> Result<Self, Error> {
        let call = server.call(Method::GET, &format!("/sandboxes/{}", encoded(id)));
        let made = server.ask(call, Made::LONGEST).await?;
        Ok(Self::of(server, made, false))
    }

    pub(crate) fn access(&self) -> &Access {
        &self.0.access
    }

    /// Its name on the server, for [`Server::attach`].
    #[must_use]
    pub fn id(&self) -> &str {
        &self.access().id
    }

    /// A command to run in this session. A `program` without a slash is searched in PATH, in the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(self.access().clone(), program.as_ref())
    }

    /// Sets the time after which the server ends the session, from now.
    ///
    /// # Errors
    /// [`Error::SessionLost`].
    pub async fn renew(&self, life: Duration) -> Result<(), Error> {
        self.access().control(Method::POST, "/timeout", &json!({ "timeout": seconds(life) })).await
    }

    /// Ends its processes and keeps the files of its directory, for 30 days. Until [`resume`](Self::resume),
    /// commands and files are [refused](Error::Refused).
    ///
    /// # Errors
    /// [`Error::SessionLost`].
    pub async fn pause(&self) -> Result<(), Error> {
        self.access().control(Method::POST, "/pause", &json!({ "memory": false })).await
    }

    /// Lets a paused session take commands again; of one that runs, a later end counts.
    ///
    /// # Errors
    /// [`Error::SessionLost`].
    pub async fn resume(&self, life: Duration) -> Result<(), Error> {
        self.access().control(Method::POST, "/connect", &json!({ "timeout": seconds(life) })).await
    }

    /// Ends the session, with its processes and files, for all who use it. Idempotent.
    ///
    /// # Errors
    /// The server cannot be asked; it ends the session after its life.
    pub async fn end(&self) -> Result<(), Error> {
        match self.access().end().await {
            Ok(()) | Err(Error::SessionLost { .. }) => {
                self.0.is_kept.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the session live on without this program, until its life is over, and returns its id.
    #[must_use]
    pub fn leave(self) -> String {
        self.0.is_kept.store(true, Ordering::Relaxed);
        self.id().to_owned()
    }
}

/// What opens a sandbox. Does not keep it.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) server: Server,
    runtime: Handle,
    id: Arc<str>,
    token: Arc<str>,
}

/// The token is a secret.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("server", &self.server).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Access {
    /// A call for files and commands.
    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        Call::new(method, path).header("e2b-sandbox-id", &self.id).header("x-access-token", &self.token)
    }

    /// A call with JSON in and out.
    pub(crate) async fn unary<T: DeserializeOwned>(&self, name: &str, body: &Value) -> Result<T, Error> {
        self.server.ask(self.call(Method::POST, name).json(body), LONGEST).await
    }

    /// A call of Kennel's own, with JSON out.
    pub(crate) async fn own<T: DeserializeOwned>(
        &self,
        method: Method,
        name: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let call = self.server.call(method, &format!("/v1/sandboxes/{}{name}", encoded(&self.id)));
        self.server.ask(if body.is_null() { call } else { call.json(body) }, LONGEST).await
    }

    /// A call about its life.
    async fn control(&self, method: Method, name: &str, body: &Value) -> Result<(), Error> {
        let call = self.server.call(method, &format!("/sandboxes/{}{name}", encoded(&self.id)));
        self.server.read(call.json(body), LONGEST).await.map(|_| ())
    }

    /// The same with another deadline.
    pub(crate) fn with_deadline(mut self, deadline: Duration) -> Self {
        self.server = self.server.deadline(deadline);
        self
    }

    async fn end(&self) -> Result<(), Error> {
        let call = self.server.call(Method::DELETE, &format!("/sandboxes/{}", encoded(&self.id)));
        self.server.read(call.idempotent(), LONGEST).await.map(|_| ())
    }

    /// Why a stream of it broke off: its end, or else `error`.
    pub(crate) async fn verdict(&self, error: Error) -> Error {
        let once = self.server.clone().patience(Duration::ZERO).deadline(LOOK);
        for _ in 0..LOOKS {
            match once.read(self.call(Method::GET, "/health"), LONGEST).await {
                Err(lost @ Error::SessionLost { .. }) => return lost,
                // Its host may just have died, and the server not know that yet.
                Err(Error::Refused { status: 502, .. }) => sleep(LOOK / LOOKS).await,
                _ => break,
            }
        }
        error
    }

    /// Does what nobody waits for. Its failure is the server's to clean up: everything there has an end.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) {
        self.runtime.spawn(task);
    }
}

/// What the server tells about a sandbox.
#[derive(Deserialize)]
pub(crate) struct Made {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "envdAccessToken")]
    token: String,
}

impl Made {
    /// The longest such answer, in bytes.
    pub(crate) const LONGEST: usize = 1 << 20;
}
