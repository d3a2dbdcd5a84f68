//! Where a sandbox's decisions are written down, and what happens when they cannot be.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::validate::check_text;
use crate::report::policy_error::PolicyError;

/// Stands for the day in the name of a log, UTC: `2026-01-31`.
pub(crate) const DATE: &str = "{date}";

/// A file of the host's to which each session, command, decision about a connection, denial and limit is appended, as a
/// line of JSON. Created with mode 0600 if it does not exist.
///
/// In a policy file the path alone is enough: `audit = "kennel.log"`.
///
/// ```
/// use kennel::{Audit, Policy};
///
/// let policy = Policy::default().audit(Audit { chain: true, ..Audit::new("/var/log/kennel/exec-{date}.log") });
/// policy.validate()?;
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Audit {
    /// The file. `{date}` in its name stands for the day, UTC: each day has a file of its own.
    pub path: PathBuf,
    /// Whether commands and connections that cannot be logged are refused, for example if the disk is full. Otherwise lost
    /// records are counted, and the next line that can be written says how many.
    pub fail_closed: bool,
    /// Whether each line has a hash of the one before, so that
    /// [`verify_audit`](crate::audit::chain::verify_audit) notices if one was changed or removed.
    pub chain: bool,
    /// Whether the arguments of commands are logged. They may contain secrets; otherwise only their number is logged.
    pub arguments: bool,
}

impl Audit {
    /// A plain log at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Whether a file of that name, in the log's directory, is the log of some day.
    pub(crate) fn is_called(&self, name: &OsStr) -> bool {
        let own = self.path.file_name().unwrap_or_default().as_encoded_bytes();
        let name = name.as_encoded_bytes();
        match own.windows(DATE.len()).position(|part| part == DATE.as_bytes()) {
            Some(at) => {
                let day = name.len() + DATE.len() == own.len() + "2026-01-31".len();
                day && name.starts_with(&own[..at]) && name.ends_with(&own[at + DATE.len()..])
            }
            None => name == own,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        check_text("audit", &self.path)?;
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let dates = |text: &OsStr| {
            text.as_encoded_bytes().windows(DATE.len()).filter(|part| *part == DATE.as_bytes()).count()
        };
        if dates(parent.as_os_str()) > 0 {
            return Err(PolicyError::path("audit", &self.path, "{date} stands in the name of the file only"));
        }
        let Some(name) = self.path.file_name() else {
            return Err(PolicyError::path("audit", &self.path, "does not name a file"));
        };
        if dates(name) > 1 {
            return Err(PolicyError::path("audit", &self.path, "{date} stands in the name of the file once"));
        }
        Ok(())
    }
}

impl<P: Into<PathBuf>> From<P> for Audit {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// As it stands in a policy: a path, or a table.
#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    Path(PathBuf),
    Table(Table),
}

/// Not derived: what is untagged loses the places of keys.
impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WrittenVisitor)
    }
}

struct WrittenVisitor;

impl<'de> Visitor<'de> for WrittenVisitor {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or a table with path, fail_closed, chain and arguments")
    }

    fn visit_str<E>(self, path: &str) -> Result<Written, E> {
        Ok(Written::Path(path.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, keys: A) -> Result<Written, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(keys)).map(Written::Table)
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

impl From<Written> for Audit {
    fn from(written: Written) -> Self {
        match written {
            Written::Path(path) => Self::new(path),
            Written::Table(Table { path, fail_closed, chain, arguments }) => {
                Self { path, fail_closed, chain, arguments }
            }
        }
    }
}

impl From<Audit> for Written {
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
    fn a_table_says_more_and_nothing_unknown() {
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
    fn the_date_stands_in_the_name_only() {
        Audit::new("/var/log/exec-{date}.log").check().expect("valid");
        Audit::new("/var/log/{date}-{date}.log").check().expect_err("one of them would stay as it is");
        for bad in ["/var/{date}/log", "", "/", "/var/.."] {
            Audit::new(bad).check().expect_err(bad);
        }
    }
}
