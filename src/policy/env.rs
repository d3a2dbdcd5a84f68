//! Which environment variables the commands get. Plain data; nothing here reads a variable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::text::unique_map;
use crate::report::error::policy::PolicyError;
use crate::report::words::words;

/// The environment of the commands. It starts with `base`; `pass` adds variables of the caller, and `set`
/// adds or replaces variables.
///
/// ```
/// use kennel::{Env, EnvBase};
///
/// let env = Env { base: EnvBase::Scrubbed, pass: vec!["CI".into()], ..Env::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Env {
    /// The variables to start with.
    pub base: EnvBase,
    /// Names of variables to copy from the caller's environment. A variable that is not set there is skipped.
    pub pass: Vec<String>,
    /// Variables with their values.
    #[serde(deserialize_with = "unique_map")]
    pub set: BTreeMap<String, String>,
}

words! {
    /// The variables an environment starts from.
    #[derive(Default)]
    pub enum EnvBase as "env.base" {
        /// Only variables that programs need and that hold no secrets: who the user is, how programs show
        /// things, how tools build, and which registries they ask.
        #[default]
        Scrubbed = "scrubbed",
        /// The whole environment of the caller, secrets included. It lacks variables that name what commands
        /// do not see.
        Inherit = "inherit",
    }
}

impl Env {
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        for name in &self.pass {
            check_name("env.pass", name)?;
        }
        for (name, value) in &self.set {
            check_name("env.set", name)?;
            // The value may be a secret, so the message does not repeat it.
            if value.contains('\0') {
                return Err(PolicyError::value("env.set", name, "a value cannot contain a NUL byte"));
            }
        }
        Ok(())
    }
}

fn check_name(key: &str, name: &str) -> Result<(), PolicyError> {
    if name.is_empty() {
        return Err(PolicyError::value(key, name, "the name of a variable is missing"));
    }
    if name.contains(['=', '\0']) {
        return Err(PolicyError::value(key, name, "the name of a variable cannot contain `=` or a NUL byte"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Env {
        Env { set: BTreeMap::from([(name.to_owned(), value.to_owned())]), ..Env::default() }
    }

    #[test]
    fn ordinary_variables_pass() {
        set("A", "").check().expect("empty value");
        set("npm_config_a.b-c", "x=y\n").check().expect("any value");
        Env { pass: vec!["CI".into()], ..Env::default() }.check().expect("passed on");
    }

    #[test]
    fn invalid_names_are_refused() {
        for name in ["", "A=B", "A\0"] {
            let error = set(name, "x").check().expect_err(name).to_string();
            let value = if name.is_empty() { ": " } else { " `" };
            assert!(error.starts_with(&format!("env.set{value}")), "{error}");
            let error =
                Env { pass: vec![name.into()], ..Env::default() }.check().expect_err(name).to_string();
            assert!(error.starts_with(&format!("env.pass{value}")), "{error}");
        }
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        let error = set("TOKEN", "hunter2\0").check().expect_err("NUL").to_string();
        assert!(error.contains("TOKEN") && !error.contains("hunter2"), "{error}");
    }
}
