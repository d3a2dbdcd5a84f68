//! What the broker leaves in the audit log: each decision, with the shape of arguments and the names of variables, and no value
//! of either.

use std::sync::Arc;

use super::{SpawnPolicy, checked::CheckedSpawn, envelope::Envelope, error::SpawnError};
use crate::{
    Audit, Error,
    audit::{Log, Record, Shape, Spawn, Trail},
};

/// An audit log that is open, and what is said of it to sandboxes.
#[derive(Clone, Debug)]
pub(super) struct Books {
    pub(super) audit: Audit,
    trail: Arc<Trail>,
}

impl Books {
    /// # Errors
    /// The log cannot be opened.
    pub(super) fn open(audit: Audit) -> Result<Self, Error> {
        // Arguments are values here, whatever else the log has.
        let path =
            std::path::absolute(&audit.path).map_err(Error::io("find the directory of the audit log"))?;
        let audit = Audit { path, arguments: false, ..audit };
        let trail = Trail::new(Some(&Arc::new(Log::open(&audit)?)));
        Ok(Self { audit, trail })
    }
}

impl SpawnPolicy {
    /// Writes a decision down; answers its id.
    ///
    /// # Errors
    /// It cannot be written, and the log says that it must be.
    pub(super) fn record(
        &self,
        envelope: &Envelope,
        found: Result<&CheckedSpawn, &SpawnError>,
        decision: &'static str,
    ) -> Result<Option<String>, SpawnError> {
        let Some(books) = &self.books else { return Ok(None) };
        let operation = found.ok().and_then(CheckedSpawn::operation);
        let failure = found.err().map(SpawnError::failure);
        let written = books.trail.write(None, || {
            Record::Spawn(Spawn {
                decision,
                program: &envelope.program,
                operation,
                shape: self.shape(envelope, operation),
                variables: envelope.env.keys().map(String::as_str).collect(),
                credentials: envelope.credential_env_keys.iter().map(String::as_str).collect(),
                directory: envelope.cwd.as_deref(),
                class: failure.as_ref().map(|failure| failure.class),
                reason: failure.map(|failure| failure.message),
            })
        });
        written.map_err(|error| Error::from(error).into())
    }

    fn shape(&self, envelope: &Envelope, operation: Option<&str>) -> Shape {
        let pattern = operation.and_then(|name| self.manifest.spawn.operations.get(name));
        let lengths = || Shape::Lengths(envelope.argv.iter().map(String::len).collect());
        pattern.map_or_else(lengths, |operation| Shape::Pattern(operation.to_string()))
    }
}
