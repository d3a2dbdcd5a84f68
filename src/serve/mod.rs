//! A listening session: other processes of the same user run commands in it through a socket, in a directory
//! that no other user can enter. The session checks each peer and each request before it acts.

pub(crate) mod accept;
mod answering;
pub(crate) mod call;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod detached;
pub(crate) mod directory;
pub(crate) mod place;
pub(crate) mod question;
pub(crate) mod serving;
pub(crate) mod shell;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::caller::runtime::{Directory, SessionName};
use crate::report::error::Error;
use crate::serve::accept::{Acceptor, AllowedPeer, NameGuard};
use crate::serve::call::ClientEnvironment;
use crate::serve::place::SocketPlace;
use crate::session::Session;
use crate::view::paths::symlink_check::check_socket_directory;

/// A session that listens under a name. Dropping this closes and removes the socket and kills the commands of
/// clients. The session stays usable through its other handles.
///
/// Clients are the small program [`client`](Self::client), `kennel exec`, and
/// [`Client`](crate::serve::client::Client).
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), Box<dyn std::error::Error>> {
/// let listening = session.listen("agent-1")?;
/// let mut client = std::process::Command::new(listening.client());
/// let status = client.arg(listening.socket()).args(["make", "test"]).status()?;
/// listening.stopped().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listening {
    place: Arc<SocketPlace>,
    client: PathBuf,
    task: AbortHandle,
    stopped: watch::Receiver<bool>,
}

impl Session {
    /// Lets other processes of this user run commands in this session, under a name: 1 to 64 of the
    /// characters `A-Z a-z 0-9 _ . -`, starting with a letter or digit.
    ///
    /// The socket is in `$XDG_RUNTIME_DIR/kennel`, or in `/tmp/kennel-UID` if that variable is not an
    /// absolute path. The session serves only processes of the same user and user namespace, so none in a
    /// sandbox. If the socket is removed, the session restores it within a second. If it cannot, because the
    /// directory is gone too, listening ends once no client is connected.
    ///
    /// # Errors
    /// The name is invalid, or a running session has it; or other users or commands of this session can write
    /// to the directory.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn listen(&self, name: &str) -> Result<Listening, Error> {
        self.listen_in(Directory::default_path(), name)
    }

    /// Like [`listen`](Self::listen), in another directory. It is created if it does not exist, but its
    /// parents are not.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    ///
    /// # Panics
    /// As [`listen`](Self::listen).
    pub fn listen_in(&self, directory: impl AsRef<Path>, name: &str) -> Result<Listening, Error> {
        self.listen_to(directory.as_ref(), name, ClientEnvironment::Variables)
    }

    pub(crate) fn listen_to(
        &self,
        directory: &Path,
        name: &str,
        environment: ClientEnvironment,
    ) -> Result<Listening, Error> {
        let name = SessionName::new(name)?;
        let directory = Directory::make(directory)?;
        check_socket_directory(&self.prepared().compiled.view, directory.path())?;
        let place = Arc::new(SocketPlace::take(directory, name)?);
        let listener = place.open()?.ok_or(Error::SessionEnded)?;
        let client = directory::install(place.directory())?;
        let allowed = AllowedPeer::ours().map_err(Error::io("look up this process's user namespace"))?;
        let (stopper, stopped) = watch::channel(false);
        let spare = listener.get_ref().try_clone().map_err(Error::io("open a spare descriptor"))?;
        let acceptor = Acceptor {
            listener,
            spare: Mutex::new(Some(spare)),
            place: NameGuard(Arc::clone(&place)),
            session: self.clone(),
            environment,
            allowed: Arc::new(allowed),
            stopped: stopper,
        };
        let task = tokio::spawn(acceptor.run()).abort_handle();
        Ok(Listening { place, client, task, stopped })
    }
}

impl Listening {
    /// Whether clients are still served. This ends when the session is stopped or the runtime ends.
    pub(crate) fn is_open(&self) -> bool {
        !self.task.is_finished()
    }

    /// The socket that clients connect to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.place.path()
    }

    /// The client program: `kennel-exec SOCKET [-C DIR] [--exit-code] [--] CMD [ARG…]` runs a command in the
    /// session with its own standard descriptors, directory and environment. It passes signals on and exits
    /// with the command's status. `DIR`, a path in the sandbox, replaces its working directory. It has 14 KB
    /// and starts in about 0.1 ms.
    ///
    /// The file is next to the socket. It cannot be executed if that file system is mounted `noexec`.
    #[must_use]
    pub fn client(&self) -> &Path {
        &self.client
    }

    /// Waits until a client ends the session, as `kennel session stop` does, or until it ends otherwise.
    pub async fn stopped(&self) {
        // The accept loop sends this at its end; only dropping this handle aborts it.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.place.leave();
        self.task.abort();
    }
}
