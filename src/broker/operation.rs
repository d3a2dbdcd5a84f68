//! Operations: the pattern of an argument vector, from its program on, under a name in the manifest. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, de};

use crate::broker::pattern::{ArgumentPattern, RenderError, Values};

/// The pattern of an argument vector. Its first token is the program, which `argv[0]` must equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The name or path, as the manifest has it.
    pub(crate) program: String,
    pattern: ArgumentPattern,
    may_dash: Vec<String>,
}

impl Operation {
    fn parse(text: &str, may_dash: Vec<String>) -> Result<Self, String> {
        let program = text.split_whitespace().next().unwrap_or_default();
        if program.is_empty() || program.contains(['{', '}', '[', ']']) {
            return Err(format!(
                "`{program}`: an operation begins with its program, such as `gh issue create`"
            ));
        }
        let pattern = ArgumentPattern::parse(text).map_err(|error| error.to_string())?;
        if let Some(name) = may_dash.iter().find(|name| pattern.names().all(|known| known != *name)) {
            return Err(format!("allow_dash names `{name}`, which is not a placeholder of the pattern"));
        }
        Ok(Self { program: program.to_owned(), pattern, may_dash })
    }

    /// Fills `values` into the pattern. Returns the argument vector, with the program first.
    ///
    /// # Errors
    /// A value is missing, unknown, or would become an option.
    pub(crate) fn render(&self, values: &BTreeMap<String, String>) -> Result<Vec<String>, RenderError> {
        self.pattern.render(values, |name| self.may_dash(name))
    }

    /// Returns values that produce this argument vector, if there are any.
    pub(crate) fn matches(&self, argv: &[String]) -> Option<Values> {
        self.pattern.matches(argv, |name| self.may_dash(name))
    }

    fn may_dash(&self, name: &str) -> bool {
        self.may_dash.iter().any(|other| other == name)
    }
}

/// The text as the manifest has it.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(f)
    }
}

/// Reads a pattern, or a table with one: `{ argv = "…", allow_dash = ["name"] }`.
impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTable)
    }
}

#[derive(Deserialize)]
struct Table {
    argv: String,
    #[serde(default)]
    allow_dash: Vec<String>,
}

struct TextOrTable;

impl<'de> Visitor<'de> for TextOrTable {
    type Value = Operation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern such as \"gh issue list [--state {state}]\", or a table with `argv`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Operation, E> {
        Operation::parse(text, Vec::new()).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Operation, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(access))?;
        Operation::parse(&table.argv, table.allow_dash).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(text: &str, may_dash: &[&str]) -> Result<Operation, String> {
        Operation::parse(text, may_dash.iter().map(|&name| name.to_owned()).collect())
    }

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn options_smuggled_in_as_values_are_refused() {
        let strict = operation("gh issue view {number}", &[]).expect("an operation");
        let dash = values(&[("number", "--web")]);
        assert_eq!(strict.render(&dash), Err(RenderError::Dash("number".to_owned())));
        let argv = ["gh", "issue", "view", "--web"].map(str::to_owned);
        assert_eq!(strict.matches(&argv), None);
        let lax = operation("gh issue view {number}", &["number"]).expect("an operation");
        assert_eq!(lax.render(&dash), Ok(argv.to_vec()));
        assert_eq!(lax.matches(&argv), Some(dash));
        assert_eq!(lax.matches(&argv[1..]), None, "the program is part of it");
    }

    #[test]
    fn what_is_no_operation_is_told() {
        for (text, may_dash, said) in [
            ("", &[][..], "``: an operation begins"),
            ("{program} x", &[], "`{program}`: an operation begins"),
            ("[gh]", &[], "`[gh]`: an operation begins"),
            ("gh {a", &[], "`{a`: a brace"),
            ("gh {a}", &["b"], "allow_dash names `b`"),
        ] {
            let error = operation(text, may_dash).expect_err(text);
            assert!(error.starts_with(said), "{error}");
        }
        assert_eq!(operation(" gh  issue\tlist ", &[]).expect("fine").to_string(), "gh issue list");
    }
}
