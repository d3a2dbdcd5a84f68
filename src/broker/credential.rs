//! Credentials: who has them, and how they travel. A value goes from its resolver into the environment of one child, and
//! nowhere else.

use crate::report::spawn_error::CredentialError;
use crate::sys::secret::Secret;
use std::future::Future;
use std::pin::Pin;

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
