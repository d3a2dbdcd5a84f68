//! The audit trail of one sandbox (a session or a one-shot): its name in the log, its commands and its
//! records.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::audit::log::Log;
use crate::audit::record::{EndRecord, Line, Record};
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::report::error::audit::AuditError;
use crate::report::failure::Class;
use crate::report::outcome::Outcome;
use crate::sys::locked;

/// The number of sandboxes that this process has created.
static SANDBOXES: AtomicU64 = AtomicU64::new(0);

/// Whom the records of a trail are about, beside the sandbox. Empty for a sandbox that a caller asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// The connector, by its name.
    pub(crate) connector: Option<Arc<str>>,
    /// The spawn, by the id of its first record.
    pub(crate) spawn: Option<Arc<str>>,
    /// The root file system in words, if that is not the host's.
    pub(crate) root: Option<Arc<str>>,
}

/// The audit trail of one sandbox. A sandbox without a log has one too, because it numbers the commands.
#[derive(Debug)]
pub(crate) struct Trail {
    session: String,
    origin: Origin,
    log: Option<Arc<Log>>,
    records: AtomicU64,
    commands: Mutex<Commands>,
}

/// The commands of a sandbox, numbered from 1.
#[derive(Debug, Default)]
struct Commands {
    /// The number of the last command that began.
    last: u64,
    /// The numbers of the commands that run.
    running: BTreeSet<u64>,
}

impl Trail {
    pub(crate) fn new(log: Option<&Arc<Log>>, origin: Origin) -> Arc<Self> {
        Arc::new(Self {
            origin,
            session: format!("{}.{}", std::process::id(), SANDBOXES.fetch_add(1, Relaxed)),
            log: log.cloned(),
            records: AtomicU64::new(0),
            commands: Mutex::default(),
        })
    }

    /// The name of the sandbox in the log.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether nothing may happen that cannot be logged.
    pub(crate) fn is_fail_closed(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.audit().fail_closed)
    }

    /// Writes a record if there is a log, and returns its id.
    ///
    /// # Errors
    /// The record could not be written, and the log fails closed.
    pub(crate) fn write<'r>(
        &self,
        exec: Option<u64>,
        record: impl FnOnce() -> Record<'r>,
    ) -> Result<Option<String>, AuditError> {
        let Some(log) = &self.log else { return Ok(None) };
        let id = format!("{}.{}", self.session, self.records.fetch_add(1, Relaxed));
        let record = record();
        let own_spawn = match &record {
            Record::Spawn(spawn) => Some(spawn.allowed.unwrap_or(&id)),
            _ => None,
        };
        let mut line = Line::new(&id, &self.session, exec, record);
        line.connector = self.origin.connector.as_deref();
        line.spawn = own_spawn.or(self.origin.spawn.as_deref());
        match log.write(line) {
            Ok(()) => Ok(Some(id)),
            Err(source) if log.audit().fail_closed => {
                Err(AuditError::Write { path: log.audit().path.clone(), source })
            }
            Err(_) => Ok(None),
        }
    }

    /// The number of the running command, if only one runs.
    pub(crate) fn only_command(&self) -> Option<u64> {
        let commands = locked(&self.commands);
        let mut numbers = commands.running.iter();
        numbers.next().copied().filter(|_| numbers.next().is_none())
    }

    /// Gives the next command its number, and records its start.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub(crate) fn begin(
        self: &Arc<Self>,
        program: &OsStr,
        arguments: &[OsString],
        directory: &Path,
    ) -> Result<Exec, AuditError> {
        let number = {
            let mut commands = locked(&self.commands);
            commands.last += 1;
            let number = commands.last;
            commands.running.insert(number);
            number
        };
        // From here on, dropping it removes the number from the running commands.
        let mut exec =
            Exec { trail: Arc::clone(self), number, id: None, needs_exit: false, start: Instant::now() };
        exec.id = self.write(Some(number), || {
            let with_argv = self.log.as_ref().is_some_and(|log| log.audit().arguments);
            let text = |text: &OsString| text.to_string_lossy().into_owned();
            Record::Exec {
                program: program.to_string_lossy().into_owned(),
                arguments: arguments.len(),
                argv: with_argv.then(|| arguments.iter().map(text).collect()),
                directory: directory.display().to_string(),
                root: self.origin.root.as_deref(),
            }
        })?;
        exec.needs_exit = self.log.is_some();
        Ok(exec)
    }
}

/// A running command. Its end is recorded in every case, at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct Exec {
    trail: Arc<Trail>,
    number: u64,
    /// The id of its record, if the record could be written.
    id: Option<String>,
    /// Whether the log still needs the record of its end.
    needs_exit: bool,
    start: Instant,
}

impl Exec {
    /// Begins another command of the same sandbox, as [`Trail::begin`].
    pub(crate) fn another(
        &self,
        program: &OsStr,
        arguments: &[OsString],
        directory: &Path,
    ) -> Result<Self, AuditError> {
        self.trail.begin(program, arguments, directory)
    }

    /// The id of the record of the command.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Records the outcome of the command. Enters into the outcome whether the log has lost records.
    pub(crate) fn record_outcome(&mut self, outcome: &mut Outcome) {
        if std::mem::take(&mut self.needs_exit) {
            self.write_exit(outcome);
            outcome.unaudited = self.trail.log.as_ref().and_then(|log| log.losses());
        }
    }

    fn write_exit(&self, outcome: &Outcome) {
        if let Some(limit) = outcome.limit {
            let (configured, used) = (outcome.configured.as_deref(), outcome.used.as_deref());
            self.write(Record::Limit { limit, configured, used });
        }
        self.write(Record::Exit {
            ended: EndRecord::Ended(outcome.ended),
            exit_code: Some(outcome.exit_code()),
            signal: outcome.status.signal(),
            limit: outcome.limit,
            duration_ms: millis(outcome.duration),
            usage: Some(outcome.usage),
            class: outcome.failure().map(|failure| failure.class),
        });
    }

    /// Records what the sandbox refused to the command. The proxy records its own refusals.
    pub(crate) fn record_denials(&self, denials: &[Denial]) {
        for Denial { protection, subject, reason, .. } in denials {
            self.write(Record::Denial { protection: *protection, subject, reason });
        }
    }

    /// Records that the command could not be started.
    pub(crate) fn record_failure(&mut self, error: &Error) {
        if std::mem::take(&mut self.needs_exit) {
            self.write_exit_without_outcome("failed", Some(error.failure().class));
        }
    }

    /// Records that what waited has become the command of another record.
    pub(crate) fn record_hand_over(&mut self) {
        if std::mem::take(&mut self.needs_exit) {
            self.write_exit_without_outcome("handed_over", None);
        }
    }

    fn write_exit_without_outcome(&self, ended: &'static str, class: Option<Class>) {
        self.write(Record::Exit {
            ended: EndRecord::NoOutcome(ended),
            exit_code: None,
            signal: None,
            limit: None,
            duration_ms: millis(self.start.elapsed()),
            usage: None,
            class,
        });
    }

    /// Writes a record of something that has already happened. If it fails, a log that fails closed refuses
    /// the next command.
    fn write(&self, record: Record<'_>) {
        let _ = self.trail.write(Some(self.number), || record);
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if std::mem::take(&mut self.needs_exit) {
            self.write_exit_without_outcome("dropped", None);
        }
        locked(&self.trail.commands).running.remove(&self.number);
    }
}

/// A duration in whole milliseconds, as records have it.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
