//! Paths as text without loss, for files that Kennel writes for itself: `%` and bytes that are not UTF-8 are
//! escaped.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path that is serialized without loss.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathText(pub(crate) PathBuf);

impl Serialize for PathText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for PathText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer).map(Self)
    }
}

/// For `#[serde(with = "path_text")]`.
pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("%{byte:02x}")));
    }
    serializer.serialize_str(&text)
}

/// For `#[serde(with = "path_text")]`.
///
/// # Errors
/// An escape is incomplete.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.ok_or_else(|| serde::de::Error::custom("a path with an incomplete escape"))?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    Ok(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_survives() {
        for bytes in [&b"/home/me"[..], b"a%2Fb%", b"\xff\xfe%ff", "größe/名".as_bytes(), b""] {
            let path = PathText(OsString::from_vec(bytes.to_vec()).into());
            let text = serde_json::to_string(&path).expect("text");
            assert_eq!(serde_json::from_str::<PathText>(&text).expect("a path"), path, "{text}");
        }
        serde_json::from_str::<PathText>("\"a%2\"").expect_err("incomplete");
    }
}
