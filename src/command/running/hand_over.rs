//! Who has received a command: a worker, which executes it, or an interpreter that waited for it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::command::running::{Owner, RefusalLogs, Running};
use crate::command::source::{ReadyInterpreter, ReadyWorker};
use crate::report::outcome::Start;

/// Somebody inside who has received a command.
pub(crate) struct HandedOver {
    pub(crate) to: Taker,
    pub(crate) owner: Owner,
    /// From before the worker had the command: a quick one may be refused something at once.
    pub(crate) refusals: RefusalLogs,
    pub(crate) started_at: Instant,
}

/// Who has received it.
pub(crate) enum Taker {
    /// A worker, which executes it.
    Worker(Box<ReadyWorker>, Start),
    /// An interpreter, which becomes it.
    Interpreter(Box<ReadyInterpreter>),
}

impl Running {
    /// Lets somebody else follow it, who gives it another command by `link`.
    pub(crate) fn into_interpreter(mut self, link: OwnedFd) -> ReadyInterpreter {
        self.log.exec.record_hand_over();
        drop(self.pidfd);
        let (init, enforcement, supervisor) = (self.init.into_inner(), self.enforcement, self.supervisor);
        ReadyInterpreter { init, link, enforcement, supervisor }
    }
}
