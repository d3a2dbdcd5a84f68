//! The environment of a command, each name once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::ops::Deref;

/// From so many on, where a name is is remembered and not looked for.
const MANY: usize = 64;

/// Variables in the order in which their names came.
#[derive(Debug)]
pub(crate) struct Variables {
    list: Vec<(OsString, OsString)>,
    /// Of every name, or of none: where it is in the list.
    places: HashMap<OsString, usize>,
}

impl Variables {
    /// Each name must occur once.
    pub(crate) fn of(list: Vec<(OsString, OsString)>) -> Self {
        Self { list, places: HashMap::new() }
    }

    pub(crate) fn set(&mut self, name: &OsStr, value: &OsStr) {
        let place = self.place(name);
        if let Some((_, old)) = place.and_then(|place| self.list.get_mut(place)) {
            value.clone_into(old);
            return;
        }
        if !self.places.is_empty() {
            self.places.insert(name.to_owned(), self.list.len());
        }
        self.list.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn remove(&mut self, name: &OsStr) {
        if let Some(place) = self.place(name) {
            self.list.remove(place);
            self.places.clear();
        }
    }

    fn place(&mut self, name: &OsStr) -> Option<usize> {
        if self.list.len() < MANY {
            return self.list.iter().position(|(other, _)| other == name);
        }
        if self.places.is_empty() {
            let places = self.list.iter().enumerate().map(|(place, (name, _))| (name.clone(), place));
            self.places = places.collect();
        }
        self.places.get(name).copied()
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
            let mut variables = Variables::of(vec![("first".into(), "old".into())]);
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
            let rest = (0..count).filter(|number| *number != 1);
            let expected: Vec<(OsString, OsString)> =
                rest.map(|number| (format!("name-{number}").into(), "2".into())).collect();
            assert_eq!(variables[1..], expected);
        }
    }

    /// Looked for one by one these were a thousand million comparisons.
    #[test]
    fn many_take_no_longer_each_than_few() {
        let begun = Instant::now();
        let mut variables = Variables::of(Vec::new());
        for number in 0..100_000 {
            variables.set(format!("name-{number}").as_ref(), "value".as_ref());
        }
        assert_eq!(variables.len(), 100_000);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
