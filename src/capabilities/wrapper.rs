//! The way from capabilities to a command. Decides which session a command runs in; makes no policy.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;
use tokio::runtime::Handle;

use crate::capabilities::granted::Granted;
use crate::capabilities::kept::{KeptSessions, Key, Served, SessionPath};
use crate::capabilities::plain::PlainCommand;
use crate::capabilities::policy::policy;
use crate::capabilities::run::RunLimits;
use crate::capabilities::{Capabilities, Layer, plain, policy, run};
use crate::report::error::Error;
use crate::report::listen_error::ListenError;
use crate::report::outcome::Output;
use crate::serve::ClientEnvironment;
use crate::serve::directory::Directory;
use crate::serve::place::sweep;
use crate::session::Session;
use crate::sys::locked;
use crate::view::{secrets, toolchains};

/// The directory below the one of named sessions: these are nobody's to name.
const DIRECTORY: &str = "wrapped";

/// How often to try another name, where a foreign process has taken one.
const ATTEMPTS: u32 = 16;

/// Numbers of sessions are never given out again in this process: a command of a session that is gone must not reach
/// another one, which may grant more.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Wraps commands, and keeps the sessions that they run in.
///
/// The command is a plain `tokio` one, to be given standard descriptors and spawned as any other. If a layer of the
/// operating system is used, its program is a small client that passes descriptors, environment, directory and signals
/// on to a session and ends with the command's status; killing it kills the command. The command is confined however it
/// is spawned.
///
/// A session is prepared for the first command with the same capabilities, directory and runtime, and used for the
/// others, which share a loopback if they have no network. It is served by the runtime in which it was made, and ends
/// with it. At most 16 idle sessions are kept: beyond that, the least recently used ones are ended. A
/// command whose session has gone before it was spawned ends with status 125 and says so; it never runs unconfined. All
/// sessions end with the wrapper, and with the process, even if that is killed; the sockets that a killed process leaves in
/// its runtime directory are removed by the next one that looks there.
///
/// ```
/// use kennel::{Capabilities, Layer, Wrapper};
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
    /// Where its sockets lie; `None` for the usual place.
    directory: Option<PathBuf>,
    kept: Mutex<KeptSessions>,
    /// Whether a sandbox was tried here and held. It does not go back: that it is still so, each session proves anew.
    proven: AtomicBool,
    swept: AtomicBool,
}

impl Default for Wrapper {
    fn default() -> Self {
        Self::new()
    }
}

impl Wrapper {
    /// A wrapper whose sockets lie in `$XDG_RUNTIME_DIR/kennel/wrapped`, or `/tmp/kennel-UID/wrapped`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            directory: None,
            kept: Mutex::new(KeptSessions::new()),
            proven: AtomicBool::new(false),
            swept: AtomicBool::new(false),
        }
    }

    /// A wrapper whose sockets lie in a directory that only you can enter. It is created if it does not exist, but not its
    /// parents. Capabilities that would let commands write there are an error.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..Self::new() }
    }

    /// The strongest layer that this host has for `caps`: [`Layer::Lightweight`] if they need no other, otherwise one that
    /// was tried out. [`Layer::None`] if nothing here can enforce them.
    ///
    /// The first time it tries attacks that a sandbox must stop, which blocks for a few dozen milliseconds. A yes is
    /// remembered, because [`wrap`](Self::wrap) proves it each time; a no is not.
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

    /// A command that runs `program` in the directory `cwd`, held to `caps`, and the layer that holds it.
    ///
    /// A `program` without a slash is looked for in the PATH that the command gets. Its environment is the command's own:
    /// it can be changed before spawning, and what runs gets just that. Descriptors are what `tokio` makes of them.
    ///
    /// # Errors
    /// A directory or path that does not exist; a program or argument that cannot be passed to a process; a protection that
    /// this host lacks, with its remedy. Nothing runs unconfined then.
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
            return Ok((plain::command(&wanted), Layer::Lightweight));
        };
        let way = self.way(granted, &wanted).await?;
        let mut command = Command::new(&way.client);
        command.arg(&way.socket).arg("--").arg(&wanted.program).args(&wanted.arguments);
        command.current_dir(&wanted.cwd.path).env_clear().envs(&wanted.environment);
        Ok((command, Layer::LinuxNamespaces))
    }

    /// Runs `program` to its end, held to `caps` and `limits`, without input, and collects its output. Dropping the future
    /// kills it.
    ///
    /// With the rails alone there is no enforcement to report, and what is killed at the end is what the command has left
    /// in its own process group; a layer of the operating system kills all.
    ///
    /// # Errors
    /// Those of [`wrap`](Self::wrap), limits that a policy could not have ([`PolicyError`](crate::report::policy_error::PolicyError)), and
    /// everything that keeps the program from running. With the rails alone, [`Error::Io`] if the embedding program ignores
    /// SIGCHLD or has `SA_NOCLDWAIT` set: the kernel then forgets how a child ended, also that of a program that has run, and
    /// tokio may put a handler of its own in the place of what ignores it.
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
            let output = run::run(plain::command(&wanted), &wanted.program, limits).await?;
            return Ok((output, Layer::Lightweight));
        };
        let SessionPath { session, .. } = self.way(granted, &wanted).await?;
        let mut command = session.command(&wanted.program);
        command.args(&wanted.arguments).current_dir(&wanted.cwd.path).limits(limits.limits());
        command.replace_environment(wanted.environment.into_iter().collect());
        Ok((command.output().await?, Layer::LinuxNamespaces))
    }

    /// How many sessions it keeps.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.kept().len()
    }

    /// Ends all sessions with what runs in them, and waits until nothing of them is left. The next command gets a new
    /// one.
    pub async fn shutdown(&self) {
        let all = self.kept().take();
        for served in all {
            served.end().await;
        }
    }

    /// The session for what is granted: one that is kept, or a new one.
    async fn way(&self, granted: &Granted, wanted: &PlainCommand) -> Result<SessionPath, Error> {
        let value = |name| wanted.caller.variable(name).map(|value| (name, value.to_owned()));
        let key = Key {
            granted: granted.clone(),
            runtime: Handle::current().id(),
            deciding: toolchains::deciding_variables().filter_map(value).collect(),
            secrets: secrets::secrets_below(granted.paths(), &wanted.caller),
        };
        if let Some(way) = self.kept().find(&key) {
            return Ok(way);
        }
        // There before the session is: so it is covered in what is granted around it.
        let directory = self.place()?;
        let session = Session::prepare(&policy(granted)).await?;
        let served = Self::serve(&directory, key.clone(), &session)?;
        self.proven.store(true, Relaxed);
        let gone = self.kept().keep(served);
        // Not under the lock: they may have something to say to it.
        drop(gone);
        self.kept().find(&key).ok_or(Error::SessionEnded)
    }

    /// Has a session serve clients, under a name that no other had.
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

    /// The directory for sockets, swept once.
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
            tracing::debug!(%error, "not swept");
        }
        Ok(directory)
    }

    fn kept(&self) -> MutexGuard<'_, KeptSessions> {
        locked(&self.kept)
    }
}

impl Served {
    /// A runtime directory may lie where nothing can be executed.
    fn is_executable(&self) -> Result<(), Error> {
        let client = self.client();
        access(client, AccessFlags::X_OK).map_err(|errno| Error::Grant {
            what: "client",
            path: client.to_owned(),
            source: errno.into(),
            remedy: Some(
                "let XDG_RUNTIME_DIR name a directory of a file system that is not mounted noexec".to_owned(),
            ),
        })
    }
}

// The one wrapper of the process, for those who do not want to hold one.

/// What [`wrap_command`] and its like use: so that commands with the same capabilities share a session wherever in the
/// program they are made.
static SHARED: Wrapper = Wrapper::new();

/// The strongest layer that this host gives for `caps`; see [`Wrapper::resolve_layer`].
///
/// ```
/// use kennel::{Capabilities, Layer};
///
/// assert_eq!(kennel::resolve_layer(&Capabilities::default()), Layer::Lightweight);
/// let caps = Capabilities { net: false, ..Capabilities::default() };
/// if kennel::resolve_layer(&caps) == Layer::None {
///     eprintln!("this host cannot keep a command from the network; kennel probe says why");
/// }
/// ```
#[must_use]
pub fn resolve_layer(caps: &Capabilities) -> Layer {
    SHARED.resolve_layer(caps)
}

/// A command that is held to `caps`, and the layer that holds it; see [`Wrapper::wrap`]. The sessions are those of one
/// wrapper of the process; to decide when they end, use a [`Wrapper`] of your own.
///
/// ```
/// use kennel::{Capabilities, Layer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut command, layer) = kennel::wrap_command("pwd", ["-P"], "/usr", &Capabilities::default()).await?;
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

/// Runs a command to its end, held to `caps` and `limits`; see [`Wrapper::run`] and [`wrap_command`].
///
/// ```
/// use kennel::{Capabilities, RunLimits};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), kennel::Error> {
/// let limits = RunLimits { timeout: Some(Duration::from_millis(50)), ..RunLimits::default() };
/// let (output, _) = kennel::run_command("sleep", ["60"], "/", &Capabilities::default(), &limits).await?;
/// assert_eq!(output.exit_code(), 124);
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
