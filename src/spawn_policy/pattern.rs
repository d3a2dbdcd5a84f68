//! Patterns of argument lists, such as `gh issue create --title {title} [--body {body}]`. Pure: text in, arguments out, and
//! back. There is no shell and no globbing: what is no placeholder stands for itself.
//!
//! ```text
//! pattern  = item*                 separated by whitespace
//! item     = token | "[" token* "]"    a group is left out when all its placeholders are missing
//! token    = (literal | "{" name "}")+   a literal has no braces and no brackets at its ends
//! ```

mod token;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use thiserror::Error;

use self::token::Token;

/// A longer pattern is a mistake; matching goes as deep as there are items.
const MOST_ITEMS: usize = 256;

/// Values by the names of their placeholders.
pub(crate) type Values = BTreeMap<String, String>;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PatternError {
    #[error("the pattern has more than {MOST_ITEMS} tokens and groups")]
    Long,
    #[error("`{0}`: a brace that is no part of a placeholder such as {{title}}")]
    Brace(String),
    #[error("`{0}`: a bracket opens a group before its first token and closes it after its last")]
    Bracket(String),
    #[error("`{0}`: the group is not closed")]
    Open(String),
    #[error("`{0}`: a group has at least one placeholder, by which it is known whether it is wanted")]
    NoPlaceholder(String),
    #[error("`{{{0}}}` is there twice")]
    Twice(String),
    #[error("`{0}`: between two placeholders there must be something to tell them apart")]
    Adjacent(String),
}

/// Why values do not make arguments.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RenderError {
    #[error("`{0}` is missing")]
    Missing(String),
    #[error("there is no `{0}`")]
    Unknown(String),
    #[error("`{0}` is missing, which belongs to what was given")]
    Half(String),
    #[error("`{0}` begins with `-`, which would make it an option; the operation can say allow_dash")]
    Dash(String),
    #[error("`{0}` contains a NUL byte")]
    Nul(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    tokens: Vec<Token>,
    is_optional: bool,
}

/// An argument list with holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    items: Vec<Item>,
    text: String,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pattern {
    /// # Errors
    /// The word that is wrong, and why.
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

    /// The arguments that `values` make. `may_dash` says which may begin with `-` where the argument begins with them.
    ///
    /// # Errors
    /// A value that is missing, too much, or would become an option.
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
            let missing = item.names().find(|name| !values.contains_key(*name));
            match missing {
                Some(_) if item.is_optional && item.names().all(|name| !values.contains_key(name)) => {
                    continue;
                }
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

    /// Values that would make these arguments, if there are any. `may_dash` as for [`render`](Self::render).
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

/// Looks for a way to put the arguments into the pattern. A group that fits may still be the wrong one to take, so it
/// comes back and tries without; what led nowhere once is not tried again, so that this takes no more steps than there
/// are items times arguments.
struct Search<'s, D> {
    pattern: &'s Pattern,
    arguments: &'s [String],
    may_dash: D,
    hopeless: BTreeSet<(usize, usize)>,
    taken: Vec<(&'s Token, &'s str)>,
}

impl<'s, D: Fn(&str) -> bool> Search<'s, D> {
    /// Whether the items from `item` on match the arguments from `at` on. As deep as there are items.
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

#[cfg(test)]
mod tests;
