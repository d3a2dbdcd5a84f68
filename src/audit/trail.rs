//! What one sandbox, a session or a one-shot, leaves in the log: its name, its commands, its records.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::audit::log::Log;
use crate::audit::record::{End, Line, Record};
use crate::report::audit_error::AuditError;
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::sys::locked;

/// Sessions and one-shots of this process.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// One sandbox, as the log knows it. There is one without a log too: it is what commands are counted by.
#[derive(Debug)]
pub(crate) struct Trail {
    session: String,
    log: Option<Arc<Log>>,
    records: AtomicU64,
    /// The number of the last command, and those that run.
    execs: Mutex<(u64, BTreeSet<u64>)>,
}

impl Trail {
    pub(crate) fn new(log: Option<&Arc<Log>>) -> Arc<Self> {
        Arc::new(Self {
            session: format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Relaxed)),
            log: log.cloned(),
            records: AtomicU64::new(0),
            execs: Mutex::default(),
        })
    }

    /// Its name in the log.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Whether what cannot be written down must not be.
    pub(crate) fn is_strict(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.audit().fail_closed)
    }

    /// Writes a record down, where there is a log; answers its id.
    ///
    /// # Errors
    /// It could not be written, and the policy says that it must be.
    pub(crate) fn write<'r>(
        &self,
        exec: Option<u64>,
        record: impl FnOnce() -> Record<'r>,
    ) -> Result<Option<String>, AuditError> {
        let Some(log) = &self.log else { return Ok(None) };
        let id = format!("{}.{}", self.session, self.records.fetch_add(1, Relaxed));
        match log.write(Line::new(&id, &self.session, exec, record())) {
            Ok(()) => Ok(Some(id)),
            Err(source) if log.audit().fail_closed => {
                Err(AuditError::Write { path: log.audit().path.clone(), source })
            }
            Err(_) => Ok(None),
        }
    }

    /// That records could not be written, if so, in words.
    pub(crate) fn unwritten(&self) -> Option<String> {
        self.log.as_ref()?.unwritten()
    }

    /// The number of the command that runs, where it is the only one.
    pub(crate) fn only(&self) -> Option<u64> {
        let execs = self.lock();
        let mut numbers = execs.1.iter();
        numbers.next().copied().filter(|_| numbers.next().is_none())
    }

    /// A command begins.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub(crate) fn begin(
        self: &Arc<Self>,
        program: &OsStr,
        arguments: &[OsString],
        directory: &Path,
    ) -> Result<Exec, AuditError> {
        let number = {
            let mut execs = self.lock();
            execs.0 += 1;
            let number = execs.0;
            execs.1.insert(number);
            number
        };
        // From here on its end takes the number away.
        let mut exec =
            Exec { trail: Arc::clone(self), number, id: None, is_open: false, begun: Instant::now() };
        exec.id = self.write(Some(number), || {
            let argv = self.log.as_ref().is_some_and(|log| log.audit().arguments);
            let text = |text: &OsString| text.to_string_lossy().into_owned();
            Record::Exec {
                program: program.to_string_lossy().into_owned(),
                arguments: arguments.len(),
                argv: argv.then(|| arguments.iter().map(text).collect()),
                directory: directory.display().to_string(),
            }
        })?;
        exec.is_open = self.log.is_some();
        Ok(exec)
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeSet<u64>)> {
        locked(&self.execs)
    }
}

/// A command that runs, until it is dropped. Its end is written down, whatever it is.
#[derive(Debug)]
pub(crate) struct Exec {
    trail: Arc<Trail>,
    number: u64,
    /// Of its record, where that could be written.
    id: Option<String>,
    /// Whether its end is to be written.
    is_open: bool,
    begun: Instant,
}

impl Exec {
    /// The record of the command.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Its end. Whether some of what was to be written down could not be is entered.
    pub(crate) fn ended(&mut self, outcome: &mut Outcome) {
        if std::mem::take(&mut self.is_open) {
            self.write_end(outcome);
            outcome.unaudited = self.trail.unwritten();
        }
    }

    fn write_end(&self, outcome: &Outcome) {
        if let Some(limit) = outcome.limit {
            let (configured, used) = (outcome.configured.as_deref(), outcome.used.as_deref());
            self.write(Record::Limit { limit, configured, used });
        }
        self.write(Record::Exit {
            ended: End::Ended(outcome.ended),
            exit_code: Some(outcome.exit_code()),
            signal: outcome.status.signal(),
            limit: outcome.limit,
            duration_ms: millis(outcome.duration),
            usage: Some(outcome.usage),
            class: outcome.failure().map(|failure| failure.class),
        });
    }

    /// Whoever learns later what was refused to it.
    pub(crate) fn late(&self) -> Late {
        Late { trail: Arc::clone(&self.trail), number: self.number }
    }

    /// Something was refused to it. What the proxy refuses is written down by the proxy.
    pub(crate) fn denied(&self, denials: &[Denial]) {
        self.late().denied(denials);
    }

    /// It could not be started.
    pub(crate) fn failed(&mut self, error: &Error) {
        if std::mem::take(&mut self.is_open) {
            self.unfinished("failed", Some(error.failure().class));
        }
    }

    fn unfinished(&self, ended: &'static str, class: Option<crate::report::failure::Class>) {
        self.write(Record::Exit {
            ended: End::Without(ended),
            exit_code: None,
            signal: None,
            limit: None,
            duration_ms: millis(self.begun.elapsed()),
            usage: None,
            class,
        });
    }

    /// Writes down what has happened: it cannot be refused any more, and the next command will be.
    fn write(&self, record: Record<'_>) {
        let _ = self.trail.write(Some(self.number), || record);
    }
}

/// What is known of a command after its end.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    trail: Arc<Trail>,
    number: u64,
}

impl Late {
    /// Of a command that is in no log.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self { trail: Trail::new(None), number: 0 }
    }

    /// Something was refused to it.
    pub(crate) fn denied(&self, denials: &[Denial]) {
        for Denial { protection, subject, reason, .. } in denials {
            let record = || Record::Denial { protection: *protection, subject, reason };
            let _ = self.trail.write(Some(self.number), record);
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.unfinished("dropped", None);
        }
        self.trail.lock().1.remove(&self.number);
    }
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
