//! A session that listens: other processes of the same user run commands in it, through a socket in a directory that
//! nobody else can enter. Who connects, and what it says, is checked before anything is done for it.

pub(crate) mod accept;
pub(crate) mod call;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod directory;
pub(crate) mod install;
pub(crate) mod place;
pub(crate) mod serving;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::report::error::Error;
use crate::serve::accept::{Acceptor, AllowedPeer, Leaving};
use crate::serve::directory::{Directory, Name};
use crate::serve::place::SocketPlace;
use crate::session::Session;
use crate::view::symlink_check::sockets_out_of_reach;

/// What clients may bring along to their commands, besides descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientEnvironment {
    /// Variables, as far as the policy allows.
    Variables,
    /// All variables, and commands get no others: the program that starts the clients decides about them.
    Environment,
    /// Nothing: commands have the environment of the session.
    Nothing,
}

/// A session that listens under a name. Dropping this closes and removes the socket, and kills the commands that run for
/// clients; the session itself lives on in its other handles.
///
/// Clients are the small program [`client`](Self::client), `kennel exec`, and [`Client`](crate::serve::client::Client).
///
/// ```no_run
/// # async fn example(session: kennel::Session) -> Result<(), Box<dyn std::error::Error>> {
/// let listening = session.listen("agent-1")?;
/// let status = std::process::Command::new(listening.client()).arg(listening.socket()).args(["make", "test"]).status()?;
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
    /// Lets other processes of this user run commands in this session, under a name: one to 64 of the characters
    /// `A-Z a-z 0-9 _ . -`, the first of them a letter or digit.
    ///
    /// The socket lies in `$XDG_RUNTIME_DIR/kennel`, or in `/tmp/kennel-UID` if that variable is not an absolute path.
    /// Only processes of the same user and user namespace are served, so none in a sandbox. A socket that somebody
    /// removes is put back within a second. Where that cannot be, since the directory is gone too, this ends when the
    /// last command of a client has.
    ///
    /// # Errors
    /// An invalid name, or one that a running session has; a directory that other users or commands of this session can
    /// write to.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn listen(&self, name: &str) -> Result<Listening, Error> {
        self.listen_in(Directory::usual(), name)
    }

    /// As [`listen`](Self::listen), in another directory. It is created if it does not exist, but not its parents.
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
        brings: ClientEnvironment,
    ) -> Result<Listening, Error> {
        let name = Name::new(name)?;
        let directory = Directory::make(directory)?;
        sockets_out_of_reach(&self.compiled().view, directory.path())?;
        let place = Arc::new(SocketPlace::take(directory, name)?);
        let listener = place.open()?.ok_or(Error::SessionEnded)?;
        let client = install::install(place.directory())?;
        let welcome = AllowedPeer::ours().map_err(Error::io("look at our user namespace"))?;
        let (stopper, stopped) = watch::channel(false);
        let spare = listener.get_ref().try_clone().map_err(Error::io("keep a descriptor in reserve"))?;
        let door = Acceptor {
            listener,
            spare: Mutex::new(Some(spare)),
            place: Leaving(Arc::clone(&place)),
            session: self.clone(),
            brings,
            welcome,
            stopped: stopper,
        };
        let task = tokio::spawn(door.keep()).abort_handle();
        Ok(Listening { place, client, task, stopped })
    }
}

impl Listening {
    /// Whether clients are still served: not after it was stopped, or its runtime has ended.
    pub(crate) fn is_open(&self) -> bool {
        !self.task.is_finished()
    }

    /// The socket that clients connect to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.place.path()
    }

    /// The client: `kennel-exec SOCKET [-C DIR] [--] CMD [ARG…]` runs a command in the session, with its own standard
    /// descriptors, directory and environment, passes signals on, and ends with the command's status. 14 KB, started in
    /// about 0.1 ms. `DIR`, a path in the sandbox, replaces its own directory.
    ///
    /// It lies beside the socket, and cannot be executed if that file system is mounted `noexec`.
    #[must_use]
    pub fn client(&self) -> &Path {
        &self.client
    }

    /// Waits until a client has ended the session, as `kennel session stop` does, or it has ended otherwise.
    pub async fn stopped(&self) {
        // The task that sends it ends after that, or is aborted by nobody but the drop of this.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.place.leave();
        self.task.abort();
    }
}
