//! Why a connector could not be loaded, or a call of it failed.

use std::fmt;

use serde_json::Value;

use crate::broker::manifest::Manifest;
use crate::connector::journal::LogLine;
use crate::report::error::Error;
use crate::report::failure::{Boundary, Class, Details, Failure, Limit};

/// Why a connector could not be loaded, or a call of it failed. Holds no value of a credential.
///
/// ```
/// use kennel::{Class, Manifest};
/// use kennel::connector::Runtime;
///
/// let runtime = Runtime::builder().build()?;
/// let manifest = Manifest::from_toml("[capabilities]")?;
/// let error = runtime.compile(&manifest, b"no WebAssembly").unwrap_err();
/// assert_eq!(error.failure().class, Class::LoadFailed);
/// assert_eq!(error.to_wire()["class"], "connector_load_failed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ConnectorError {
    failure: Box<Failure>,
    logs: Vec<LogLine>,
}

impl ConnectorError {
    pub(crate) fn new(failure: Failure, logs: Vec<LogLine>) -> Self {
        Self { failure: Box::new(failure), logs }
    }

    /// The failure that machines read.
    #[must_use]
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// What the program logged before the call failed.
    #[must_use]
    pub fn logs(&self) -> &[LogLine] {
        &self.logs
    }

    /// The failure as JSON, with the names that callers of connectors expect: `connector_runtime_error` for the program's
    /// own fault, `connector_load_failed` for a program that does not load. All other classes keep their names.
    #[must_use]
    pub fn to_wire(&self) -> Value {
        let mut wire = serde_json::to_value(&*self.failure).unwrap_or_default();
        let class = match self.failure.class {
            Class::RuntimeError => "connector_runtime_error",
            Class::LoadFailed => "connector_load_failed",
            _ => return wire,
        };
        if let Some(field) = wire.get_mut("class") {
            *field = class.into();
        }
        wire
    }
}

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.failure.message)
    }
}

impl std::error::Error for ConnectorError {}

impl From<&ConnectorError> for Failure {
    fn from(error: &ConnectorError) -> Self {
        (*error.failure).clone()
    }
}

impl From<Failure> for ConnectorError {
    fn from(failure: Failure) -> Self {
        Self::new(failure, Vec::new())
    }
}

impl From<Error> for ConnectorError {
    fn from(error: Error) -> Self {
        error.failure().into()
    }
}

// The failures of connectors.

/// The program cannot be loaded.
pub(crate) fn not_loaded(message: String) -> Failure {
    Failure::new(Class::LoadFailed, Boundary::Manifest, message, Details::None)
}

/// A fault of the program itself.
pub(crate) fn fault(message: String) -> Failure {
    Failure::new(Class::RuntimeError, Boundary::Runtime, message, Details::None)
}

/// The program asked for something that the manifest or the call does not grant.
pub(crate) fn denied(
    boundary: Boundary,
    requested: String,
    message: String,
    granted: impl IntoIterator<Item = String>,
) -> Failure {
    let granted = granted.into_iter().collect();
    Failure::new(Class::CapabilityDenied, boundary, message, Details::Granted { requested, granted })
}

/// A limit ended the call. `configured` is its value in words.
pub(crate) fn exceeded(limit: Limit, configured: String, message: String) -> Failure {
    let details = Details::Limit { limit, configured: Some(configured), used: None };
    Failure::new(Class::ResourceLimitExceeded, Boundary::Runtime, message, details)
}

/// The name of a connector in messages.
pub(crate) fn name(manifest: &Manifest) -> &str {
    manifest.name().unwrap_or("connector")
}
