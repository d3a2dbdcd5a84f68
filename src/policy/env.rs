//! Which environment variables the commands get. Says which, reads none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::text::unique_map;
use crate::report::policy_error::PolicyError;
use crate::report::words::words;

/// The environment of the commands: the base, then what is passed on, then what is set; later wins.
///
/// ```
/// use kennel::{Env, EnvBase};
///
/// let env = Env { base: EnvBase::Scrubbed, pass: vec!["CI".into()], ..Env::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Env {
    /// What to start from.
    pub base: EnvBase,
    /// Names to take from the caller's environment; it is not an error if one is not set there.
    pub pass: Vec<String>,
    /// Variables with their values.
    #[serde(deserialize_with = "unique_map")]
    pub set: BTreeMap<String, String>,
}

words! {
    /// The variables an environment starts from.
    #[derive(Default)]
    pub enum EnvBase as "env.base" {
        /// Only what programs cannot do without: `HOME`, `USER`, `LOGNAME`, `PATH`, `LANG`, `LC_*`, `TERM`,
        /// `COLORTERM`, `SHELL`, `TZ`.
        #[default]
        Scrubbed = "scrubbed",
        /// Everything the caller has, secrets included.
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
            // The value may be a secret: it is not repeated.
            if value.contains('\0') {
                return Err(PolicyError::value("env.set", name, "a value cannot hold a NUL byte"));
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
        return Err(PolicyError::value(key, name, "the name of a variable cannot hold `=` or a NUL byte"));
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
    fn impossible_names_and_values_are_refused() {
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
    fn refused_value_is_not_repeated() {
        let error = set("TOKEN", "hunter2\0").check().expect_err("NUL").to_string();
        assert!(error.contains("TOKEN") && !error.contains("hunter2"), "{error}");
    }
}
