//! The audit log of a policy: its file, and what happens if Kennel cannot write to it.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::path::check_text;
use crate::report::error::policy::PolicyError;

/// The placeholder for the day (UTC) in the name of a log: `2026-01-31`.
pub(crate) const DATE: &str = "{date}";

/// A file of the host. Kennel appends a line of JSON for each session, command, decision about a connection,
/// denial and limit. It creates the file with mode 0600 if it does not exist.
///
/// In a policy file the path alone is enough: `audit = "kennel.log"`.
///
/// ```
/// use kennel::{Audit, Policy};
///
/// let audit = Audit { chain: true, ..Audit::new("/var/log/kennel/exec-{date}.log") };
/// let policy = Policy::default().audit(audit);
/// policy.validate()?;
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "AuditForm", into = "AuditForm")]
pub struct Audit {
    /// The file. `{date}` in its name is replaced by the day in UTC, so that each day has its own file.
    pub path: PathBuf,
    /// Whether Kennel refuses commands and connections that it cannot log, for example because the disk is
    /// full. Otherwise it counts the lost records, and the next line that it writes says how many.
    pub fail_closed: bool,
    /// Whether each line has the hash of the line before, so that
    /// [`verify_audit`](crate::audit::chain::verify_audit) notices a changed or removed line.
    pub chain: bool,
    /// Whether the log has the arguments of commands, which may contain secrets. Otherwise it has only their
    /// number.
    pub arguments: bool,
}

impl Audit {
    /// A plain log at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Whether a file with this name, in the directory of the log, is the log of some day.
    pub(crate) fn is_called(&self, name: &OsStr) -> bool {
        let template = self.path.file_name().unwrap_or_default().as_encoded_bytes();
        let name = name.as_encoded_bytes();
        match template.windows(DATE.len()).position(|part| part == DATE.as_bytes()) {
            Some(at) => {
                let has_length = name.len() + DATE.len() == template.len() + "2026-01-31".len();
                has_length
                    && name.starts_with(&template[..at])
                    && name.ends_with(&template[at + DATE.len()..])
            }
            None => name == template,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        check_text("audit", &self.path)?;
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let dates = |text: &OsStr| {
            text.as_encoded_bytes().windows(DATE.len()).filter(|part| *part == DATE.as_bytes()).count()
        };
        if dates(parent.as_os_str()) > 0 {
            return Err(PolicyError::path("audit", &self.path, "{date} may appear only in the file name"));
        }
        let Some(name) = self.path.file_name() else {
            return Err(PolicyError::path("audit", &self.path, "does not name a file"));
        };
        if dates(name) > 1 {
            return Err(PolicyError::path(
                "audit",
                &self.path,
                "{date} may appear only once in the file name",
            ));
        }
        Ok(())
    }
}

impl<P: Into<PathBuf>> From<P> for Audit {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// The form in a policy file: a path, or a table.
#[derive(Serialize)]
#[serde(untagged)]
enum AuditForm {
    Path(PathBuf),
    Table(Table),
}

/// Not derived: the derive for an untagged enum loses the positions of keys.
impl<'de> Deserialize<'de> for AuditForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AuditFormVisitor)
    }
}

struct AuditFormVisitor;

impl<'de> Visitor<'de> for AuditFormVisitor {
    type Value = AuditForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or a table with path, fail_closed, chain and arguments")
    }

    fn visit_str<E>(self, path: &str) -> Result<AuditForm, E> {
        Ok(AuditForm::Path(path.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, keys: A) -> Result<AuditForm, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(keys)).map(AuditForm::Table)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    path: PathBuf,
    #[serde(default)]
    fail_closed: bool,
    #[serde(default)]
    chain: bool,
    #[serde(default)]
    arguments: bool,
}

impl From<AuditForm> for Audit {
    fn from(form: AuditForm) -> Self {
        match form {
            AuditForm::Path(path) => Self::new(path),
            AuditForm::Table(Table { path, fail_closed, chain, arguments }) => {
                Self { path, fail_closed, chain, arguments }
            }
        }
    }
}

impl From<Audit> for AuditForm {
    fn from(audit: Audit) -> Self {
        let Audit { path, fail_closed, chain, arguments } = audit;
        if !(fail_closed || chain || arguments) {
            return Self::Path(path);
        }
        Self::Table(Table { path, fail_closed, chain, arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_alone_is_a_plain_log() {
        let audit: Audit = serde_json::from_str("\"/log\"").expect("valid");
        assert_eq!(audit, Audit::new("/log"));
        assert_eq!(serde_json::to_string(&audit).expect("plain"), "\"/log\"");
    }

    #[test]
    fn a_table_has_the_other_keys_and_no_unknown_ones() {
        let audit: Audit = serde_json::from_str(r#"{"path":"/log","chain":true}"#).expect("valid");
        assert_eq!(audit, Audit { chain: true, ..Audit::new("/log") });
        let again: Audit =
            serde_json::from_str(&serde_json::to_string(&audit).expect("plain")).expect("same");
        assert_eq!(again, audit);
        for (bad, words) in [
            (r#"{"chain":true}"#, "missing field `path`"),
            (r#"{"path":"/log","chian":true}"#, "unknown field `chian`"),
            ("7", "expected a path, or a table with path"),
        ] {
            let error = serde_json::from_str::<Audit>(bad).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_date_appears_only_in_the_file_name() {
        Audit::new("/var/log/exec-{date}.log").check().expect("valid");
        Audit::new("/var/log/{date}-{date}.log").check().expect_err("the second would not be replaced");
        for bad in ["/var/{date}/log", "", "/", "/var/.."] {
            Audit::new(bad).check().expect_err(bad);
        }
    }
}
