//! Interpreters that start before their command is known
//! ([`Policy::warm`](field@crate::policy::Policy::warm)).
//!
//! Each is a command of the session, behind the same walls: `start.py` imports the modules, and waits. A
//! command that it can become asks it first whether it is still what the command names, and whether what it
//! has imported is still what is on disk. Then it gets the arguments, the variables and the streams, and
//! becomes the command; another one starts. No interpreter serves two commands.
//!
//! What the interpreter says is no more than what a command says: one of a session that shares processes may
//! be in the hands of another command. So answers are short, and nobody waits long for them.

mod words;

use std::ffi::{CStr, OsStr};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::command::child::Child;
use crate::command::source::{WarmCall, Warmth, WorkerSource};
use crate::command::{Command, CommandSource};
use crate::launch::control::socket_pair;
use crate::launch::request::RequestBuf;
use crate::policy::Policy;
use crate::process::program::candidates;
use crate::report::error::Error;
use crate::session::warm::words::{Form, Kind, difference_at_start, may_be};
use crate::sys::{self, locked, packet};

/// What an interpreter runs.
const START: &str = include_str!("start.py");

/// Runs `START`, which is the first message, in names of its own.
const STUB: &str = "import os; exec(os.read(0, 65536), {})";

/// How long an interpreter may take to get ready.
const START_TIME: Duration = Duration::from_secs(60);

/// The most memory that a waiting interpreter may have, in bytes.
const MOST_MEMORY: u64 = 1 << 30;

/// How long it may take to answer. Another command may have stopped it.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// The longest answer, in bytes.
const LONGEST: usize = 1024;

/// The longest question, in bytes.
const LONGEST_QUESTION: usize = 60_000;

/// How long after the begin of a command another one starts, if that command still runs: it has the
/// processors for itself until then.
const START_AFTER: Duration = Duration::from_millis(25);

/// How long after a failure another one is tried: somebody may have installed the module.
const RETRY: Duration = Duration::from_secs(10);

/// The interpreters of a session.
#[derive(Debug)]
pub(crate) struct Interpreters {
    all: Vec<Interpreter>,
    /// Tells that one has got ready, or has not.
    changed: Arc<Notify>,
    /// Tells that a command has ended.
    command_ended: Arc<Notify>,
}

/// One of the policy, and what waits of it.
#[derive(Debug)]
struct Interpreter {
    program: String,
    modules: Vec<String>,
    state: Arc<Mutex<State>>,
}

/// When an interpreter starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// A command has just begun.
    AfterCommand,
}

#[derive(Debug)]
enum State {
    /// Nothing waits; the next refill starts one.
    Absent,
    Starting(AbortHandle),
    Waiting(Box<Waiting>),
    Failed {
        reason: String,
        at: Instant,
    },
    /// The session has ended.
    Ended,
}

/// An interpreter that waits for a command.
#[derive(Debug)]
struct Waiting {
    child: Child,
    link: OwnedFd,
    /// The generation of the session's mounts when it started.
    generation: u64,
    /// In bytes.
    memory: u64,
}

/// An interpreter of a session that starts before its command is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WarmInterpreter {
    /// Its name in the policy.
    pub program: String,
    /// The modules that it imports ahead.
    pub modules: Vec<String>,
    /// What it does.
    pub state: WarmState,
    /// Why there is none.
    pub reason: Option<String>,
    /// The most memory that it had in RAM when it began to wait, in bytes; some of it may be shared.
    pub memory: Option<u64>,
}

/// What becomes of an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WarmState {
    /// None is there; the next command starts one.
    Absent,
    /// It starts, and imports its modules.
    Starting,
    /// It waits for a command.
    Waiting,
    /// It could not start or import; commands are executed.
    Failed,
}

impl WarmState {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Starting => "starting",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

impl Interpreters {
    pub(crate) fn of(policy: &Policy) -> Self {
        let all = policy.warm.iter().map(|(program, modules)| Interpreter {
            program: program.clone(),
            modules: modules.clone(),
            state: Arc::new(Mutex::new(State::Absent)),
        });
        Self { all: all.collect(), changed: Arc::default(), command_ended: Arc::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A command has ended.
    pub(crate) fn command_ends(&self) {
        self.command_ended.notify_waiters();
    }

    /// Starts those that shall wait and do not: now, or if a command just begins, when it has ended or some
    /// time has passed.
    pub(crate) fn refill(&self, session: &Arc<dyn WorkerSource>, when: When) {
        for interpreter in &self.all {
            let mut state = interpreter.state();
            let is_due = match &*state {
                State::Absent => true,
                State::Failed { at, .. } => at.elapsed() >= RETRY,
                State::Starting(_) | State::Waiting(_) | State::Ended => false,
            };
            if is_due {
                let (ended, changed) = (Arc::clone(&self.command_ended), Arc::clone(&self.changed));
                let start = interpreter.start(session, changed);
                let task = tokio::spawn(async move {
                    if when == When::AfterCommand {
                        let _ = timeout(START_AFTER, ended.notified()).await;
                    }
                    start.await;
                });
                *state = State::Starting(task.abort_handle());
            }
        }
    }

    /// Ends those that wait and starts no more.
    pub(crate) fn end(&self) {
        self.replace_all(|| State::Ended);
    }

    /// Ends those that wait. The next command starts others.
    pub(crate) fn end_waiting(&self) {
        self.replace_all(|| State::Absent);
    }

    fn replace_all(&self, by: impl Fn() -> State) {
        for interpreter in &self.all {
            let before = std::mem::replace(&mut *interpreter.state(), by());
            if let State::Starting(task) = &before {
                task.abort();
            }
            // Its processes are killed without the lock.
            drop(before);
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn list(&self) -> Vec<WarmInterpreter> {
        self.all.iter().map(Interpreter::describe).collect()
    }

    /// Waits until none is starting.
    pub(crate) async fn settled(&self) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on, no change is missed.
            changed.as_mut().enable();
            let is_starting = |interpreter: &Interpreter| matches!(*interpreter.state(), State::Starting(_));
            if !self.all.iter().any(is_starting) {
                return;
            }
            changed.await;
        }
    }

    /// One that becomes the command.
    pub(crate) async fn take(&self, session: &dyn WorkerSource, call: &WarmCall<'_>) -> Warmth {
        let mut executed = Warmth::Other;
        for interpreter in &self.all {
            if !may_be(&interpreter.program, call.request) {
                continue;
            }
            match interpreter.take(session, call).await {
                Ok((child, link)) => match child.into_running() {
                    Some(running) => return Warmth::Warm(Box::new(running.into_interpreter(link))),
                    None => executed = Warmth::Executed(KILLED.to_owned()),
                },
                Err(reason) => executed = Warmth::Executed(reason),
            }
        }
        executed
    }
}

const KILLED: &str = "the interpreter was killed";

impl Interpreter {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn describe(&self) -> WarmInterpreter {
        let (state, reason, memory) = match &*self.state() {
            State::Absent | State::Ended => (WarmState::Absent, None, None),
            State::Starting(_) => (WarmState::Starting, None, None),
            State::Waiting(waiting) => (WarmState::Waiting, None, Some(waiting.memory)),
            State::Failed { reason, .. } => (WarmState::Failed, Some(reason.clone()), None),
        };
        WarmInterpreter {
            program: self.program.clone(),
            modules: self.modules.clone(),
            state,
            reason,
            memory,
        }
    }

    /// Starts one, and enters what became of it.
    fn start(
        &self,
        session: &Arc<dyn WorkerSource>,
        changed: Arc<Notify>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (program, modules) = (self.program.clone(), self.modules.join(","));
        let (state, weak) = (Arc::clone(&self.state), Arc::downgrade(session));
        async move {
            let Some(session) = weak.upgrade() else { return };
            let started = timeout(START_TIME, Waiting::start(session, &program, &modules)).await;
            let started = started.unwrap_or_else(|_| Err(format!("it took longer than {START_TIME:?}")));
            let mut state = locked(&state);
            if matches!(*state, State::Starting(_)) {
                *state = match started {
                    Ok(waiting) => State::Waiting(Box::new(waiting)),
                    Err(reason) => {
                        tracing::warn!(program, modules, reason, "an interpreter does not wait for commands");
                        State::Failed { reason, at: Instant::now() }
                    }
                };
            }
            changed.notify_waiters();
        }
    }

    /// Takes the one that waits, if it becomes this command.
    async fn take(
        &self,
        session: &dyn WorkerSource,
        call: &WarmCall<'_>,
    ) -> Result<(Child, OwnedFd), String> {
        if let Some(unfit) = call.unfit {
            return Err(unfit.to_owned());
        }
        let request = call.request;
        let arguments: Vec<&[u8]> = request.arguments().map(CStr::to_bytes).collect();
        let form = Form::of(&arguments)?;
        let of_session = &session.prepared().compiled.commands.environment.0;
        if let Some(name) = difference_at_start(of_session, request.environment()) {
            return Err(format!("{name} acts at the start of Python"));
        }
        if !request.fits_execve() {
            return Err("its arguments are longer than execve(2) takes".to_owned());
        }
        let question = question(request, &form, &arguments);
        if question.len() > LONGEST_QUESTION {
            return Err("its program, directory or script has too long a name".to_owned());
        }
        let mut waiting = self.take_waiting()?;
        // It has not seen the mounts of now, and what it does at paths that are protected since would stay.
        if waiting.generation < call.generation {
            return Err("files of the host have changed since the interpreter started".to_owned());
        }
        match timeout(ANSWER_TIME, waiting.ask(&question)).await {
            Err(_) => Err("the interpreter does not answer".to_owned()),
            Ok(None) => Err(KILLED.to_owned()),
            Ok(Some(answer)) => match answer.split_first() {
                Some((b'y', _)) => Ok((waiting.child, waiting.link)),
                Some((b'n', reason)) => {
                    self.put_back(waiting);
                    Err(text(reason))
                }
                Some((b's', reason)) => Err(text(reason)),
                _ => Err("the interpreter answers nonsense".to_owned()),
            },
        }
    }

    fn take_waiting(&self) -> Result<Box<Waiting>, String> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Absent) {
            State::Waiting(waiting) => Ok(waiting),
            other => {
                let reason = match &other {
                    State::Failed { reason, .. } => reason.clone(),
                    State::Absent | State::Ended => "no interpreter waits".to_owned(),
                    State::Starting(_) | State::Waiting(_) => "the interpreter is getting ready".to_owned(),
                };
                *state = other;
                Err(reason)
            }
        }
    }

    /// It waits for another command.
    fn put_back(&self, waiting: Box<Waiting>) {
        let mut state = self.state();
        if matches!(*state, State::Absent) {
            *state = State::Waiting(waiting);
        }
    }
}

impl Waiting {
    /// Starts an interpreter, and waits until it has imported its modules.
    ///
    /// # Errors
    /// Why it does not wait for commands, in words.
    async fn start(source: Arc<dyn WorkerSource>, program: &str, modules: &str) -> Result<Self, String> {
        let failed = |error: Error| error.chain();
        let ticket = source.enter().await.map_err(failed)?;
        let commands = &source.prepared().compiled.commands;
        if commands.learns {
            return Err("what commands use of the host is written down from their start on".to_owned());
        }
        let path = commands.environment.0.get(OsStr::new("PATH")).map(|path| path.as_os_str());
        let programs = candidates(program.as_ref(), path, &commands.directory);
        let sharing = if source.is_shared() { "shared" } else { "own" };
        fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> String {
            move |error| Error::io(what)(error.into()).chain()
        }
        let (link, theirs) = socket_pair().map_err(io("make a socket for an interpreter"))?;
        let (noise, output) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(io("make a pipe"))?;
        let copy = output.try_clone().map_err(io("copy a descriptor"))?;
        packet::send(&link, START.as_bytes(), &[]).map_err(io("write to an interpreter"))?;
        let mut command = Command::new(CommandSource::Session(Arc::clone(&source)), program.as_ref());
        command.interpreter().current_dir("/").args(["-c", STUB, sharing, modules]).args(programs);
        command.stdin(theirs).stdout(output).stderr(copy);
        let child = command.spawn().await.map_err(failed)?;
        drop(command);
        let mut waiting = Self { child, link, generation: ticket.generation, memory: 0 };
        let said = waiting.hear().await;
        let mut printed = [0; 1000];
        let length = nix::unistd::read(&noise, &mut printed).unwrap_or_default();
        let printed = text(printed.get(..length).unwrap_or_default());
        let Some(said) = said else {
            let why = printed.lines().last().unwrap_or("nobody knows why");
            return Err(format!("the interpreter ended before it waited: {why}"));
        };
        match said.split_first() {
            Some((b'r', kib)) => {
                waiting.memory = text(kib).parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1024);
            }
            Some((b'f', reason)) => return Err(text(reason)),
            _ => return Err("the interpreter says nonsense".to_owned()),
        }
        if let Some(line) = printed.lines().next() {
            return Err(format!("its imports print: {line}"));
        }
        if waiting.memory > MOST_MEMORY {
            let mib = waiting.memory >> 20;
            return Err(format!("it has {mib} MiB of memory after its imports, and may have 1024"));
        }
        Ok(waiting)
    }

    /// Asks whether it becomes a command. `None` if it is gone.
    async fn ask(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        packet::send(&self.link, question, &[]).ok()?;
        self.hear().await
    }

    /// The next thing that it says. `None` if it is gone.
    async fn hear(&mut self) -> Option<Vec<u8>> {
        let link = sys::watched(self.link.try_clone().ok()?, Interest::READABLE).ok()?;
        let said = link.async_io(Interest::READABLE, |link| packet::receive(link, LONGEST)).await.ok()?;
        Some(said.bytes).filter(|bytes| !bytes.is_empty())
    }
}

/// What an interpreter is asked: `?` and the form, the directory, the script if there is one, and the paths
/// of the program, with NUL between them.
fn question(request: &RequestBuf, form: &Form, arguments: &[&[u8]]) -> Vec<u8> {
    let script = match form.kind {
        Kind::Script => arguments.get(form.operand).copied().unwrap_or_default(),
        Kind::Text | Kind::Module | Kind::Input => &[],
    };
    let (operand, skip) = (form.operand.to_string(), form.skip.to_string());
    let letter = [form.kind.letter()];
    let form = [&letter[..], operand.as_bytes(), skip.as_bytes(), &form.flags];
    let names = [request.directory().to_bytes(), script];
    let parts: Vec<&[u8]> =
        form.into_iter().chain(names).chain(request.programs().map(CStr::to_bytes)).collect();
    [b"?", &parts.join(&b'\0')[..]].concat()
}

/// What an interpreter says, which may be anything.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
