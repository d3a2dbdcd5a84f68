//! Operations: a program and the pattern of its arguments, under a name in the manifest. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, de};

use crate::broker::pattern::{ArgumentPattern, RenderError, Values};

/// A program and the pattern of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The name or path, as the manifest has it.
    pub(crate) program: String,
    pattern: ArgumentPattern,
    may_dash: Vec<String>,
}

impl Operation {
    fn parse(text: &str, may_dash: Vec<String>) -> Result<Self, String> {
        let text = text.trim();
        let (program, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if program.is_empty() || program.contains(['{', '}', '[', ']']) {
            return Err(format!(
                "`{program}`: an operation begins with its program, such as `gh issue create`"
            ));
        }
        let pattern = ArgumentPattern::parse(rest).map_err(|error| error.to_string())?;
        if let Some(name) = may_dash.iter().find(|name| pattern.names().all(|known| known != *name)) {
            return Err(format!("allow_dash names `{name}`, which is not a placeholder of the pattern"));
        }
        Ok(Self { program: program.to_owned(), pattern, may_dash })
    }

    /// Fills `values` into the pattern.
    ///
    /// # Errors
    /// A value is missing, unknown, or would become an option.
    pub(crate) fn render(&self, values: &BTreeMap<String, String>) -> Result<Vec<String>, RenderError> {
        self.pattern.render(values, |name| self.may_dash(name))
    }

    /// Returns values that produce these arguments, if there are any.
    pub(crate) fn matches(&self, arguments: &[String]) -> Option<Values> {
        self.pattern.matches(arguments, |name| self.may_dash(name))
    }

    fn may_dash(&self, name: &str) -> bool {
        self.may_dash.iter().any(|other| other == name)
    }
}

/// The text as the manifest has it.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.pattern)
    }
}

/// Reads a pattern, or a table with one: `{ argv = "…", allow_dash = ["name"] }`.
impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrTable)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
        assert_eq!(strict.matches(&["issue".into(), "view".into(), "--web".into()]), None);
        let lax = operation("gh issue view {number}", &["number"]).expect("an operation");
        assert_eq!(lax.render(&dash), Ok(vec!["issue".into(), "view".into(), "--web".into()]));
        assert_eq!(lax.matches(&["issue".into(), "view".into(), "--web".into()]), Some(dash));
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
