//! Which protections a policy requires, and which may be missing.

use std::collections::BTreeMap;

use Protection::{CoreDumps, Keyring, LandlockScope};
use serde::{Deserialize, Serialize};

use crate::policy::text::unique_map;
use crate::report::enforcement::Protection;
use crate::report::error::policy::PolicyError;
use crate::report::words::words;

words! {
    /// Whether a sandbox may start without a protection.
    pub enum Requirement as "require" {
        /// Nothing runs without it.
        Required = "required",
        /// Kennel uses it if the host has it; the enforcement report says whether it does.
        IfAvailable = "if_available",
    }
}

/// The requirements that a policy sets. Other protections have the default of [`Requirements::of`].
///
/// ```
/// use kennel::{Protection, Requirement, Requirements};
///
/// let mut requirements = Requirements::default();
/// assert_eq!(requirements.of(Protection::Landlock), Requirement::Required);
/// requirements.set(Protection::Landlock, Requirement::IfAvailable);
/// assert_eq!(requirements.of(Protection::Landlock), Requirement::IfAvailable);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Requirements(#[serde(deserialize_with = "unique_map")] BTreeMap<Protection, Requirement>);

impl Requirements {
    /// The requirement that was set, or the default. The default is required, except for protections that
    /// hosts often lack: the limits, the keyring, core dumps and Landlock scopes. The profile and other keys
    /// may change it, and a policy that sets a limit requires it:
    /// [`Policy::effective_requirement`](crate::policy::Policy::effective_requirement).
    pub fn of(&self, protection: Protection) -> Requirement {
        self.get(protection).unwrap_or(match protection {
            Keyring | CoreDumps | LandlockScope => Requirement::IfAvailable,
            limit if limit.is_limit() => Requirement::IfAvailable,
            _ => Requirement::Required,
        })
    }

    /// The requirement that was set, if any.
    pub fn get(&self, protection: Protection) -> Option<Requirement> {
        self.0.get(&protection).copied()
    }

    /// Sets the requirement of one protection; replaces an earlier one.
    pub fn set(&mut self, protection: Protection, requirement: Requirement) {
        self.0.insert(protection, requirement);
    }

    /// The requirements that were set, in the order of [`Protection::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Protection, Requirement)> + '_ {
        self.0.iter().map(|(&protection, &requirement)| (protection, requirement))
    }

    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        let is_refused = |(protection, requirement): &(Protection, Requirement)| {
            protection.is_indispensable() && *requirement == Requirement::IfAvailable
        };
        match self.iter().find(is_refused) {
            Some((protection, requirement)) => Err(PolicyError::value(
                format!("require.{protection}"),
                requirement,
                "without it there is no sandbox; remove it or write required",
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_require_all_but_what_hosts_often_lack() {
        let optional: Vec<&str> = Protection::ALL
            .into_iter()
            .filter(|&protection| Requirements::default().of(protection) == Requirement::IfAvailable)
            .map(Protection::as_str)
            .collect();
        assert_eq!(
            optional,
            [
                "landlock_scope",
                "keyring",
                "core_dumps",
                "memory",
                "pids",
                "cpus",
                "cpuset",
                "io",
                "cpu_time",
                "open_files",
                "file_size"
            ]
        );
    }

    #[test]
    fn indispensable_protections_cannot_be_optional() {
        for protection in Protection::ALL {
            let mut requirements = Requirements::default();
            requirements.set(protection, Requirement::Required);
            requirements.check().expect("required is always fine");
            requirements.set(protection, Requirement::IfAvailable);
            assert_eq!(requirements.check().is_err(), protection.is_indispensable(), "{protection}");
        }
        let mut requirements = Requirements::default();
        requirements.set(Protection::Root, Requirement::IfAvailable);
        let error = requirements.check().expect_err("root").to_string();
        assert_eq!(
            error,
            "require.root `if_available`: without it there is no sandbox; remove it or write required"
        );
    }

    #[test]
    fn duplicate_protections_are_refused() {
        let json = r#"{"landlock": "required", "landlock": "if_available"}"#;
        let error = serde_json::from_str::<Requirements>(json).expect_err("twice").to_string();
        assert!(error.starts_with("duplicate key `landlock`"), "{error}");
    }
}
