//! SHA-256 digests, by which images and layers are known.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::report::error::image::ImageError;

/// A digest as OCI writes it: `sha256:` and 64 hexadecimal digits.
///
/// ```
/// use kennel::image::Digest;
///
/// let digest = Digest::of(b"");
/// assert!(digest.to_string().starts_with("sha256:e3b0c44298fc1c14"));
/// assert_eq!(digest.to_string().parse::<Digest>()?, digest);
/// # Ok::<(), kennel::image::ImageError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// What a digest begins with.
pub(crate) const PREFIX: &str = "sha256:";

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all that a hash has taken in.
    #[cfg(feature = "image")]
    pub(crate) fn of_hash(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// The 64 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first 16 bytes in 26 digits of base 32: a short name, of lower-case letters and numbers.
    #[cfg(feature = "image")]
    pub(crate) fn short(&self) -> String {
        let bytes = self.0.first_chunk().copied().unwrap_or_default();
        let number = u128::from_be_bytes(bytes);
        let digit = |place: u32| char::from_digit(u32::try_from(number >> (5 * place) & 31).ok()?, 32);
        (0..26).rev().filter_map(digit).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let refused = |reason| ImageError::Reference { text: text.chars().take(80).collect(), reason };
        let hex = text.strip_prefix(PREFIX).ok_or_else(|| refused("only sha256 digests are supported"))?;
        let mut digest = [0; 32];
        let digits = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        if hex.len() != 64 {
            return Err(refused("a digest has 64 hexadecimal digits"));
        }
        for (to, pair) in digest.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let byte = match pair {
                [high, low] => digits(*high).zip(digits(*low)),
                _ => None,
            };
            let (high, low) = byte.ok_or_else(|| refused("a digest has 64 hexadecimal digits"))?;
            *to = high << 4 | low;
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}
