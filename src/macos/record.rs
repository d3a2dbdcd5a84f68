//! Sessions for other processes: a file in the runtime directory, `NAME.json`, says what a command of the
//! session needs. The process that holds the session locks the file for as long as it lives. A command is a
//! child of the process that starts it, so a session needs no server. Only the owner can read the file.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Pid, UnlinkatFlags, geteuid, unlinkat};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::audit::log::Log;
use crate::audit::trail::{Origin, Trail};
use crate::caller::Caller;
use crate::caller::runtime::{Directory, SessionName};
use crate::macos::cell::{Cell, SANDBOX_EXEC};
use crate::macos::places::Places;
use crate::macos::session::Session;
use crate::macos::temporary::TemporaryDirectory;
use crate::macos::unsupported;
use crate::policy::Policy;
use crate::report::error::Error;
use crate::report::error::listen::ListenError;
use crate::sys::inode::Identity;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// How long the end of a session may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a lock is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How long a lock may be held by somebody who only looks whether it is.
const LOOKING: Duration = Duration::from_millis(500);

/// What a command of a session needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The process that holds the session.
    pub process: i32,
    /// When it was ready, in seconds since 1970.
    pub since: u64,
    /// The policy, with absolute paths.
    pub policy: Policy,
    /// As they were found when the session began. A command may have replaced one by a link since.
    pub(crate) places: Places,
    /// In pairs, because keys of JSON are UTF-8.
    pub(crate) variables: Vec<(OsString, OsString)>,
    pub(crate) proxy: Option<u16>,
    pub(crate) temporary: Option<PathBuf>,
}

impl SessionRecord {
    /// What commands of a session need. Starts its proxy.
    ///
    /// # Errors
    /// No port is free for the proxy; a path of the policy is not UTF-8.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn of(session: &Session) -> Result<Self, Error> {
        let cell = session.cell();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            process: std::process::id().cast_signed(),
            since: now.as_secs(),
            policy: cell.policy.clone().based_in(&cell.caller.directory)?,
            places: cell.places.clone(),
            variables: cell.variables.clone().into_iter().collect(),
            proxy: cell.proxy().await?.map(|proxy| proxy.port),
            temporary: cell.shared.as_ref().map(|shared| shared.path().to_owned()),
        })
    }

    /// The session, for commands of this process. Refused connections are in no outcome: the proxy is in
    /// another process.
    ///
    /// # Errors
    /// The audit log cannot be opened.
    pub fn session(self) -> Result<Session, Error> {
        self.session_by(SANDBOX_EXEC.into())
    }

    pub(crate) fn session_by(self, sandbox_exec: PathBuf) -> Result<Session, Error> {
        let Self { policy, places, variables, proxy, temporary, .. } = self;
        let log = policy.audit.as_ref().map(Log::open).transpose()?.map(Arc::new);
        Ok(Session::of(Arc::new(Cell {
            variables: variables.into_iter().collect(),
            enforcement: unsupported::enforcement(&policy),
            trail: Trail::new(log.as_ref(), Origin::default()),
            elsewhere: Some(proxy),
            own_proxy: OnceCell::new(),
            caller: Caller::current(),
            shared: temporary.map(TemporaryDirectory::lent).map(Arc::new),
            policy,
            places,
            sandbox_exec,
        })))
    }
}

/// The name of a session that this process holds. Dropping it frees the name.
#[derive(Debug)]
pub struct HeldSession {
    file: Flock<File>,
    name: SessionName,
    directory: Directory,
}

impl HeldSession {
    /// Takes a name. [`publish`](Self::publish) then lets commands in.
    ///
    /// # Errors
    /// The name is invalid or taken; others can write to the directory.
    pub fn reserve(name: &str) -> Result<Self, Error> {
        let name = SessionName::new(name)?;
        Self::in_directory(Directory::make(&Directory::default_path())?, name)
    }

    pub(crate) fn in_directory(directory: Directory, name: SessionName) -> Result<Self, Error> {
        let begun = Instant::now();
        loop {
            let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let opened = openat(&directory, &*name.record(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
            let opened = opened.map_err(|errno| unusable(&directory, &name)(errno.into()))?;
            match Flock::lock(File::from(opened), FlockArg::LockExclusiveNonblock) {
                // The holder before may have removed the file between the two.
                Ok(file) if is_at(&directory, &name, &file) => return Ok(Self { file, name, directory }),
                Ok(_) => {}
                Err((_, Errno::EWOULDBLOCK)) if begun.elapsed() < LOOKING => std::thread::sleep(LOOK),
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(ListenError::Running { name: name.to_string() }.into());
                }
                Err((_, errno)) => return Err(unusable(&directory, &name)(errno.into()).into()),
            }
        }
    }

    /// Lets commands of other processes in.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&mut self, record: &SessionRecord) -> Result<(), Error> {
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.write_all(&serde_json::to_vec(record)?)
        };
        write(&mut self.file).map_err(|source| unusable(&self.directory, &self.name)(source).into())
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(self.name.record())
    }

    /// Marks the file as used: macOS removes old ones from `/tmp`. Call it at least once a day.
    pub fn touch(&self) {
        let now = SystemTime::now();
        if let Err(error) = self.file.set_times(FileTimes::new().set_accessed(now).set_modified(now)) {
            tracing::warn!(%error, "the file of a session cannot be marked as used");
        }
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        let _ = unlinkat(&self.directory, &*self.name.record(), UnlinkatFlags::NoRemoveDir);
    }
}

/// A session that another process holds.
#[derive(Debug)]
pub struct RecordedSession {
    /// What commands need.
    pub record: SessionRecord,
    /// Its name.
    pub name: String,
    /// The file with the record.
    pub path: PathBuf,
    /// How long it lives.
    pub life: SessionLife,
}

/// The lock of a session's file, which its process holds.
#[derive(Debug)]
pub struct SessionLife(File);

impl SessionLife {
    /// Waits until the session has ended.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn ended(self) -> io::Result<()> {
        match Flock::lock(self.0, FlockArg::LockShared) {
            Ok(_) => Ok(()),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    fn is_held(&self) -> Result<bool, Error> {
        is_held(&self.0).map_err(Error::io("look at the session"))
    }
}

impl RecordedSession {
    /// Finds a session that is running.
    ///
    /// # Errors
    /// None of that name runs; others can write to the directory or to its file.
    pub fn find(name: &str) -> Result<Self, Error> {
        let name = SessionName::new(name)?;
        match Directory::open(&Directory::default_path())? {
            Some(directory) => Self::in_directory(&directory, &name),
            None => Err(ListenError::NotRunning { name: name.to_string() }.into()),
        }
    }

    pub(crate) fn in_directory(directory: &Directory, name: &SessionName) -> Result<Self, Error> {
        let not_running = || ListenError::NotRunning { name: name.to_string() };
        let failed = unusable(directory, name);
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(directory, &*name.record(), flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Err(not_running().into()),
            opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
        };
        let stat = fstat(&file).map_err(|errno| failed(errno.into()))?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o7777 != 0o600 {
            return Err(failed(io::Error::other("it is not a file that only you can read")).into());
        }
        if !is_held(&file).map_err(&failed)? {
            return Err(not_running().into());
        }
        let mut bytes = Vec::new();
        (&file).take(LARGEST).read_to_end(&mut bytes).map_err(&failed)?;
        if bytes.is_empty() {
            // It is being prepared.
            return Err(not_running().into());
        }
        let record = serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?;
        Ok(Self {
            record,
            name: name.to_string(),
            path: directory.path().join(name.record()),
            life: SessionLife(file),
        })
    }

    /// Ends the session, and waits until it is gone. Commands that run go on, without its proxy.
    ///
    /// # Errors
    /// Its process does not end.
    pub fn stop(self) -> Result<(), Error> {
        let stopping = Error::io("stop the session");
        if self.life.is_held()? {
            match kill(Pid::from_raw(self.record.process), Signal::SIGTERM) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(stopping(errno.into())),
            }
        }
        let begun = Instant::now();
        while self.life.is_held()? {
            if begun.elapsed() > PATIENCE {
                return Err(stopping(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// The names in the directory that look like sessions, sorted. Some may have ended.
///
/// # Errors
/// The directory cannot be read, or others can write to it.
pub fn recorded_sessions() -> Result<Vec<String>, Error> {
    let Some(directory) = Directory::open(&Directory::default_path())? else { return Ok(Vec::new()) };
    names(&directory)
}

pub(crate) fn names(directory: &Directory) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(directory.path()).map_err(Error::io("list sessions"))?;
    let name = |entry: fs::DirEntry| SessionName::from_record(entry.file_name().to_str()?);
    let mut names: Vec<String> = entries.flatten().filter_map(name).map(|name| name.to_string()).collect();
    names.sort();
    Ok(names)
}

/// Whether somebody holds the lock of a file.
fn is_held(file: &File) -> io::Result<bool> {
    match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Whether a name still leads to an open file.
fn is_at(directory: &Directory, name: &SessionName, file: &File) -> bool {
    let there = Identity::at(&directory.own_path(name.record()));
    matches!((there, Identity::of_held(file)), (Ok(there), Ok(own)) if there == own)
}

fn unusable(directory: &Directory, name: &SessionName) -> impl Fn(io::Error) -> ListenError {
    let path = directory.path().join(name.record());
    move |source| ListenError::io("use the file of a session", &path)(source)
}
