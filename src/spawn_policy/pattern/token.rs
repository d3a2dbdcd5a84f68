//! One argument with holes: read, filled, and taken apart again.

use super::{PatternError, Values};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Literal(String),
    Placeholder(String),
}

/// What becomes one argument. Never two placeholders side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token(pub(super) Vec<Part>);

impl Token {
    pub(super) fn parse(text: &str, word: &str) -> Result<Self, PatternError> {
        let brace = || PatternError::Brace(word.to_owned());
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let literal = rest.split('{').next().unwrap_or(rest);
            if literal.contains('}') {
                return Err(brace());
            }
            if literal.starts_with('[') || literal.ends_with(']') || literal.contains("][") {
                return Err(PatternError::Bracket(word.to_owned()));
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            let Some(after) = rest.get(literal.len() + 1..) else { break };
            let (name, after) = after.split_once('}').ok_or_else(brace)?;
            if !is_name(name) {
                return Err(brace());
            }
            if matches!(parts.last(), Some(Part::Placeholder(_))) {
                return Err(PatternError::Adjacent(word.to_owned()));
            }
            parts.push(Part::Placeholder(name.to_owned()));
            rest = after;
        }
        Ok(Self(parts))
    }

    /// The names of its placeholders.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Placeholder(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// The placeholder that it begins with: its value decides whether the argument is an option.
    pub(super) fn leading(&self) -> Option<&str> {
        match self.0.first() {
            Some(Part::Placeholder(name)) => Some(name),
            _ => None,
        }
    }

    pub(super) fn render(&self, values: &Values) -> String {
        let text = |part: &Part| match part {
            Part::Literal(literal) => literal.clone(),
            Part::Placeholder(name) => values.get(name).cloned().unwrap_or_default(),
        };
        self.0.iter().map(text).collect()
    }

    pub(super) fn fits(&self, argument: &str) -> bool {
        self.split(argument, |_, _| {})
    }

    pub(super) fn values(&self, argument: &str, values: &mut Values) {
        self.split(argument, |name, value| {
            values.insert(name.to_owned(), value.to_owned());
        });
    }

    /// Divides `argument` among the parts. The last literal is looked for at the very end and the others as early as they
    /// come: since a placeholder may stand for anything, that finds a division wherever there is one.
    fn split(&self, argument: &str, mut found: impl FnMut(&str, &str)) -> bool {
        let (mut rest, mut waiting) = (argument, None);
        for (at, part) in self.0.iter().enumerate() {
            let is_last = at + 1 == self.0.len();
            match (part, waiting.take()) {
                (Part::Placeholder(name), _) => waiting = Some(name),
                (Part::Literal(literal), None) => match rest.strip_prefix(literal.as_str()) {
                    Some(after) => rest = after,
                    None => return false,
                },
                (Part::Literal(literal), Some(name)) => {
                    let place = if is_last {
                        rest.strip_suffix(literal.as_str()).map(|value| (value, ""))
                    } else {
                        rest.split_once(literal.as_str())
                    };
                    let Some((value, after)) = place else { return false };
                    found(name, value);
                    rest = after;
                }
            }
        }
        match waiting {
            Some(name) => found(name, rest),
            None => return rest.is_empty(),
        }
        true
    }
}

/// Letters, digits and `_`, no digit first.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}
