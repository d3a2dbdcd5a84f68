//! Names of sessions: they become names of files, so nothing else may be spelled with them.

use std::fmt;

use crate::report::listen_error::ListenError;

/// Longest name, in bytes.
const LONGEST: usize = 64;

/// A name that was checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(String);

impl Name {
    /// # Errors
    /// Everything that is not `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`.
    pub(crate) fn new(name: &str) -> Result<Self, ListenError> {
        let refused = |reason| {
            let shown = name.chars().take(80).collect();
            Err(ListenError::Name { name: shown, reason })
        };
        match name.as_bytes() {
            [] => refused("is empty"),
            bytes if bytes.len() > LONGEST => refused("is longer than 64 characters"),
            [first, ..] if !first.is_ascii_alphanumeric() => refused("does not begin with a letter or digit"),
            bytes if !bytes.iter().all(|&byte| is_allowed(byte)) => {
                refused("has a character that no name has")
            }
            _ => Ok(Self(name.to_owned())),
        }
    }

    /// The session whose socket a file is by its name.
    pub(crate) fn of_socket(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".sock")?).ok()
    }

    /// The session whose lock a file is by its name.
    pub(crate) fn of_lock(file: &str) -> Option<Self> {
        Self::new(file.strip_suffix(".lock")?).ok()
    }

    /// The file of its socket.
    pub(crate) fn socket(&self) -> String {
        format!("{}.sock", self.0)
    }

    /// The file of its lock.
    pub(crate) fn lock(&self) -> String {
        format!("{}.lock", self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_names() {
        let longest = "x".repeat(64);
        for name in ["a", "a1", "0", "A-b_c.d", "a..b", "a.sock", longest.as_str()] {
            assert_eq!(Name::new(name).expect(name).to_string(), name);
        }
    }

    #[test]
    fn everything_that_could_lead_elsewhere_is_refused() {
        let long = "x".repeat(65);
        for name in
            ["", ".", "..", "../x", "a/b", "/a", ".a", "-a", "_a", "a b", "a\0", "a\n", "ä", "a\\", &long]
        {
            let error = Name::new(name).expect_err(name);
            assert!(error.remedy().is_some(), "{error}");
        }
    }

    #[test]
    fn sockets_are_known_by_their_names() {
        assert_eq!(Name::of_socket("a.b.sock").expect("a socket").to_string(), "a.b");
        for file in ["a", "a.lock", ".sock", "kennel-exec", "..sock"] {
            assert_eq!(Name::of_socket(file), None, "{file}");
        }
    }
}
