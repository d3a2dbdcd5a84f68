//! Patterns of argument lists, such as `gh issue create --title {title} [--body {body}]`. Pure: fills a
//! pattern with values, and finds the values of a given argument list. There is no shell and no globbing: all
//! text outside of placeholders is literal.
//!
//! ```text
//! pattern  = item*                 separated by whitespace
//! item     = token | "[" token* "]"    a group is left out when all its placeholders are missing or empty
//! token    = (literal | "{" name "}")+   a literal has no braces and no brackets at its ends
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

/// Most items in a pattern. Matching recurses once for each item.
const MOST_ITEMS: usize = 256;

/// Values by the names of placeholders.
pub(crate) type Values = BTreeMap<String, String>;

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PatternError {
    #[error("the pattern has more than {MOST_ITEMS} tokens and groups")]
    Long,
    #[error("`{0}`: a brace that is not part of a placeholder such as {{title}}")]
    Brace(String),
    #[error("`{0}`: a bracket opens a group before its first token and closes it after its last")]
    Bracket(String),
    #[error("`{0}`: the group is not closed")]
    Open(String),
    #[error("`{0}`: a group needs at least one placeholder, whose value decides whether the group is used")]
    NoPlaceholder(String),
    #[error("`{{{0}}}` is used twice")]
    Twice(String),
    #[error("`{0}`: two placeholders need literal text between them")]
    Adjacent(String),
}

/// Why values cannot be filled into a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RenderError {
    #[error("`{0}` is missing")]
    Missing(String),
    #[error("there is no placeholder `{0}`")]
    Unknown(String),
    #[error("`{0}` is missing, but another value of its group is given")]
    Half(String),
    #[error("`{0}` begins with `-`, which would make it an option; to permit this, name it in allow_dash")]
    Dash(String),
    #[error("`{0}` contains a NUL byte")]
    Nul(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    tokens: Vec<Token>,
    is_optional: bool,
}

/// An argument list with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArgumentPattern {
    items: Vec<Item>,
    text: String,
}

impl fmt::Display for ArgumentPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ArgumentPattern {
    /// # Errors
    /// The invalid word, and the reason.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let mut items: Vec<Item> = Vec::new();
        let mut open: Option<Vec<Token>> = None;
        for word in text.split_whitespace() {
            let (opens, rest) = word.strip_prefix('[').map_or((false, word), |rest| (true, rest));
            let (closes, inner) = rest.strip_suffix(']').map_or((false, rest), |inner| (true, inner));
            if opens && open.is_some() || closes && !opens && open.is_none() {
                return Err(PatternError::Bracket(word.to_owned()));
            }
            if opens {
                open = Some(Vec::new());
            }
            let token = if inner.is_empty() { None } else { Some(Token::parse(inner, word)?) };
            match (&mut open, token) {
                (Some(group), token) => group.extend(token),
                (None, token) => {
                    items.extend(token.map(|token| Item { tokens: vec![token], is_optional: false }))
                }
            }
            if let Some(tokens) = open.take_if(|_| closes) {
                items.push(Item { tokens, is_optional: true });
            }
        }
        if open.is_some() {
            return Err(PatternError::Open(text.to_owned()));
        }
        let pattern = Self { items, text: text.split_whitespace().collect::<Vec<_>>().join(" ") };
        pattern.checked()
    }

    fn checked(self) -> Result<Self, PatternError> {
        if self.items.len() > MOST_ITEMS {
            return Err(PatternError::Long);
        }
        if self.items.iter().any(|item| item.is_optional && item.names().next().is_none()) {
            return Err(PatternError::NoPlaceholder(self.text));
        }
        let mut seen = BTreeSet::new();
        let twice = self.names().find(|name| !seen.insert(*name)).map(str::to_owned);
        twice.map_or(Ok(self), |name| Err(PatternError::Twice(name)))
    }

    /// The names of all placeholders.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.items.iter().flat_map(Item::names)
    }

    /// Fills in `values`. In a group, an empty value is the same as a missing one. An argument that begins
    /// with a placeholder may begin with `-` only if `may_dash` permits it for that placeholder.
    ///
    /// # Errors
    /// A value is missing, unknown, or would become an option.
    pub(crate) fn render(
        &self,
        values: &Values,
        may_dash: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, RenderError> {
        if let Some(unknown) = values.keys().find(|name| self.names().all(|known| known != *name)) {
            return Err(RenderError::Unknown(unknown.clone()));
        }
        if let Some((name, _)) = values.iter().find(|(_, value)| value.contains('\0')) {
            return Err(RenderError::Nul(name.clone()));
        }
        let mut arguments = Vec::new();
        for item in &self.items {
            let has =
                |name: &str| values.get(name).is_some_and(|value| !(item.is_optional && value.is_empty()));
            let missing = item.names().find(|name| !has(name));
            match missing {
                Some(_) if item.is_optional && !item.names().any(has) => continue,
                Some(name) if item.is_optional => return Err(RenderError::Half(name.to_owned())),
                Some(name) => return Err(RenderError::Missing(name.to_owned())),
                None => {}
            }
            for token in &item.tokens {
                let argument = token.render(values);
                match token.leading() {
                    Some(name) if argument.starts_with('-') && !may_dash(name) => {
                        return Err(RenderError::Dash(name.to_owned()));
                    }
                    _ => arguments.push(argument),
                }
            }
        }
        Ok(arguments)
    }

    /// Returns values that produce these arguments, if there are any. `may_dash` as for
    /// [`render`](Self::render).
    pub(crate) fn matches(&self, arguments: &[String], may_dash: impl Fn(&str) -> bool) -> Option<Values> {
        let mut search =
            Search { pattern: self, arguments, may_dash, hopeless: BTreeSet::new(), taken: Vec::new() };
        search.from(0, 0).then(|| {
            let (taken, mut values) = (search.taken, Values::new());
            for (token, argument) in taken {
                token.values(argument, &mut values);
            }
            values
        })
    }
}

/// Searches for values with backtracking: a group that fits may still be the wrong one to use, so the search
/// also tries without it. It remembers positions that failed and does not try them again. So it takes at most
/// items × arguments steps.
struct Search<'s, D> {
    pattern: &'s ArgumentPattern,
    arguments: &'s [String],
    may_dash: D,
    hopeless: BTreeSet<(usize, usize)>,
    taken: Vec<(&'s Token, &'s str)>,
}

impl<'s, D: Fn(&str) -> bool> Search<'s, D> {
    /// Whether the items from `item` on match the arguments from `at` on. Recurses once for each item.
    fn from(&mut self, item: usize, at: usize) -> bool {
        let pattern = self.pattern;
        let Some(next) = pattern.items.get(item) else { return at == self.arguments.len() };
        if self.hopeless.contains(&(item, at)) {
            return false;
        }
        let before = self.taken.len();
        if self.take(next, at) && self.from(item + 1, at + next.tokens.len()) {
            return true;
        }
        self.taken.truncate(before);
        if next.is_optional && self.from(item + 1, at) {
            return true;
        }
        self.hopeless.insert((item, at));
        false
    }

    fn take(&mut self, item: &'s Item, at: usize) -> bool {
        let Some(arguments) = self.arguments.get(at..at + item.tokens.len()) else { return false };
        let may_dash = &self.may_dash;
        let fits = |(token, argument): (&Token, &String)| {
            let dashes = argument.starts_with('-') && token.leading().is_some_and(|name| !may_dash(name));
            !dashes && token.fits(argument)
        };
        if !item.tokens.iter().zip(arguments).all(fits) {
            return false;
        }
        self.taken.extend(item.tokens.iter().zip(arguments.iter().map(String::as_str)));
        true
    }
}

impl Item {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().flat_map(Token::names)
    }
}

// One argument with placeholders.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentPart {
    Literal(String),
    Placeholder(String),
}

/// One argument of the pattern. Two placeholders are never adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) Vec<ArgumentPart>);

impl Token {
    pub(crate) fn parse(text: &str, word: &str) -> Result<Self, PatternError> {
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
                parts.push(ArgumentPart::Literal(literal.to_owned()));
            }
            let Some(after) = rest.get(literal.len() + 1..) else { break };
            let (name, after) = after.split_once('}').ok_or_else(brace)?;
            if !is_name(name) {
                return Err(brace());
            }
            if matches!(parts.last(), Some(ArgumentPart::Placeholder(_))) {
                return Err(PatternError::Adjacent(word.to_owned()));
            }
            parts.push(ArgumentPart::Placeholder(name.to_owned()));
            rest = after;
        }
        Ok(Self(parts))
    }

    /// The names of its placeholders.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            ArgumentPart::Placeholder(name) => Some(name.as_str()),
            ArgumentPart::Literal(_) => None,
        })
    }

    /// The placeholder at the beginning, if any: its value decides whether the argument is an option.
    pub(crate) fn leading(&self) -> Option<&str> {
        match self.0.first() {
            Some(ArgumentPart::Placeholder(name)) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn render(&self, values: &Values) -> String {
        let text = |part: &ArgumentPart| match part {
            ArgumentPart::Literal(literal) => literal.clone(),
            ArgumentPart::Placeholder(name) => values.get(name).cloned().unwrap_or_default(),
        };
        self.0.iter().map(text).collect()
    }

    pub(crate) fn fits(&self, argument: &str) -> bool {
        self.split(argument, |_, _| {})
    }

    pub(crate) fn values(&self, argument: &str, values: &mut Values) {
        self.split(argument, |name, value| {
            values.insert(name.to_owned(), value.to_owned());
        });
    }

    /// Divides `argument` among the parts. Matches the last literal at the very end, and the others as early
    /// as possible. Because a placeholder matches any text, this finds a division whenever one exists.
    fn split(&self, argument: &str, mut found: impl FnMut(&str, &str)) -> bool {
        let (mut rest, mut waiting) = (argument, None);
        for (at, part) in self.0.iter().enumerate() {
            let is_last = at + 1 == self.0.len();
            match (part, waiting.take()) {
                (ArgumentPart::Placeholder(name), _) => waiting = Some(name),
                (ArgumentPart::Literal(literal), None) => match rest.strip_prefix(literal.as_str()) {
                    Some(after) => rest = after,
                    None => return false,
                },
                (ArgumentPart::Literal(literal), Some(name)) => {
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

/// Letters, digits and `_`; the first character is not a digit.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}
