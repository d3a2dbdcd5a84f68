//! Selects the variables of the caller that a command gets. Pure.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::capabilities::EnvPolicy;
use crate::policy::known_variables::SYSTEM_PATH;
use crate::policy::known_variables::TEMPORARY;
use crate::report::error::Error;

/// Variables that the scrubbed environment keeps, besides `LC_*`.
const KEPT: &[&str] = &["HOME", "LANG", "PATH", "SHELL", "TERM", "USER"];

impl EnvPolicy {
    /// The variables that a command gets of these, which are usually those of this process. The scrubbed
    /// environment has a `PATH` in any case.
    ///
    /// With [`Inherit`](Self::Inherit), a command that a layer of the operating system confines does not get
    /// the variables among them that name a temporary directory of the host: it has its own.
    ///
    /// ```
    /// use kennel::capabilities::EnvPolicy;
    ///
    /// let mine = [("HOME", "/home/me"), ("AWS_SECRET", "x"), ("CI", "1")];
    /// let of = |policy: EnvPolicy| policy.variables(mine.map(|(name, value)| (name.into(), value.into())));
    /// let scrubbed = of(EnvPolicy::Scrubbed)?;
    /// assert_eq!(scrubbed.keys().collect::<Vec<_>>(), ["HOME", "PATH"]);
    /// assert_eq!(of(EnvPolicy::Vars(vec!["CI".into(), "TERM".into()]))?.len(), 1);
    /// assert_eq!(of(EnvPolicy::Inherit)?.len(), 3);
    /// // Those of this process:
    /// let all = EnvPolicy::Inherit.variables(std::env::vars_os())?;
    /// # Ok::<(), kennel::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name in [`Vars`](Self::Vars) is not valid for a variable.
    pub fn variables(
        &self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<BTreeMap<OsString, OsString>, Error> {
        let mut variables: BTreeMap<OsString, OsString> = environment.into_iter().collect();
        match self {
            Self::Scrubbed => {
                variables.retain(|name, _| is_kept(name));
                variables.entry("PATH".into()).or_insert_with(|| SYSTEM_PATH.into());
            }
            Self::Inherit => {}
            Self::Vars(names) => {
                names.iter().try_for_each(|name| check(name))?;
                variables.retain(|name, _| names.iter().any(|wanted| name == wanted.as_str()));
            }
        }
        Ok(variables)
    }
}

/// The environment of a command. `confined` means that a layer of the operating system confines it and gives
/// it its own temporary directory.
///
/// # Errors
/// A name is not valid for a variable.
pub(crate) fn variables(
    policy: &EnvPolicy,
    caller: &BTreeMap<OsString, OsString>,
    confined: bool,
) -> Result<BTreeMap<OsString, OsString>, Error> {
    let mut variables = policy.variables(caller.clone())?;
    if confined && *policy == EnvPolicy::Inherit {
        variables.retain(|name, _| !is_one_of(TEMPORARY, name));
    }
    Ok(variables)
}

fn is_kept(name: &OsStr) -> bool {
    is_one_of(KEPT, name) || name.as_encoded_bytes().starts_with(b"LC_")
}

fn is_one_of(names: &[&str], name: &OsStr) -> bool {
    names.iter().any(|other| name == *other)
}

fn check(name: &str) -> Result<(), Error> {
    if !name.is_empty() && !name.contains(['=', '\0']) {
        return Ok(());
    }
    Err(Error::Command {
        what: "environment variable",
        value: name.chars().take(80).collect(),
        reason: "is not a name".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn names(policy: &EnvPolicy, confined: bool) -> Vec<String> {
        let caller = of(&[
            ("HOME", "/h"),
            ("USER", "u"),
            ("PATH", "/bin"),
            ("LANG", "C"),
            ("LC_ALL", "C"),
            ("TERM", "t"),
            ("SHELL", "/bin/sh"),
            ("LCX", "1"),
            ("AWS_SECRET", "s"),
            ("TMPDIR", "/t"),
            ("LD_PRELOAD", "/x.so"),
        ]);
        let variables = variables(policy, &caller, confined).expect("variables");
        variables.into_keys().map(|name| name.into_string().expect("text")).collect()
    }

    #[test]
    fn scrubbed_keeps_what_the_contract_names() {
        let kept = ["HOME", "LANG", "LC_ALL", "PATH", "SHELL", "TERM", "USER"];
        assert_eq!(names(&EnvPolicy::Scrubbed, false), kept);
        assert_eq!(names(&EnvPolicy::Scrubbed, true), kept);
    }

    #[test]
    fn inherit_keeps_all_but_the_hosts_temporary_directory_where_there_is_another() {
        assert_eq!(names(&EnvPolicy::Inherit, false).len(), 11);
        let confined = names(&EnvPolicy::Inherit, true);
        assert!(confined.len() == 10 && !confined.contains(&"TMPDIR".to_owned()));
    }

    #[test]
    fn vars_keep_what_they_name_and_nothing_else() {
        let vars = EnvPolicy::Vars(vec!["AWS_SECRET".into(), "TMPDIR".into(), "UNSET".into()]);
        assert_eq!(names(&vars, true), ["AWS_SECRET", "TMPDIR"]);
        assert!(names(&EnvPolicy::Vars(Vec::new()), false).is_empty());
    }

    #[test]
    fn impossible_names_are_refused() {
        for name in ["", "A=B", "A\0"] {
            let vars = EnvPolicy::Vars(vec!["A".into(), name.into()]);
            variables(&vars, &of(&[]), false).expect_err(name);
        }
    }

    #[test]
    fn scrubbed_has_a_path_although_the_caller_has_none() {
        let made = variables(&EnvPolicy::Scrubbed, &of(&[]), false).expect("variables");
        assert_eq!(made, of(&[("PATH", SYSTEM_PATH)]));
    }

    proptest! {
        #[test]
        fn nothing_is_made_up_and_values_stay(
            caller in prop::collection::btree_map(
                prop::collection::vec(1u8..=255, 1..8).prop_map(OsString::from_vec),
                prop::collection::vec(1u8..=255, 0..8).prop_map(OsString::from_vec),
                0..12,
            ),
            names in prop::collection::vec("[A-Z_]{1,8}", 0..4),
            confined: bool,
        ) {
            for policy in [EnvPolicy::Scrubbed, EnvPolicy::Inherit, EnvPolicy::Vars(names.clone())] {
                for (name, value) in variables(&policy, &caller, confined).expect("variables") {
                    let made = name == "PATH" && value == SYSTEM_PATH;
                    prop_assert!(made || caller.get(&name) == Some(&value));
                }
            }
        }
    }
}
