//! A workspace whose changes are kept apart from it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::limits::check_size;
use crate::policy::profile::Profile;
use crate::policy::units::Size;
use crate::policy::validate::check_text;
use crate::report::policy_error::PolicyError;

/// Lets commands write to the workspace, while their changes are kept elsewhere until they are committed:
/// [`Session::changes`], [`Session::commit`], [`Session::discard`].
///
/// In a policy file: `overlay = {}` or `[overlay]` with `size` or `upper`.
///
/// ```
/// use kennel::{Overlay, Policy, Size};
///
/// let policy = Policy::default().overlay(Overlay { size: Some(Size::from_bytes(1 << 30)), ..Overlay::default() });
/// policy.validate()?;
/// # Ok::<(), kennel::PolicyError>(())
/// ```
///
/// [`Session::changes`]: crate::session::Session::changes
/// [`Session::commit`]: crate::session::Session::commit
/// [`Session::discard`]: crate::session::Session::discard
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overlay {
    /// An empty directory of the host that changes are kept in meanwhile. `None`: in memory, which needs Linux 6.6.
    ///
    /// It must be the caller's own, on a file system with user extended attributes such as ext4, XFS or btrfs, and
    /// outside of all that commands can write. It is empty again after the session, unless you
    /// keep them ([`Session::leave_changes`](crate::session::Session::leave_changes)).
    pub upper: Option<PathBuf>,
    /// How much changes may take in memory, in bytes. Default: [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size).
    pub size: Option<Size>,
}

impl Overlay {
    pub(crate) fn check(&self, profile: Profile) -> Result<(), PolicyError> {
        check_size("overlay.size", self.size)?;
        if let Some(upper) = &self.upper {
            check_text("overlay.upper", upper)?;
            if let Some(size) = self.size {
                let reason = "is about memory: what a directory holds is bounded by its file system; leave one of both out";
                return Err(PolicyError::value("overlay.size", size, reason));
            }
        }
        if !profile.meaning().writes {
            let reason = "profile read-only changes nothing that could be kept apart; choose another profile";
            return Err(PolicyError::value("overlay", profile, reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn a_file_says_where_and_how_much() {
        let parse = |text: &str| Policy::from_toml(text).expect(text).overlay;
        assert_eq!(parse("overlay = {}"), Some(Overlay::default()));
        assert_eq!(
            parse("overlay.size = '1M'").and_then(|overlay| overlay.size),
            Some(Size::from_bytes(1 << 20))
        );
        assert_eq!(parse("[overlay]\nupper = '/u'").and_then(|overlay| overlay.upper), Some("/u".into()));
        assert_eq!(parse("hostname = 'a'"), None);
        Policy::from_toml("overlay.uper = '/u'").expect_err("unknown");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let refused = |policy: Policy, words: &str| {
            let error = policy.validate().expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        let policy = |profile| Policy::profile(profile, "/w");
        refused(policy(Profile::ReadOnly).overlay(Overlay::default()), "read-only");
        let both = Overlay { upper: Some("/u".into()), size: Some(Size::from_bytes(1)) };
        refused(policy(Profile::RepoWrite).overlay(both), "one of both");
        let empty = Overlay { upper: Some("".into()), size: None };
        refused(policy(Profile::RepoWrite).overlay(empty), "missing");
    }
}
