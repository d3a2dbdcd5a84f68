//! Executors for tests of programs that embed Kennel: nothing is started, and what passed the gate is kept.
//! Must not know how a sandbox is made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::broker::checked::{CheckedSpawn, CredentialResolver};
use crate::broker::executor::{SpawnExecutor, Spawned, Spawning};
use crate::process::output::marker;
use crate::sys::locked;

/// A spawn that passed the gate. Its `Debug` output shows values, unlike that of [`CheckedSpawn`]: it is for
/// tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSpawn {
    /// The program to execute, with links resolved.
    pub program: PathBuf,
    /// The argument vector as the envelope has it, with `argv[0]`.
    pub argv: Vec<String>,
    /// The operation that the arguments match, if the manifest has operations.
    pub operation: Option<String>,
    /// The variables of the manifest, with their values.
    pub environment: BTreeMap<String, OsString>,
    /// The names of the credentials. Their values are resolved, and not kept.
    pub credentials: Vec<String>,
    /// The text for standard input.
    pub stdin: Option<String>,
    /// The working directory; `None` means `/`.
    pub cwd: Option<PathBuf>,
    /// The paths that the program may read.
    pub fs_read: Vec<PathBuf>,
    /// The paths that the program may read and write.
    pub fs_write: Vec<PathBuf>,
    /// The hosts that the program may reach.
    pub hosts: Vec<String>,
}

impl RecordedSpawn {
    fn of(spawn: &CheckedSpawn) -> Self {
        let environment = spawn.environment().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            program: spawn.program().to_owned(),
            argv: spawn.argv().to_vec(),
            operation: spawn.operation().map(str::to_owned),
            environment: environment.collect(),
            credentials: spawn.credentials().to_vec(),
            stdin: spawn.stdin().map(str::to_owned),
            cwd: spawn.cwd().map(Into::into),
            fs_read: spawn.fs_read().to_vec(),
            fs_write: spawn.fs_write().to_vec(),
            hosts: spawn.hosts().to_vec(),
        }
    }
}

/// An executor that keeps each spawn that passed the gate, and lets another one answer: by default, a program
/// that succeeds and writes nothing. Clones share what they keep.
///
/// ```
/// use kennel::broker::{Envelope, Manifest, NoCredentials, SpawnPolicy};
/// use kennel::testing::Recorder;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let manifest = "[capabilities.spawn]\nprograms = [{ path = '/bin/sh' }]\noperations.hi = 'sh -c {text}'";
/// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
/// let recorder = Recorder::new();
/// policy.execute(&Envelope::new("sh", &["-c", "echo hi"]), &NoCredentials, &recorder).await?;
/// policy.execute(&Envelope::new("sh", &["-x", "echo hi"]), &NoCredentials, &recorder).await.unwrap_err();
/// let [spawn] = &recorder.spawns()[..] else { panic!("only the first one passed the gate") };
/// assert_eq!(spawn.operation.as_deref(), Some("hi"));
/// assert_eq!(spawn.argv, ["sh", "-c", "echo hi"]);
/// # Ok::<(), kennel::broker::SpawnError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Recorder {
    answers: Arc<dyn SpawnExecutor>,
    spawns: Arc<Mutex<Vec<RecordedSpawn>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::before(Script::new().otherwise(Spawned::default()))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("spawns", &self.spawns()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// An executor whose programs succeed and write nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An executor that keeps each spawn, and asks another one for the answer.
    #[must_use]
    pub fn before(executor: impl SpawnExecutor + 'static) -> Self {
        Self { answers: Arc::new(executor), spawns: Arc::default() }
    }

    /// The spawns that passed the gate so far, in their order.
    #[must_use]
    pub fn spawns(&self) -> Vec<RecordedSpawn> {
        locked(&self.spawns).clone()
    }
}

impl SpawnExecutor for Recorder {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, credentials: &'s dyn CredentialResolver) -> Spawning<'s> {
        locked(&self.spawns).push(RecordedSpawn::of(spawn));
        self.answers.spawn(spawn, credentials)
    }
}

/// A program that plays a script: it answers by its arguments. Credentials are resolved as for a real
/// program, so a missing one is an error.
///
/// ```
/// use kennel::broker::{Envelope, Manifest, NoCredentials, SpawnPolicy};
/// use kennel::testing::Script;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let manifest = Manifest::from_toml("capabilities.spawn.programs = [{ path = '/bin/sh' }]")?;
/// let policy = SpawnPolicy::new(manifest);
/// let script = Script::new()
///     .stdout(&["sh", "-c", "echo hi"], "hi\n")
///     .fails(&["sh", "-c", "exit 7"], 7, "it said no\n");
/// let run = async |text| policy.execute(&Envelope::new("sh", &["-c", text]), &NoCredentials, &script).await;
/// assert_eq!(run("echo hi").await?.stdout, b"hi\n");
/// assert_eq!((run("exit 7").await?.status, run("exit 7").await?.stderr), (7, b"it said no\n".to_vec()));
/// // What is not in the script is like a program that does not know its arguments.
/// assert_eq!(run("other").await?.status, 2);
/// # Ok::<(), kennel::broker::SpawnError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Script {
    answers: Vec<(Vec<String>, Spawned)>,
    otherwise: Option<Spawned>,
}

/// The exit status of a program that does not know its arguments, as most have it.
const USAGE: i32 = 2;

impl Script {
    /// A script without an answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers this argument vector, which begins with `argv[0]`. Of two answers for one vector, the last
    /// counts.
    #[must_use]
    pub fn answer(mut self, argv: &[&str], ended: Spawned) -> Self {
        self.answers.push((argv.iter().map(|&argument| argument.to_owned()).collect(), ended));
        self
    }

    /// Succeeds for this argument vector, and writes to stdout.
    #[must_use]
    pub fn stdout(self, argv: &[&str], stdout: impl Into<Vec<u8>>) -> Self {
        self.answer(argv, Spawned { stdout: stdout.into(), ..Spawned::default() })
    }

    /// Fails with a status for this argument vector, and writes to stderr.
    #[must_use]
    pub fn fails(self, argv: &[&str], status: i32, stderr: impl Into<Vec<u8>>) -> Self {
        self.answer(argv, Spawned { status, stderr: stderr.into(), ..Spawned::default() })
    }

    /// Answers every other argument vector. By default, the program fails with status 2 and says so.
    #[must_use]
    pub fn otherwise(mut self, ended: Spawned) -> Self {
        self.otherwise = Some(ended);
        self
    }

    fn ended(&self, argv: &[String]) -> Spawned {
        let found = self.answers.iter().rev().find(|(known, _)| known == argv).map(|(_, ended)| ended);
        found.or(self.otherwise.as_ref()).cloned().unwrap_or_else(|| Spawned {
            status: USAGE,
            stderr: format!("the script has no answer for {argv:?}\n").into_bytes(),
            ..Spawned::default()
        })
    }
}

impl SpawnExecutor for Script {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, credentials: &'s dyn CredentialResolver) -> Spawning<'s> {
        Box::pin(async {
            spawn.resolve(credentials).await?;
            let Spawned { status, stdout, stderr } = self.ended(spawn.argv());
            Ok(Spawned {
                status,
                stdout: cut(stdout, spawn.stdout_cap()),
                stderr: cut(stderr, spawn.stderr_cap()),
            })
        })
    }
}

/// What is kept of an output, with a marker if something is missing.
fn cut(mut kept: Vec<u8>, cap: u64) -> Vec<u8> {
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    let dropped = kept.len().saturating_sub(cap);
    if dropped > 0 {
        kept.truncate(cap);
        kept.extend(marker(u64::try_from(dropped).unwrap_or(u64::MAX)));
    }
    kept
}
