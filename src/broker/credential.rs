//! Credentials: who has them, and how they travel. A value goes from its resolver into the environment of one child, and
//! nowhere else.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use zeroize::Zeroizing;

/// The value of a credential. It has no `Display` and no `Clone`, its `Debug` shows nothing, and it is wiped from memory
/// when it is dropped.
///
/// Give it the only copy: the source that a `Vec` or `String` was copied from is not wiped.
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

/// Why a credential could not be resolved. Its words become part of messages: the value must not be in them.
pub type CredentialError = Box<dyn StdError + Send + Sync>;

/// What [`CredentialResolver::resolve`] answers with.
pub type Resolving<'r> = Pin<Box<dyn Future<Output = Result<Option<Secret>, CredentialError>> + Send + 'r>>;

/// Has credentials, or knows where to get them: a key ring, a vault, a file. It is asked for each spawn again, once for
/// each key, after everything else about the spawn was accepted.
///
/// ```
/// use kennel::{CredentialResolver, Resolving, Secret};
///
/// struct KeyRing;
///
/// impl CredentialResolver for KeyRing {
///     fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
///         Box::pin(async move {
///             Ok(match key {
///                 "GH_TOKEN" => Some(Secret::from(std::fs::read("/run/secrets/gh")?)),
///                 _ => None,
///             })
///         })
///     }
/// }
/// ```
pub trait CredentialResolver: Send + Sync {
    /// The value for `key`, the name of the variable that the child finds it in; `None` if there is none.
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r>;
}

/// A resolver that has no credentials.
///
/// ```
/// use kennel::{CredentialResolver, NoCredentials};
///
/// let resolver: &dyn CredentialResolver = &NoCredentials;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredentials;

impl CredentialResolver for NoCredentials {
    fn resolve<'r>(&'r self, _: &'r str) -> Resolving<'r> {
        Box::pin(async { Ok(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_nothing() {
        let secret = Secret::from("hidden".to_owned());
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "Secret Some(\n    Secret,\n)");
        assert_eq!(secret.expose(), b"hidden");
    }
}
