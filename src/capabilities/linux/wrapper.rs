//! Wraps commands by their capabilities, and decides which session each command runs in.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;
use tokio::runtime::Handle;

use crate::caller::runtime::Directory;
use crate::capabilities::linux::granted::Granted;
use crate::capabilities::linux::kept::{KeptSessions, Key, Served, SessionPath};
use crate::capabilities::linux::plain::PlainCommand;
use crate::capabilities::linux::policy::policy;
use crate::capabilities::linux::{plain, policy};
use crate::capabilities::run_limits::RunLimits;
use crate::capabilities::{Capabilities, Layer, run_limits};
use crate::report::error::Error;
use crate::report::error::listen::ListenError;
use crate::report::outcome::Output;
use crate::serve::call::ClientEnvironment;
use crate::serve::place::sweep;
use crate::session::Session;
use crate::sys::locked;
use crate::view::{secrets, toolchains};

/// The subdirectory for sockets. It is separate from the sockets of named sessions, because users do not name
/// these.
const DIRECTORY: &str = "wrapped";

/// How many times to try another name, if another process has taken one.
const ATTEMPTS: u32 = 16;

/// The number of the next session. This process never reuses a number: a command of an ended session must not
/// reach another session, which may grant more.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Wraps commands, and keeps the sessions that they run in.
///
/// The command is a plain `tokio` command: set its standard descriptors and spawn it as any other. If a layer
/// of the operating system is needed, the program of the command is a small client. The client passes
/// descriptors, environment, directory and signals to a session and ends with the command's status. Killing
/// the client kills the command. The command is confined however it is spawned.
///
/// The wrapper prepares a session for the first command, and uses it for all commands with the same
/// capabilities, directory and runtime. If they have no network, these commands share a loopback. The runtime
/// that prepared a session serves it, and the session ends with that runtime. The wrapper keeps at most 16
/// idle sessions and ends the least recently used ones beyond that. If a session ends before its command is
/// spawned, the command prints an error and exits with status 125; it never runs unconfined. All sessions end
/// with the wrapper, and with the process, even if the process is killed. A killed process leaves sockets in
/// its runtime directory; the next process that uses the directory removes them.
///
/// ```
/// use kennel::capabilities::{Capabilities, Layer, Wrapper};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wrapper = Wrapper::new();
/// let caps = Capabilities { net: false, ..Capabilities::default() };
/// # let dir = tempfile::tempdir()?;
/// let (mut command, layer) = wrapper.wrap("sh", ["-c", "echo confined; touch /usr/x"], &dir, &caps).await?;
/// let output = command.output().await?;
/// assert_eq!((output.stdout.as_slice(), layer), (&b"confined\n"[..], Layer::LinuxNamespaces));
/// assert!(!output.status.success());
/// wrapper.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Wrapper {
    /// The directory for sockets; `None` for the usual one.
    directory: Option<PathBuf>,
    kept: Mutex<KeptSessions>,
    /// Whether a sandbox was tested here and confined its command. It never becomes false again, because each
    /// session tests anew.
    proven: AtomicBool,
    swept: AtomicBool,
}

impl Default for Wrapper {
    fn default() -> Self {
        Self::new()
    }
}

impl Wrapper {
    /// A wrapper with its sockets in `$XDG_RUNTIME_DIR/kennel/wrapped`, or `/tmp/kennel-UID/wrapped`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            directory: None,
            kept: Mutex::new(KeptSessions::new()),
            proven: AtomicBool::new(false),
            swept: AtomicBool::new(false),
        }
    }

    /// A wrapper with its sockets in `directory`, which only you may be able to enter. Kennel creates it if
    /// it does not exist, but not its parents. Capabilities that let commands write there are an error.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..Self::new() }
    }

    /// The strongest layer of this host for `caps`. [`Layer::Lightweight`] if they need no more. Otherwise a
    /// layer that Kennel has tested here, or [`Layer::None`] if this host cannot enforce them.
    ///
    /// The first call attempts attacks that a sandbox must stop, which blocks for a few dozen milliseconds.
    /// Kennel remembers a success, because [`wrap`](Self::wrap) tests it each time. It does not remember a
    /// failure.
    #[must_use]
    pub fn resolve_layer(&self, caps: &Capabilities) -> Layer {
        if !caps.engages_layer() {
            return Layer::Lightweight;
        }
        if !self.proven.load(Relaxed) && policy::is_confined() {
            self.proven.store(true, Relaxed);
        }
        if self.proven.load(Relaxed) { Layer::LinuxNamespaces } else { Layer::None }
    }

    /// Returns a command that runs `program` in the directory `cwd`, confined to `caps`, and the layer that
    /// enforces this.
    ///
    /// Kennel searches the PATH of the command for a `program` without a slash. You can change the
    /// environment of the returned command before you spawn it, and the program gets exactly that
    /// environment. `tokio` sets up its descriptors.
    ///
    /// It is async and can fail, because it prepares the sandbox: what cannot be granted is an error here,
    /// before anything runs.
    ///
    /// # Errors
    /// A directory or path does not exist; a program or argument cannot be passed to a process; this host
    /// lacks a protection (the error has the remedy). Nothing runs unconfined then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled, if a layer of the operating system is used.
    pub async fn wrap(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        cwd: impl AsRef<Path>,
        caps: &Capabilities,
    ) -> Result<(Command, Layer), Error> {
        let wanted = PlainCommand::new(program.as_ref(), args, cwd.as_ref(), caps)?;
        let Some(granted) = &wanted.granted else {
            return Ok((plain::command(&wanted).into(), Layer::Lightweight));
        };
        let way = self.way(granted, &wanted).await?;
        let mut command = Command::new(&way.client);
        command.arg(&way.socket).arg("--").arg(&wanted.program).args(&wanted.arguments);
        command.current_dir(&wanted.cwd.path).env_clear().envs(&wanted.environment);
        Ok((command, Layer::LinuxNamespaces))
    }

    /// Runs `program` to its end, confined to `caps` and `limits`, without input, and collects its output.
    /// Dropping the future kills it.
    ///
    /// If no layer of the operating system is needed, there is no enforcement to report, and Kennel kills
    /// only the rest of the command's process group at the end. A layer of the operating system kills every
    /// process.
    ///
    /// # Errors
    /// Those of [`wrap`](Self::wrap); limits that are invalid in a policy
    /// ([`PolicyError`](crate::report::error::policy::PolicyError)); anything that keeps the program from
    /// running. Without a layer of the operating system, [`Error::Io`] if the embedding program ignores
    /// SIGCHLD or sets `SA_NOCLDWAIT`: the kernel then discards the status of a child, even after the program
    /// has run.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        cwd: impl AsRef<Path>,
        caps: &Capabilities,
        limits: &RunLimits,
    ) -> Result<(Output, Layer), Error> {
        limits.limits().check()?;
        let wanted = PlainCommand::new(program.as_ref(), args, cwd.as_ref(), caps)?;
        let Some(granted) = &wanted.granted else {
            let output = run_limits::run(plain::command(&wanted), &wanted.program, limits).await?;
            return Ok((output, Layer::Lightweight));
        };
        let SessionPath { session, .. } = self.way(granted, &wanted).await?;
        let mut command = session.command(&wanted.program);
        command.args(&wanted.arguments).current_dir(&wanted.cwd.path).limits(limits.limits());
        command.replace_environment(wanted.environment);
        Ok((command.output().await?, Layer::LinuxNamespaces))
    }

    /// The number of sessions that it keeps.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.kept_sessions().len()
    }

    /// Ends all sessions and everything that runs in them, and waits until nothing of them is left. The next
    /// command gets a new session.
    pub async fn shutdown(&self) {
        let all = self.kept_sessions().take();
        for served in all {
            served.end().await;
        }
    }

    /// The session for these grants: a kept one, or a new one.
    async fn way(&self, granted: &Granted, wanted: &PlainCommand) -> Result<SessionPath, Error> {
        let value = |name| wanted.caller.variable(name).map(|value| (name, value.to_owned()));
        let key = Key {
            granted: granted.clone(),
            runtime: Handle::current().id(),
            deciding: toolchains::deciding_variables().filter_map(value).collect(),
            secrets: secrets::secrets_below(granted.paths(), &wanted.caller),
        };
        if let Some(way) = self.kept_sessions().find(&key) {
            return Ok(way);
        }
        // Create it before the session, so that the session hides it, even inside a granted directory.
        let directory = self.place()?;
        let session = Session::prepare(&policy(granted)).await?;
        let served = Self::serve(&directory, key.clone(), &session)?;
        self.proven.store(true, Relaxed);
        let gone = self.kept_sessions().keep(served);
        // Drop them without holding the lock: dropping a session may take it.
        drop(gone);
        self.kept_sessions().find(&key).ok_or(Error::SessionEnded)
    }

    /// Makes a session serve clients, under a name that was never used before.
    fn serve(directory: &Path, key: Key, session: &Session) -> Result<Served, Error> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            match session.listen_to(directory, &name, ClientEnvironment::Environment) {
                Err(Error::Listen(ListenError::Running { .. })) if attempts.next().is_some() => {}
                listening => {
                    let served = Served::new(key, session, listening?);
                    return served.is_executable().map(|()| served);
                }
            }
        }
    }

    /// The directory for sockets. The first call removes what killed processes have left there.
    fn place(&self) -> Result<PathBuf, Error> {
        let directory = match &self.directory {
            Some(directory) => directory.clone(),
            None => {
                let above = Directory::default_path();
                Directory::make(&above)?;
                above.join(DIRECTORY)
            }
        };
        if !self.swept.swap(true, Relaxed)
            && let Err(error) = sweep(&directory)
        {
            tracing::debug!(%error, "cannot remove sockets of killed processes");
        }
        Ok(directory)
    }

    fn kept_sessions(&self) -> MutexGuard<'_, KeptSessions> {
        locked(&self.kept)
    }
}

impl Served {
    /// Checks that the client can be executed: a runtime directory may be on a file system that is mounted
    /// noexec.
    fn is_executable(&self) -> Result<(), Error> {
        let client = self.client();
        access(client, AccessFlags::X_OK).map_err(|errno| Error::Grant {
            what: "client",
            path: client.to_owned(),
            source: errno.into(),
            remedy: Some(
                "set XDG_RUNTIME_DIR to a directory on a file system that is not mounted noexec".into(),
            ),
        })
    }
}

// The shared wrapper of the process.

/// The wrapper of [`wrap_command`] and the other free functions. All commands of the process with the same
/// capabilities share its sessions.
static SHARED: Wrapper = Wrapper::new();

/// The strongest layer of this host for `caps`; see [`Wrapper::resolve_layer`].
///
/// ```
/// use kennel::capabilities::{Capabilities, Layer};
///
/// assert_eq!(kennel::capabilities::resolve_layer(&Capabilities::default()), Layer::Lightweight);
/// let caps = Capabilities { net: false, ..Capabilities::default() };
/// if kennel::capabilities::resolve_layer(&caps) == Layer::None {
///     eprintln!("this host cannot keep a command from the network; kennel probe says why");
/// }
/// ```
#[must_use]
pub fn resolve_layer(caps: &Capabilities) -> Layer {
    SHARED.resolve_layer(caps)
}

/// Returns a command confined to `caps`, and the layer that enforces this; see [`Wrapper::wrap`]. All callers
/// in the process share one wrapper and its sessions. To decide when sessions end, use your own [`Wrapper`].
///
/// It is async and can fail, because it prepares the sandbox: what cannot be granted is an error here, before
/// anything runs.
///
/// ```
/// use kennel::capabilities::{Capabilities, Layer, wrap_command};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut command, layer) = wrap_command("pwd", ["-P"], "/usr", &Capabilities::default()).await?;
/// assert_eq!(layer, Layer::Lightweight);
/// assert_eq!(command.output().await?.stdout, b"/usr\n");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Wrapper::wrap`].
///
/// # Panics
/// As [`Wrapper::wrap`].
pub async fn wrap_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
) -> Result<(Command, Layer), Error> {
    SHARED.wrap(program, args, cwd, caps).await
}

/// Runs a command to its end, confined to `caps` and `limits`; see [`Wrapper::run`] and [`wrap_command`].
///
/// ```
/// use kennel::capabilities::{Capabilities, RunLimits};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), kennel::Error> {
/// let limits = RunLimits { timeout: Some(Duration::from_millis(50)), ..RunLimits::default() };
/// let caps = Capabilities::default();
/// let (output, _) = kennel::capabilities::run_command("sleep", ["60"], "/", &caps, &limits).await?;
/// assert_eq!(output.outcome.exit_code(), 124);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Wrapper::run`].
///
/// # Panics
/// As [`Wrapper::run`].
pub async fn run_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
    limits: &RunLimits,
) -> Result<(Output, Layer), Error> {
    SHARED.run(program, args, cwd, caps, limits).await
}
