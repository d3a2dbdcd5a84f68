//! Sandboxes that are prepared before anybody asks for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sandboxes::prepared::Prepared;
use crate::wire::sandbox::Making;

/// How many a template wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) making: Making,
    pub(crate) count: usize,
}

/// Those of all templates, by their names.
#[derive(Debug, Default)]
pub(crate) struct Ready(BTreeMap<String, OfTemplate>);

#[derive(Debug)]
struct OfTemplate {
    wanted: Wanted,
    /// The template as text: only what is asked for with the very same can be taken.
    text: String,
    prepared: Vec<Prepared>,
    /// How many are just being prepared.
    beginning: usize,
}

impl Ready {
    /// What is wanted from now on. Returns what is not wanted any more.
    pub(crate) fn want(&mut self, all: Vec<Wanted>) -> Vec<Prepared> {
        let mut before = std::mem::take(&mut self.0);
        let mut unwanted = Vec::new();
        for wanted in all {
            let (name, text) = (wanted.making.template.clone(), text(&wanted.making));
            let (prepared, beginning) = match before.remove(&name) {
                Some(same) if same.text == text => (same.prepared, same.beginning),
                Some(other) => {
                    unwanted.extend(other.prepared);
                    (Vec::new(), 0)
                }
                None => (Vec::new(), 0),
            };
            self.0.insert(name, OfTemplate { wanted, text, prepared, beginning });
        }
        unwanted.extend(before.into_values().flat_map(|other| other.prepared));
        unwanted
    }

    /// One that is as asked for.
    pub(crate) fn take(&mut self, making: &Making) -> Option<Prepared> {
        let found = self.0.get_mut(&making.template)?;
        if found.text != text(making) {
            return None;
        }
        std::iter::from_fn(|| found.prepared.pop()).find(Prepared::is_alive)
    }

    /// The next that is to be prepared; tell [`add`](Self::add) what came of it.
    pub(crate) fn missing(&mut self) -> Option<Making> {
        let lacks = |found: &&mut OfTemplate| found.prepared.len() + found.beginning < found.wanted.count;
        let found = self.0.values_mut().find(lacks)?;
        found.beginning += 1;
        Some(found.wanted.making.clone())
    }

    /// Adds one that was missing, or notes that it could not be prepared. Returns it if nobody wants it any
    /// more.
    pub(crate) fn add(&mut self, making: &Making, prepared: Option<Prepared>) -> Option<Prepared> {
        let Some(found) = self.0.get_mut(&making.template).filter(|found| found.text == text(making)) else {
            return prepared;
        };
        found.beginning = found.beginning.saturating_sub(1);
        found.prepared.extend(prepared);
        None
    }
}

fn text(making: &Making) -> String {
    serde_json::to_string(making).unwrap_or_default()
}
