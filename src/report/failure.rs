//! The closed set of failure classes, for machines. `error` has the texts for people.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::report::escape::harmless;
use crate::report::remedy::{Remedy, Setting, SettingKey, Wording};

/// Exit statuses that Kennel itself uses, as env(1) and timeout(1) do.
pub(crate) mod exit {
    pub(crate) const TIMED_OUT: u8 = 124;
    pub(crate) const FAILED: u8 = 125;
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    pub(crate) const NOT_FOUND: u8 = 127;
}

/// The kind of a failure. The set is closed: the names are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Class {
    /// The policy does not allow the request.
    CapabilityDenied,
    /// A limit ended the command.
    ResourceLimitExceeded,
    /// A required credential was not given.
    BindingRequired,
    /// A credential could not be resolved.
    BindingFailed,
    /// Something in Kennel or the embedding program failed. Also read as `connector_runtime_error`.
    #[serde(alias = "connector_runtime_error")]
    RuntimeError,
    /// The program could not be loaded. Also read as `connector_load_failed`.
    #[serde(alias = "connector_load_failed")]
    LoadFailed,
    /// A connection failed, perhaps temporarily.
    NetworkError,
    /// The destination cannot be reached.
    NetworkUnreachable,
    /// This host cannot provide the sandbox that the policy requires.
    SpawnSandboxUnavailable,
    /// The program is not the approved one.
    HashMismatch,
    /// The command ran into its timeout.
    Timeout,
    /// The caller cancelled the command.
    Cancelled,
}

/// Which layer refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// The policy or manifest.
    Manifest,
    /// The single request.
    Action,
    /// The sandbox on this host.
    Sandbox,
    /// Kennel and the embedding program.
    Runtime,
    /// Something outside of Kennel, such as a destination.
    External,
}

/// Details of a failure. Which variant it is depends on the class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Details {
    /// What was requested and what is allowed.
    Granted {
        /// What was requested.
        requested: String,
        /// What is allowed, in the words of the policy or manifest; empty if nothing of the kind is.
        granted: Vec<String>,
    },
    /// The limit that the command hit.
    Limit {
        /// The limit.
        limit: Limit,
        /// Its value, in the words of the policy.
        configured: Option<String>,
        /// How much of it the command used, in the same words, if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        used: Option<String>,
    },
    /// What the host lacks.
    Platform {
        /// The operating system.
        platform: Cow<'static, str>,
        /// The cause.
        reason: String,
        /// What a person can do.
        remedy: Option<Remedy>,
    },
    /// A program that is not the approved one.
    Hash {
        /// The hash in the manifest.
        expected: String,
        /// The hash of the program.
        found: String,
    },
    /// Nothing beyond the message; serialised as `null`.
    None,
}

/// A failure as it is serialised: `{class, message, boundary, retriable, details, audit_id}`.
///
/// Every error of this crate has a method `failure`, and `Failure` implements `From` of a reference to it.
///
/// ```
/// use kennel::{Error, report::{Boundary, Class, Failure}};
///
/// let failure = Failure::from(&Error::NotFound { program: "make".to_owned() });
/// assert_eq!((failure.class, failure.boundary), (Class::LoadFailed, Boundary::Sandbox));
/// let text = serde_json::to_string(&failure)?;
/// assert_eq!(serde_json::from_str::<Failure>(&text)?, failure);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
#[non_exhaustive]
pub struct Failure {
    /// Its class.
    pub class: Class,
    /// One line for people.
    pub message: String,
    /// Which layer refused.
    pub boundary: Boundary,
    /// Whether trying again may help: true for `network_error` only.
    pub retriable: bool,
    /// Facts that depend on the class.
    pub details: Details,
    /// The audit record, if there is one.
    pub audit_id: Option<String>,
}

/// The key of the boundary, and the name of a request that is wrong by itself, for callers that know
/// connectors from elsewhere.
const BOUNDARY_DETAIL: &str = "boundary_detail";
const ENVELOPE: &str = "envelope";

impl Failure {
    pub(crate) fn new(class: Class, boundary: Boundary, message: String, details: Details) -> Self {
        let retriable = class == Class::NetworkError;
        Self { class, message, boundary, retriable, details, audit_id: None }
    }

    /// The failure as JSON for callers that know connectors and spawns from elsewhere. For them, everything
    /// that Kennel refuses is at the boundary `sandbox`, and `details.boundary_detail` says which part of
    /// Kennel it was: `connector_manifest`, `action`, `envelope` (the request itself is wrong), `runtime` or
    /// `external`. `runtime_error` and `load_failed` are called `connector_runtime_error` and
    /// `connector_load_failed`.
    ///
    /// ```
    /// use kennel::{broker::{Envelope, Manifest, SpawnPolicy}, report::Failure};
    ///
    /// let policy = SpawnPolicy::new(Manifest::from_toml("[capabilities]")?);
    /// let failure = policy.check(&Envelope::new("/bin/sh", &[])).unwrap_err().failure();
    /// let wire = failure.to_wire();
    /// assert_eq!((&wire["class"], &wire["boundary"]), (&"capability_denied".into(), &"sandbox".into()));
    /// assert_eq!(wire["details"]["boundary_detail"], "connector_manifest");
    /// assert_eq!(serde_json::from_value::<Failure>(wire)?, failure, "both forms are read");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_wire(&self) -> Value {
        let mut wire = serde_json::to_value(self).unwrap_or_default();
        match self.class {
            Class::RuntimeError => wire["class"] = "connector_runtime_error".into(),
            Class::LoadFailed => wire["class"] = "connector_load_failed".into(),
            _ => {}
        }
        wire["boundary"] = "sandbox".into();
        let detail = match (self.boundary, &self.details) {
            (Boundary::Sandbox, _) => return wire,
            (Boundary::Manifest, _) => "connector_manifest",
            // It was compared with no list.
            (Boundary::Action, Details::None) => ENVELOPE,
            (Boundary::Action, Details::Granted { granted, .. }) if granted.is_empty() => ENVELOPE,
            (Boundary::Action, _) => "action",
            (Boundary::Runtime, _) => "runtime",
            (Boundary::External, _) => "external",
        };
        wire["details"][BOUNDARY_DETAIL] = detail.into();
        wire
    }

    /// What [`to_wire`](Self::to_wire) wrote, as it is serialised as usual. Anything else stays.
    fn plain(mut wire: Value) -> Value {
        let details = wire.get_mut("details").and_then(Value::as_object_mut);
        let detail = details.and_then(|details| details.remove(BOUNDARY_DETAIL));
        let boundary = match detail.as_ref().and_then(Value::as_str) {
            Some("connector_manifest") => Some("manifest"),
            Some(ENVELOPE) => Some("action"),
            other => other,
        };
        if let Some(boundary) = boundary {
            wire["boundary"] = boundary.into();
            if wire["details"].as_object().is_some_and(serde_json::Map::is_empty) {
                wire["details"] = Value::Null;
            }
        }
        wire
    }

    /// The same failure with another message.
    pub(crate) fn with_message(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    /// The same failure with the remedy as a text, in the words of a front end.
    #[must_use]
    pub fn worded(mut self, wording: Wording) -> Self {
        if let Details::Platform { remedy: Some(remedy), .. } = &mut self.details {
            *remedy = remedy.worded(wording);
        }
        self
    }

    /// The same failure with the id of its audit record.
    pub(crate) fn recorded(mut self, audit_id: Option<String>) -> Self {
        self.audit_id = audit_id;
        self
    }
}

impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The function that `remote` derives.
        Self::serialize(self, serializer)
    }
}

/// Reads both forms.
impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let plain = Self::plain(Value::deserialize(deserializer)?);
        Self::deserialize(plain).map_err(de::Error::custom)
    }
}

/// Implements `From<&Error> for Failure` for error types with a method `failure`.
macro_rules! failure_of {
    ($($error:ty),+ $(,)?) => {$(
        impl From<&$error> for $crate::report::failure::Failure {
            fn from(error: &$error) -> Self {
                error.failure()
            }
        }
    )+};
}

pub(crate) use failure_of;

/// Details about what this host cannot provide.
pub(crate) fn platform(reason: String, remedy: Option<Remedy>) -> Details {
    Details::Platform { platform: Cow::Borrowed("linux"), reason, remedy }
}

/// An error and its causes in one line, joined by `: `, and escaped.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut line = words(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&words(error));
        cause = error.source();
    }
    harmless(&line)
}

/// An escaped path.
pub(crate) fn shown(path: &Path) -> String {
    harmless(&path.display().to_string())
}

/// The text of an error without the `(os error N)` of the standard library, which does not help a reader.
pub fn words(error: &(dyn StdError + 'static)) -> String {
    const NUMBER: &str = " (os error ";
    let whole = error.to_string();
    let mut pieces = whole.split(NUMBER);
    let mut words = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(')') {
            Some(rest) => words.push_str(rest),
            None => words.extend([NUMBER, piece]),
        }
    }
    words
}

/// The limit that ended a command. Each variant tells how Kennel knows. A command that succeeded hit no
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::memory`](crate::policy::limits::Limits::memory): the command's cgroup reported it. Without a
    /// cgroup, only the program sees that memory ran out.
    Memory,
    /// [`Limits::pids`](crate::policy::limits::Limits::pids): the command's cgroup reported it.
    Pids,
    /// [`Limits::timeout`](crate::policy::limits::Limits::timeout): Kennel killed it.
    WallTime,
    /// [`Limits::cpu_time`](crate::policy::limits::Limits::cpu_time), if the policy sets it: SIGXCPU ended
    /// the command, or SIGKILL one second later if the command ignores SIGXCPU. The status with which a shell
    /// reports such a child (152 or 137) counts too.
    CpuTime,
    /// [`Limits::output`](crate::policy::limits::Limits::output): Kennel killed the command, as
    /// [`output_ends`](crate::policy::limits::Limits::output_ends) demands. Without that, excess output is
    /// only cut.
    Output,
    /// [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size) or
    /// [`tmp_inodes`](crate::policy::limits::Limits::tmp_inodes): a private place or a tmpfs of the policy
    /// was full when the command failed.
    Tmpfs,
    /// [`Limits::file_size`](crate::policy::limits::Limits::file_size), if the policy sets it: SIGXFSZ ended
    /// the command, or a child of a shell (153). If the program ignores that signal, only the program sees
    /// that the file is too large.
    FileSize,
    /// [`Limits::open_files`](crate::policy::limits::Limits::open_files). Kennel does not report this limit,
    /// because only the program sees it; [`Command::hints`](crate::command::Command::hints) finds it in the
    /// program's errors, where those pass through Kennel.
    OpenFiles,
}

impl Limit {
    /// Its name for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "processes",
            Self::WallTime => "wall time",
            Self::CpuTime => "processor time",
            Self::Output => "output",
            Self::Tmpfs => "private file systems",
            Self::FileSize => "size of a file",
            Self::OpenFiles => "open files",
        }
    }

    /// The setting that raises it, if every front end has exactly one.
    pub(crate) fn setting(self) -> Option<Setting> {
        Some(match self {
            Self::Memory => SettingKey::Memory.to("SIZE"),
            Self::Pids => SettingKey::Pids.to("N"),
            Self::CpuTime => SettingKey::CpuTime.to("TIME"),
            Self::WallTime => SettingKey::Timeout.to("TIME"),
            Self::Output => SettingKey::Output.to("SIZE"),
            // The line about the limit names its settings; the others are only in policy files.
            Self::Tmpfs | Self::FileSize | Self::OpenFiles => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::capabilities::sbpl::SbplError;
    use crate::report::error::Error;
    use crate::report::error::audit::AuditError;
    use crate::report::error::image::{EntryRefusal, ImageError};
    use crate::report::error::listen::ListenError;
    use crate::report::error::policy::PolicyError;

    const CLASSES: [(Class, &str); 12] = [
        (Class::CapabilityDenied, "capability_denied"),
        (Class::ResourceLimitExceeded, "resource_limit_exceeded"),
        (Class::BindingRequired, "binding_required"),
        (Class::BindingFailed, "binding_failed"),
        (Class::RuntimeError, "runtime_error"),
        (Class::LoadFailed, "load_failed"),
        (Class::NetworkError, "network_error"),
        (Class::NetworkUnreachable, "network_unreachable"),
        (Class::SpawnSandboxUnavailable, "spawn_sandbox_unavailable"),
        (Class::HashMismatch, "hash_mismatch"),
        (Class::Timeout, "timeout"),
        (Class::Cancelled, "cancelled"),
    ];

    const BOUNDARIES: [(Boundary, &str); 5] = [
        (Boundary::Manifest, "manifest"),
        (Boundary::Action, "action"),
        (Boundary::Sandbox, "sandbox"),
        (Boundary::Runtime, "runtime"),
        (Boundary::External, "external"),
    ];

    fn details() -> [(Details, serde_json::Value); 6] {
        let text = |text: &str| text.to_owned();
        [
            (
                Details::Granted { requested: text("a"), granted: vec![text("b")] },
                serde_json::json!({"requested": "a", "granted": ["b"]}),
            ),
            (
                Details::Granted { requested: text("a"), granted: Vec::new() },
                serde_json::json!({"requested": "a", "granted": []}),
            ),
            (
                Details::Limit { limit: Limit::WallTime, configured: Some(text("1s")), used: None },
                serde_json::json!({"limit": "wall_time", "configured": "1s"}),
            ),
            (
                platform(text("no user namespaces"), Some("turn them on".into())),
                serde_json::json!({"platform": "linux", "reason": "no user namespaces", "remedy": "turn them on"}),
            ),
            (
                Details::Hash { expected: text("a"), found: text("b") },
                serde_json::json!({"expected": "a", "found": "b"}),
            ),
            (Details::None, serde_json::Value::Null),
        ]
    }

    #[test]
    fn the_words_are_those_of_the_format_and_are_read_back() {
        for (class, name) in CLASSES {
            for (boundary, place) in BOUNDARIES {
                for (details, value) in details() {
                    let failure = Failure::new(class, boundary, "m".to_owned(), details);
                    let written = serde_json::to_value(&failure).expect("plain data");
                    let expected = serde_json::json!({
                        "class": name, "message": "m", "boundary": place, "details": value,
                        "retriable": name == "network_error", "audit_id": null,
                    });
                    assert_eq!(written, expected);
                    assert_eq!(serde_json::from_value::<Failure>(written).expect("read back"), failure);
                }
            }
        }
    }

    #[test]
    fn the_wire_has_one_boundary_and_its_detail_and_is_read_back() {
        let spelled = |name: &str| match name {
            "runtime_error" | "load_failed" => format!("connector_{name}"),
            name => name.to_owned(),
        };
        for (class, name) in CLASSES {
            for (boundary, place) in BOUNDARIES {
                for (details, mut value) in details() {
                    let is_envelope = match &details {
                        Details::None => true,
                        Details::Granted { granted, .. } => granted.is_empty(),
                        _ => false,
                    };
                    let detail = match place {
                        "manifest" => "connector_manifest",
                        "action" if is_envelope => "envelope",
                        place => place,
                    };
                    let failure = Failure::new(class, boundary, "m".to_owned(), details);
                    let wire = failure.to_wire();
                    if place != "sandbox" {
                        value["boundary_detail"] = detail.into();
                    }
                    let expected = serde_json::json!({
                        "class": spelled(name), "message": "m", "boundary": "sandbox", "details": value,
                        "retriable": name == "network_error", "audit_id": null,
                    });
                    assert_eq!(wire, expected);
                    assert_eq!(serde_json::from_value::<Failure>(wire).expect("read back"), failure);
                }
            }
        }
        for (class, name) in CLASSES {
            let both = [name.to_owned(), spelled(name)].map(Value::from);
            assert!(
                both.into_iter()
                    .all(|name| serde_json::from_value::<Class>(name).is_ok_and(|it| it == class))
            );
        }
        for bad in ["{}", "[]", r#"{"details":{"boundary_detail":"elsewhere"}}"#, "null"] {
            serde_json::from_str::<Failure>(bad).expect_err(bad);
        }
    }

    #[test]
    fn the_set_is_closed() {
        for bad in [
            r#"{"class":"other","message":"","boundary":"action","retriable":false,"details":null,"audit_id":null}"#,
            r#"{"class":"timeout","message":"","boundary":"x","retriable":false,"details":null,"audit_id":null}"#,
            r#"{"class":"timeout","message":"","boundary":"action","retriable":false,"details":null,"audit_id":null,"x":1}"#,
        ] {
            serde_json::from_str::<Failure>(bad).expect_err(bad);
        }
    }

    #[test]
    fn causes_are_joined_without_numbers() {
        let error = Error::io("open it")(io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(chain(&error), "open it: No such file or directory");
        let error =
            Error::from(AuditError::Write { path: "/log".into(), source: io::Error::from_raw_os_error(28) });
        assert_eq!(chain(&error), "write to audit log /log: No space left on device");
        let inner = io::Error::other(format!("/p: {}; b", io::Error::from_raw_os_error(13)));
        assert_eq!(chain(&io::Error::other(inner)), "/p: Permission denied; b");
        for other in ["a (os error ", "a (os error x) b"] {
            assert_eq!(words(&io::Error::other(other)), other);
        }
    }

    #[test]
    fn what_somebody_named_does_nothing_to_a_terminal() {
        let name = "a\n\u{1b}[2Jb\u{202e}c";
        let (source, program, path) =
            (|| io::Error::from_raw_os_error(libc::ENOENT), || name.to_owned(), || name.into());
        let errors: Vec<Box<dyn StdError>> = vec![
            Box::new(Error::NotFound { program: program() }),
            Box::new(Error::NoInterpreter { program: program() }),
            Box::new(Error::NoProgram { program: program() }),
            Box::new(Error::NotExecutable { program: program(), source: source() }),
            Box::new(Error::File { what: "read", path: path(), source: source(), remedy: None }),
            Box::new(Error::Grant { what: "workspace", path: path(), source: source(), remedy: None }),
            Box::new(Error::View { what: "place", path: path(), reason: "no".to_owned(), remedy: None }),
            Box::new(AuditError::Read { path: path(), source: source() }),
            Box::new(ImageError::Entry {
                layer: "1".to_owned(),
                entry: name.to_owned(),
                reason: EntryRefusal::Absolute,
            }),
            Box::new(ImageError::Damaged { path: path(), reason: name.to_owned() }),
            Box::new(PolicyError::Read { path: path(), source: source() }),
            Box::new(PolicyError::Conflict {
                target: path(),
                first: "ro".to_owned(),
                second: "rw".to_owned(),
            }),
            Box::new(SbplError { what: "home", path: path(), reason: "is not UTF-8" }),
        ];
        for error in errors {
            let said = error.to_string();
            assert_eq!(said, harmless(&said));
            assert!(said.contains("a\\n\\u{1b}[2Jb\\u{202e}c"), "{said}");
        }
    }

    #[test]
    fn every_public_error_is_of_one_class() {
        let io = || io::Error::from_raw_os_error(libc::ENOENT);
        let path = || std::path::PathBuf::from("/p");
        let sbpl = SbplError { what: "home", path: path(), reason: "is not UTF-8" };
        let found: Vec<(Failure, Class)> = vec![
            ((&Error::io("x")(io())).into(), Class::RuntimeError),
            ((&AuditError::Read { path: path(), source: io() }).into(), Class::RuntimeError),
            ((&ImageError::NotFound { name: "app".to_owned() }).into(), Class::LoadFailed),
            ((&ImageError::InUse { image: "sha256:0".to_owned() }).into(), Class::RuntimeError),
            ((&ListenError::Running { name: "a".to_owned() }).into(), Class::RuntimeError),
            ((&PolicyError::Read { path: path(), source: io() }).into(), Class::LoadFailed),
            ((&PolicyError::value("k", "v", "no")).into(), Class::CapabilityDenied),
            ((&sbpl).into(), Class::CapabilityDenied),
        ];
        for (failure, class) in found {
            assert_eq!(failure.class, class, "{failure:?}");
            assert!(!failure.message.is_empty() && failure.audit_id.is_none());
        }
    }
}
