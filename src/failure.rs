//! The closed set of failure classes, for machines. Words for people are in `error`.

use serde::Serialize;

use crate::Limit;

/// What kind of failure it was. The set is closed: names are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The policy does not allow what was asked for.
    CapabilityDenied,
    /// A limit ended the command.
    ResourceLimitExceeded,
    /// A credential is needed and was not given.
    BindingRequired,
    /// A credential could not be resolved.
    BindingFailed,
    /// Something of Kennel's own failed.
    RuntimeError,
    /// The program could not be loaded.
    LoadFailed,
    /// A connection failed in a way that may pass.
    NetworkError,
    /// The destination cannot be reached.
    NetworkUnreachable,
    /// This host cannot give the sandbox that the policy requires.
    SpawnSandboxUnavailable,
    /// The program is not the one that was approved.
    HashMismatch,
    /// The command's time was up.
    Timeout,
    /// The caller cancelled.
    Cancelled,
}

/// Who drew the line that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// The policy or manifest.
    Manifest,
    /// The single action.
    Action,
    /// The sandbox on this host.
    Sandbox,
    /// Kennel and the embedding program.
    Runtime,
    /// Something beyond.
    External,
}

/// What a failure is about, by its class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Details {
    /// Nothing beyond the message; serialised as `null`.
    None,
    /// The limit that was hit.
    Limit {
        /// Which one.
        limit: Limit,
        /// Its value, in the words of the policy.
        configured: Option<String>,
    },
    /// What the host lacks.
    Platform {
        /// The operating system.
        platform: &'static str,
        /// The cause.
        reason: String,
        /// What can be done.
        remedy: Option<String>,
    },
}

/// A failure as it is serialised: `{class, message, boundary, retriable, details, audit_id}`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Its class.
    pub class: Class,
    /// One line for people.
    pub message: String,
    /// Who drew the line.
    pub boundary: Boundary,
    /// Whether trying again may help: true for `network_error` only.
    pub retriable: bool,
    /// Names the thing.
    pub details: Details,
    /// The audit record, where there is one.
    pub audit_id: Option<String>,
}

impl Failure {
    pub(crate) fn new(class: Class, boundary: Boundary, message: String, details: Details) -> Self {
        let retriable = class == Class::NetworkError;
        Self { class, message, boundary, retriable, details, audit_id: None }
    }
}
