//! The error of the broker: why a program was not spawned.

use std::error::Error as StdError;
use std::{fmt, io};

use serde::{Deserialize, Deserializer, de};

use crate::report::error::Error;
use crate::report::error::policy::{PolicyError, escaped_message, escaped_value};
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, exit, failure_of};
use crate::report::remedy::{Remedy, SettingKey, remedy};

/// Why a program was not spawned. No variant contains the value of a credential, a variable or an argument.
///
/// ```
/// use kennel::{broker::{Envelope, Manifest, SpawnPolicy}, report::Class};
///
/// let policy = SpawnPolicy::new(Manifest::from_toml("[capabilities]")?);
/// let error = policy.check(&Envelope::new("/bin/sh", &[])).unwrap_err();
/// assert_eq!(error.failure().class, Class::CapabilityDenied);
/// # Ok::<(), kennel::broker::SpawnError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The manifest is not valid, or contradicts itself.
    #[error("manifest")]
    Manifest(#[from] PolicyError),
    /// The envelope is not valid.
    #[error(transparent)]
    Envelope(PolicyError),
    /// The manifest or the action does not allow the request.
    #[error("{what} {requested}: {reason}")]
    Denied {
        /// Which of them refused it: [`Boundary::Manifest`] or [`Boundary::Action`].
        boundary: Boundary,
        /// The kind of the request: `program`, `working directory`, …
        what: &'static str,
        /// The requested name or path, shortened; for arguments only their number.
        requested: String,
        /// Why not.
        reason: String,
        /// What is allowed instead.
        granted: Vec<String>,
        /// The id of its audit record, if there is one.
        audit_id: Option<String>,
    },
    /// A path of the manifest cannot be granted.
    #[error("{what} {path}")]
    Path {
        /// The key of the manifest: `fs_read`, `fs_write`, `cwd`.
        what: &'static str,
        /// The path, as in the manifest.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The program cannot be loaded.
    #[error("program {program}")]
    Load {
        /// Its path, as in the manifest.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// The program is not the approved one.
    #[error("program {program} is not the approved one: its hash is {found}, not {expected}")]
    HashMismatch {
        /// Its path, as in the manifest.
        program: String,
        /// The hash in the manifest.
        expected: String,
        /// The hash of the program.
        found: String,
        /// The id of its audit record, if there is one.
        audit_id: Option<String>,
    },
    /// A required credential is missing.
    #[error("credential {key} is required and was not given")]
    CredentialRequired {
        /// The variable that would hold it.
        key: String,
    },
    /// A credential could not be resolved.
    #[error("credential {key}")]
    CredentialFailed {
        /// The variable that would hold it.
        key: String,
        /// The resolver's reason.
        source: CredentialError,
    },
    /// The sandbox could not be prepared, or the program could not run in it.
    #[error(transparent)]
    Sandbox(Box<Error>),
}

impl From<Error> for SpawnError {
    fn from(error: Error) -> Self {
        Self::Sandbox(Box::new(error))
    }
}

failure_of!(SpawnError);

impl SpawnError {
    pub(crate) fn denied(
        boundary: Boundary,
        what: &'static str,
        requested: impl fmt::Display,
        reason: impl Into<String>,
        granted: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self::Denied {
            boundary,
            what,
            requested: escaped_value(&requested.to_string()),
            // The reason may contain untrusted text.
            reason: escaped_message(&reason.into()),
            granted: granted.into_iter().map(Into::into).collect(),
            audit_id: None,
        }
    }

    pub(crate) fn mismatch(program: &str, expected: Hash, found: Hash) -> Self {
        Self::HashMismatch {
            program: program.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
            audit_id: None,
        }
    }

    /// The same error with the id of its audit record.
    pub(crate) fn recorded(mut self, id: Option<String>) -> Self {
        if let Self::Denied { audit_id, .. } | Self::HashMismatch { audit_id, .. } = &mut self {
            *audit_id = id;
        }
        self
    }

    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        let text = match self {
            // The program itself exists.
            Self::Sandbox(error)
                if matches!(**error, Error::NotFound { .. } | Error::NoInterpreter { .. }) =>
            {
                "put the interpreter that its first line names, or the loader that it needs, into fs_read; those of the system are visible anyway"
            }
            Self::Sandbox(error) => return error.remedy(),
            Self::Manifest(error) => return error.remedy(),
            Self::HashMismatch { .. } => {
                "find out who changed the program; if you did, put its new hash into the manifest"
            }
            Self::CredentialRequired { .. } => return Some(remedy!["give it to ", SettingKey::Credentials]),
            Self::Denied { boundary: Boundary::Manifest, .. } => {
                "ask for what the manifest allows, or change the manifest"
            }
            _ => return None,
        };
        Some(text.into())
    }

    /// The error and its causes in one line, joined by `: `.
    #[must_use]
    pub fn chain(&self) -> String {
        failure::chain(self)
    }

    /// Its exit status: 127 not found, 126 not executable, 125 everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Sandbox(error) => error.exit_code(),
            Self::Load { source, .. } if source.kind() == io::ErrorKind::NotFound => exit::NOT_FOUND,
            Self::Load { .. } => exit::NOT_EXECUTABLE,
            _ => exit::FAILED,
        }
    }

    /// The failure class that machines read.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (class, boundary, details) = match self {
            Self::Manifest(error) => return error.failure().with_message(self.chain()),
            Self::Sandbox(error) => return error.failure(),
            Self::Envelope(_) => (Class::CapabilityDenied, Boundary::Action, Details::None),
            Self::Denied { boundary, requested, granted, .. } => {
                let details = Details::Granted { requested: requested.clone(), granted: granted.clone() };
                (Class::CapabilityDenied, *boundary, details)
            }
            Self::Path { .. } => (Class::CapabilityDenied, Boundary::Manifest, Details::None),
            Self::Load { .. } => (Class::LoadFailed, Boundary::Manifest, Details::None),
            Self::HashMismatch { expected, found, .. } => {
                let details = Details::Hash { expected: expected.clone(), found: found.clone() };
                (Class::HashMismatch, Boundary::Manifest, details)
            }
            Self::CredentialRequired { key } => {
                let details = Details::Granted { requested: key.clone(), granted: Vec::new() };
                (Class::BindingRequired, Boundary::Runtime, details)
            }
            Self::CredentialFailed { key, .. } => {
                let details = Details::Granted { requested: key.clone(), granted: Vec::new() };
                (Class::BindingFailed, Boundary::Runtime, details)
            }
        };
        let audit_id = match self {
            Self::Denied { audit_id, .. } | Self::HashMismatch { audit_id, .. } => audit_id.clone(),
            _ => None,
        };
        Failure::new(class, boundary, self.chain(), details).recorded(audit_id)
    }
}

/// Why a credential could not be resolved. Its text appears in messages, so it must not contain the value.
pub type CredentialError = Box<dyn StdError + Send + Sync>;

/// A SHA-256 hash, written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Hash {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            let pair = digits.get(at..at + 2).filter(|pair| pair.bytes().all(|c| c.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let form = "a hash is written `sha256:` and 64 hexadecimal digits, as `sha256sum` prints them";
        Self::parse(&text).ok_or_else(|| de::Error::custom(form))
    }
}
