//! The environment of a command. Each name occurs once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::ops::Deref;

/// From this many variables on, an index finds the names. Below it, a search is faster.
const MANY: usize = 64;

/// Variables in the order in which their names were added.
#[derive(Debug)]
pub(crate) struct Variables {
    list: Vec<(OsString, OsString)>,
    /// The position of every name in the list; empty until it is needed.
    index: HashMap<OsString, usize>,
}

impl Variables {
    /// No name may occur twice.
    pub(crate) fn new(list: Vec<(OsString, OsString)>) -> Self {
        Self { list, index: HashMap::new() }
    }

    pub(crate) fn set(&mut self, name: &OsStr, value: &OsStr) {
        let position = self.position(name);
        if let Some((_, old)) = position.and_then(|position| self.list.get_mut(position)) {
            value.clone_into(old);
            return;
        }
        if !self.index.is_empty() {
            self.index.insert(name.to_owned(), self.list.len());
        }
        self.list.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &OsStr) {
        if let Some(position) = self.position(name) {
            self.list.remove(position);
            self.index.clear();
        }
    }

    fn position(&mut self, name: &OsStr) -> Option<usize> {
        if self.list.len() < MANY {
            return self.list.iter().position(|(other, _)| other == name);
        }
        if self.index.is_empty() {
            let positions =
                self.list.iter().enumerate().map(|(position, (name, _))| (name.clone(), position));
            self.index = positions.collect();
        }
        self.index.get(name).copied()
    }
}

impl Deref for Variables {
    type Target = [(OsString, OsString)];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn each_name_is_there_once_with_its_last_value() {
        for count in [3, 2 * MANY] {
            let mut variables = Variables::new(vec![("first".into(), "old".into())]);
            for round in 0..3 {
                for number in 0..count {
                    let name = format!("name-{number}");
                    variables.set(name.as_ref(), format!("{round}").as_ref());
                }
                variables.set("first".as_ref(), "new".as_ref());
                variables.remove("name-1".as_ref());
                variables.remove("absent".as_ref());
            }
            assert_eq!(variables.len(), count);
            assert_eq!(variables[0], ("first".into(), "new".into()));
            let others = (0..count).filter(|number| *number != 1);
            let expected: Vec<(OsString, OsString)> =
                others.map(|number| (format!("name-{number}").into(), "2".into())).collect();
            assert_eq!(variables[1..], expected);
        }
    }

    /// Without the index this takes five thousand million comparisons.
    #[test]
    fn setting_many_variables_takes_linear_time() {
        let begun = Instant::now();
        let mut variables = Variables::new(Vec::new());
        for number in 0..100_000 {
            variables.set(format!("name-{number}").as_ref(), "value".as_ref());
        }
        assert_eq!(variables.len(), 100_000);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
