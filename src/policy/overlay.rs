//! The overlay: Kennel keeps changes apart from the workspace until they are committed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::path::check_text;
use crate::policy::profile::Profile;
use crate::policy::units::{Size, check_size};
use crate::report::error::policy::PolicyError;

/// Lets commands write to the workspace, and keeps their changes elsewhere until they are committed: see
/// [`Session::changes`], [`Session::commit`], [`Session::discard`].
///
/// In a policy file: `overlay = {}` or `[overlay]` with `size` or `upper`.
///
/// ```
/// use kennel::{Overlay, Policy, Size};
///
/// let overlay = Overlay { size: Some(Size::from_bytes(1 << 30)), ..Overlay::default() };
/// let policy = Policy::default().overlay(overlay);
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
    /// An empty directory of the host that holds the changes. `None`: changes stay in memory, which needs
    /// Linux 6.6.
    ///
    /// The caller must own it. Its file system must support user extended attributes, as ext4, XFS and btrfs
    /// do. No command may be able to write to it. It is empty again after the session, unless you keep the
    /// changes with [`Session::leave_changes`](crate::session::Session::leave_changes).
    pub upper: Option<PathBuf>,
    /// Begin with the changes that are in `upper`, and leave them there when the session ends: see
    /// [`KeptChanges`](crate::overlay::kept_changes::KeptChanges). Needs `upper`. Not part of the text of a
    /// policy.
    #[serde(skip)]
    pub keeps: bool,
    /// How many bytes of memory the changes may take. Default:
    /// [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size).
    pub size: Option<Size>,
}

impl Overlay {
    pub(crate) fn check(&self, profile: Profile) -> Result<(), PolicyError> {
        check_size("overlay.size", self.size)?;
        if let Some(upper) = &self.upper {
            check_text("overlay.upper", upper)?;
            if let Some(size) = self.size {
                let reason = "limits memory only; the file system limits the directory overlay.upper; remove one of the two";
                return Err(PolicyError::value("overlay.size", size, reason));
            }
        }
        if self.keeps && self.upper.is_none() {
            let reason = "changes are kept in a directory; name one as overlay.upper";
            return Err(PolicyError::value("overlay.keeps", true, reason));
        }
        if !profile.meaning().writes {
            let reason = "profile read-only has no changes to keep apart; choose another profile";
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
    fn the_keys_are_read_from_a_policy_file() {
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
    fn contradictions_are_refused() {
        let refused = |policy: Policy, words: &str| {
            let error = policy.validate().expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        let policy = |profile| Policy::profile(profile, "/w");
        refused(policy(Profile::ReadOnly).overlay(Overlay::default()), "read-only");
        let both = Overlay { upper: Some("/u".into()), size: Some(Size::from_bytes(1)), keeps: false };
        refused(policy(Profile::RepoWrite).overlay(both), "one of the two");
        let empty = Overlay { upper: Some("".into()), ..Overlay::default() };
        refused(policy(Profile::RepoWrite).overlay(empty), "missing");
        let nowhere = Overlay { keeps: true, ..Overlay::default() };
        refused(policy(Profile::RepoWrite).overlay(nowhere), "name one");
    }
}
