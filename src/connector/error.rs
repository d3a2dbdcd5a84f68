//! Why a connector could not be loaded, or a call of it failed.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::broker::manifest::Manifest;
use crate::connector::journal::LogLine;
use crate::report::error::Error;
use crate::report::escape::harmless;
use crate::report::failure::{Boundary, Class, Details, Failure, Limit, exit};
use crate::report::remedy::{Remedy, SettingKey, Wording, remedy};

/// Characters that are kept of the class and of the message of a program's error.
pub(crate) const MAX_ERROR: usize = 4096;

/// Why a connector could not be loaded, or a call of it failed. Holds no value of a credential.
///
/// ```
/// use kennel::{broker::Manifest, report::Class};
/// use kennel::connector::Runtime;
///
/// let runtime = Runtime::builder().build()?;
/// let manifest = Manifest::from_toml("[capabilities]")?;
/// let error = runtime.compile(&manifest, b"no WebAssembly").unwrap_err();
/// assert_eq!(error.failure().class, Class::LoadFailed);
/// let wire = error.to_wire();
/// assert_eq!((&wire["class"], &wire["boundary"]), (&"connector_load_failed".into(), &"sandbox".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ConnectorError {
    failure: Box<Failure>,
    logs: Vec<LogLine>,
    remedy: Option<Remedy>,
    exit_code: u8,
}

/// Exit status for a fault of the program itself.
const FAULT: u8 = 1;

impl ConnectorError {
    /// The failure of a call, and what the program logged.
    pub(crate) fn of_call(failure: Failure, logs: Vec<LogLine>) -> Self {
        let exit_code = match (failure.class, &failure.details) {
            (Class::RuntimeError, _) => FAULT,
            (_, Details::Limit { limit: Limit::WallTime, .. }) => exit::TIMED_OUT,
            _ => exit::FAILED,
        };
        Self { logs, exit_code, ..failure.into() }
    }

    /// The same error with what the program logged.
    pub(crate) fn with_logs(self, logs: Vec<LogLine>) -> Self {
        Self { logs, ..self }
    }

    /// The same error with a remedy.
    pub(crate) fn with_remedy(self, remedy: Remedy) -> Self {
        Self { remedy: Some(remedy), ..self }
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

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&Remedy> {
        self.remedy.as_ref()
    }

    /// The lines for people: the error, and a hint, with settings in the words of a front end. Characters
    /// that a terminal obeys or that reorder text are escaped.
    #[must_use]
    pub fn lines(&self, wording: Wording) -> Vec<String> {
        let remedy = self.remedy().map(|remedy| format!("kennel: hint: {}", remedy.in_words(wording)));
        [format!("kennel: {}", harmless(&self.failure.message))].into_iter().chain(remedy).collect()
    }

    /// Its exit status: 1 for a fault of the program, 124 if the call took too long, 125 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The failure as JSON, as callers that know connectors from elsewhere expect it: see
    /// [`Failure::to_wire`].
    #[must_use]
    pub fn to_wire(&self) -> Value {
        self.failure.to_wire()
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
        let remedy = remedy(&failure);
        Self { failure: Box::new(failure), logs: Vec::new(), remedy, exit_code: exit::FAILED }
    }
}

impl From<Error> for ConnectorError {
    fn from(error: Error) -> Self {
        let remedy = error.remedy();
        Self { remedy, ..error.failure().into() }
    }
}

/// What a person can do about a failure.
fn remedy(failure: &Failure) -> Option<Remedy> {
    let words = match (failure.class, &failure.details) {
        (_, Details::Platform { remedy, .. }) => return remedy.clone(),
        (_, Details::Limit { limit: Limit::Memory, .. }) => {
            return Some(remedy![
                "give the call more memory: ",
                SettingKey::Memory.to("SIZE"),
                ", or memory_bytes in capabilities.limits of the manifest",
            ]);
        }
        (_, Details::Limit { limit: Limit::WallTime, .. }) => {
            return Some(remedy![
                "give the call more time: ",
                SettingKey::Timeout.to("TIME"),
                ", or wall_seconds in capabilities.limits of the manifest",
            ]);
        }
        (Class::CapabilityDenied, _) if failure.boundary == Boundary::Manifest => {
            "if the connector may have that, change its manifest"
        }
        // An envelope that lacks something narrows nothing.
        (Class::CapabilityDenied, Details::Granted { granted, .. })
            if failure.boundary == Boundary::Action && !granted.is_empty() =>
        {
            return Some(remedy![
                "if this call may have that, name it with ",
                SettingKey::Allow.to("HOST:PORT"),
                " or ",
                SettingKey::Program.to("PROGRAM"),
                ", or leave these out",
            ]);
        }
        (Class::BindingRequired, _) => {
            return Some(remedy!["give it to ", SettingKey::Credentials.to("call")]);
        }
        _ => return None,
    };
    Some(words.into())
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

/// `what` has more bytes than it may have.
pub(crate) fn too_large(what: &str, max: usize) -> Failure {
    let configured = format!("{max} bytes");
    let message = format!("{what} has more than {configured}");
    exceeded(Limit::Output, configured, message)
}

/// The name of a connector in messages.
pub(crate) fn name(manifest: &Manifest) -> &str {
    manifest.name().unwrap_or("connector")
}

/// A host function ended the call.
#[derive(Debug)]
pub(crate) struct Stopped(pub(crate) Failure);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Stopped {}

/// An error that a program reports.
#[derive(Deserialize)]
pub(crate) struct GuestError {
    pub(crate) class: String,
    pub(crate) message: String,
}

impl GuestError {
    pub(crate) fn failure(&self) -> Failure {
        let [class, message] = [&self.class, &self.message]
            .map(|text| harmless(&text.chars().take(MAX_ERROR).collect::<String>()));
        fault(format!("{class}: {message}"))
    }
}
