//! Who has received a command: a worker, which executes it, or an interpreter that waited for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tokio::io::Interest;

use crate::command::running::{CommandLog, CommandSpec, Owner, RefusalLogs, Running, Stop};
use crate::command::source::ReadyWorker;
use crate::report::error::Error;
use crate::report::outcome::Start;
use crate::sys;

/// Somebody inside who has received a command.
pub(crate) struct HandedOver {
    pub(crate) to: Taker,
    /// From before the worker had the command: a quick one may be refused something at once.
    pub(crate) refusals: RefusalLogs,
    pub(crate) started_at: Instant,
}

/// Who has received it.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it moves on at once")]
pub(crate) enum Taker {
    /// A worker, which executes it.
    Worker(ReadyWorker, Owner, Start),
    /// An interpreter, which becomes it.
    Interpreter(Box<Running>),
}

impl Running {
    /// Makes an interpreter that waited for it the command.
    pub(super) fn become_command(
        self,
        spec: CommandSpec,
        mut log: CommandLog,
        refusals: RefusalLogs,
        started_at: Instant,
    ) -> Result<Self, Error> {
        let Self { pidfd, init, prepared, mut enforcement, mut owner, supervisor, log: mut waited, .. } =
            self;
        drop(pidfd);
        waited.exec.record_hand_over();
        if let Owner::Session(session) = &mut owner {
            session.becomes_command();
        }
        spec.limit_entries.iter().for_each(|entry| enforcement.put(entry.clone()));
        // The runtime that watched it may have ended.
        let init = sys::watched(init.into_inner(), Interest::READABLE);
        let init = init.map_err(Error::io("watch the control socket"));
        Ok(Self {
            pidfd: None,
            init: init.inspect_err(|error| log.exec.record_failure(error))?,
            enforcement,
            prepared,
            started_at,
            start: Start::Warm,
            has_started: true,
            has_left: None,
            has_terminal: false,
            is_last: AtomicBool::new(false),
            stop: Stop { flood: spec.limits.output_ends.then(Arc::default), ..Stop::default() },
            spec,
            refusals,
            owner,
            log,
            supervisor,
        })
    }
}
