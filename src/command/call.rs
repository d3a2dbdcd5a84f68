//! One call of a shell. The shell belongs to a command, its keeper; a call has streams, records and an
//! outcome of its own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::trail::Exec;
use crate::command::running::Running;
use crate::explain::{context, hints};
use crate::network::serving::DenialCursor;
use crate::process::cause::{Cause, Flood};
use crate::process::ending::{Facts, Refused, ending_of_call};
use crate::process::output::ChildOutput;
use crate::protect::recheck::Undone;
use crate::report::error::Error;
use crate::report::outcome::{Outcome, Usage};

/// The name of a shell and of its calls in the audit log.
pub(crate) const SHELL: &str = "shell";

/// What is known about the end of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEnd {
    /// `$?`.
    pub(crate) code: u8,
    /// Why Kennel interrupted it, if it did.
    pub(crate) cause: Option<Cause>,
    pub(crate) duration: Duration,
    pub(crate) timeout: Option<Duration>,
}

impl Running {
    /// Records the start of a call.
    ///
    /// # Errors
    /// The record could not be written, and the log fails closed.
    pub(crate) fn begin_call(&mut self, snippet: &OsStr, directory: &Path) -> Result<Exec, Error> {
        self.renew_denial_cursor();
        if let Some(refusals) = self.refusals() {
            refusals.forget();
        }
        if let Some(context) = &mut self.spec.context {
            let watches = self.spec.wants_hints && !self.spec.explains;
            let words = context::words(std::iter::once(snippet));
            *context = Arc::new((**context).clone().typed(words, watches));
        }
        Ok(self.log.exec.another(SHELL.as_ref(), &[snippet.to_owned()], directory)?)
    }

    /// The readers of a call's stdout and stderr. `cap` replaces the policy's cap on output.
    pub(crate) fn call_streams(
        &self,
        [stdout, stderr]: [OwnedFd; 2],
        cap: Option<u64>,
        flood: Option<&Arc<Flood>>,
    ) -> io::Result<[ChildOutput; 2]> {
        let [out_cap, err_cap] = self.spec.output_caps.map(|own| [own, cap].into_iter().flatten().min());
        let (mut stdout, mut stderr) =
            (ChildOutput::new(stdout, out_cap)?, ChildOutput::new(stderr, err_cap)?);
        if let Some(flood) = flood {
            stdout.end_at_cap(flood);
            stderr.end_at_cap(flood);
        }
        if let Some(tail) = self.tail() {
            stderr.explain_errors(tail);
        }
        Ok([stdout, stderr])
    }

    /// The outcome of a call. Looks at protected paths.
    pub(crate) fn call_outcome(&self, end: &CallEnd, exec: &mut Exec) -> Outcome {
        let usage = Usage::default();
        let facts = Facts {
            status: ExitStatus::from_raw(i32::from(end.code) << 8),
            cause: end.cause,
            duration: end.duration,
            usage: &usage,
            limits: &self.spec.limits,
            timeout: end.timeout,
            full: None,
            refused: Refused::default(),
        };
        let Undone { mut denials, is_left } = self.init.get_ref().undo();
        denials.extend(self.explained(end.code == 0));
        exec.record_denials(&denials);
        // The proxy has already recorded its own.
        denials.extend(self.refusals.proxy.iter().flat_map(DenialCursor::denials));
        let mut outcome = Outcome {
            enforcement: self.enforcement.clone(),
            denials,
            network_failures: self.refusals.network_failures(),
            explains: self.spec.explains,
            is_left,
            audit_id: exec.id().map(str::to_owned),
            ..ending_of_call(&facts).outcome(&facts)
        };
        exec.record_outcome(&mut outcome);
        // What the caller typed are snippets, and not the command of the shell.
        if self.spec.explains || self.spec.wants_hints {
            outcome.hints = hints::of_network_failures(&outcome);
        }
        outcome
    }
}
