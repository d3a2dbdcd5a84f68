//! The records of calls in the audit log. `http` records the use of credentials, the proxy connections, and
//! the broker spawns.

use std::time::Instant;

use crate::audit::record::{ConnectorCall, Record};
use crate::audit::trail::{Trail, millis};
use crate::connector::host::Loaded;
use crate::report::error::Error;
use crate::report::failure::Failure;

/// A call. Its end is recorded in every case, at the latest when this is dropped.
pub(crate) struct CallRecord<'c> {
    operation: &'c str,
    trail: &'c Trail,
    start: Instant,
    has_ended: bool,
}

impl<'c> CallRecord<'c> {
    /// Begins a call. A log that fails closed gets a record now, too.
    ///
    /// # Errors
    /// The log fails closed, and cannot be written.
    pub(crate) fn begin(loaded: &'c Loaded, operation: &'c str) -> Result<Self, Error> {
        let trail = &*loaded.proxy.trail;
        let mut call = Self { operation, trail, start: Instant::now(), has_ended: true };
        if trail.is_fail_closed() {
            call.write("begun", None)?;
        }
        call.has_ended = false;
        Ok(call)
    }

    /// Records the end, and returns the id of the record.
    ///
    /// # Errors
    /// The log fails closed, and cannot be written.
    pub(crate) fn end(mut self, failure: Option<&Failure>) -> Result<Option<String>, Error> {
        self.has_ended = true;
        self.write(if failure.is_none() { "ended" } else { "failed" }, failure)
    }

    fn write(&self, decision: &'static str, failure: Option<&Failure>) -> Result<Option<String>, Error> {
        let record = || {
            Record::Connector(ConnectorCall {
                operation: self.operation,
                decision,
                class: failure.map(|failure| failure.class),
                reason: failure.map(|failure| failure.message.clone()),
                duration_ms: millis(self.start.elapsed()),
            })
        };
        Ok(self.trail.write(None, record)?)
    }
}

impl Drop for CallRecord<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // The call is over, whatever the log says.
            let _ = self.write("dropped", None);
        }
    }
}
