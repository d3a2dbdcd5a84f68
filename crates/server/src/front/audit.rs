//! The audit log of the server: a line of JSON for each creation, end and refusal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::front::trace;
use crate::wire::failure::Reason;
use crate::wire::id::SandboxId;
use crate::wire::sandbox::{Summary, now, time};

/// The longest name of a request, in characters.
const LONGEST: usize = 200;

/// The log; without a file, nothing is written.
pub(crate) struct Audit(Option<Mutex<File>>);

impl Audit {
    /// Appends to a file that only its owner can read.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(Mutex::new);
        path.map(open).transpose().map(Self)
    }

    pub(crate) fn created(&self, id: &SandboxId, owner: &str, template: &str) {
        self.write(|| json!({ "event": "created", "sandbox": id, "token": owner, "template": template }));
    }

    pub(crate) fn command(&self, id: &SandboxId, owner: Option<&str>) {
        self.write(|| json!({ "event": "command", "sandbox": id, "token": owner }));
    }

    pub(crate) fn ended(&self, summary: &Summary, reason: Reason) {
        self.write(|| {
            json!({
                "event": "ended",
                "sandbox": summary.id,
                "token": summary.owner,
                "template": summary.template,
                "reason": reason,
            })
        });
    }

    #[cfg(feature = "nats")]
    pub(crate) fn job(&self, id: &str, owner: &str, outcome: &str, deliveries: i64) {
        self.write(|| {
            json!({ "event": "job", "job": id, "token": owner, "outcome": outcome, "deliveries": deliveries })
        });
    }

    pub(crate) fn refused(&self, what: &str, why: &str) {
        // Whoever has no key writes no long lines.
        let what: String = what.chars().take(LONGEST).collect();
        self.write(|| json!({ "event": "refused", "request": what, "why": why }));
    }

    fn write(&self, event: impl FnOnce() -> Value) {
        let Some(file) = &self.0 else { return };
        let mut event = event();
        if let Some(event) = event.as_object_mut() {
            event.insert("time".into(), time(now()).into());
            event.extend(trace::current().map(|trace| ("trace".to_owned(), trace.into())));
        }
        let line = format!("{event}\n");
        let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One write: lines of several processes stay whole. On a full disk there is nobody to tell.
        let _ = file.write_all(line.as_bytes());
    }
}
