//! A record with what every line has.

use std::time::SystemTime;

use serde::Serialize;

use super::{chain, record::Record};

#[derive(Serialize)]
pub(super) struct Line<'l> {
    /// RFC 3339, UTC, milliseconds.
    time: String,
    /// Of no other record of the host, as long as its process lives.
    id: &'l str,
    session: &'l str,
    /// The command, where only one can have been it; counted from 1 in its session.
    exec: Option<u64>,
    #[serde(flatten)]
    record: Record<'l>,
    /// How many records before this one could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    /// Whether parts of the record are left out, because it would be no line of a log otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// The hash of the line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prev: Option<String>,
}

impl<'l> Line<'l> {
    pub(super) fn new(id: &'l str, session: &'l str, exec: Option<u64>, record: Record<'l>) -> Self {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Self { time, id, session, exec, record, lost: 0, cut: false, prev: None }
    }

    /// As JSON, short enough for whoever reads the log.
    pub(super) fn into_bytes(mut self) -> serde_json::Result<Vec<u8>> {
        let bytes = serde_json::to_vec(&self)?;
        // With its newline, and one before it.
        if (bytes.len() as u64) < chain::LONGEST - 2 {
            return Ok(bytes);
        }
        self.record.cut();
        self.cut = true;
        serde_json::to_vec(&self)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
