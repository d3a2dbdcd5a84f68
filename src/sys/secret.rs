//! Secret values: wiped from memory when dropped, never printed.

use std::fmt;

use zeroize::Zeroizing;

/// The value of a credential. It has no `Display` and no `Clone`, its `Debug` shows nothing, and it is wiped
/// from memory when it is dropped.
///
/// Pass the only copy: a `Vec` or `String` that you cloned the value from is not wiped.
///
/// ```
/// use kennel::Secret;
///
/// let secret = Secret::from("ghp_16C7e42F292c6912E7".to_owned());
/// assert_eq!(format!("{secret:?}"), "Secret");
/// ```
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The value, for the request that hands it over.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Secret {
    fn from(value: Vec<u8>) -> Self {
        Self(Zeroizing::new(value))
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        value.into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
