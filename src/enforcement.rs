//! What was enforced, as data: one entry a protection, never only a log line.

use serde::Serialize;

use crate::policy::Protection;

/// State of one protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In force as documented.
    Enforced,
    /// In force, but weaker than documented; the detail says how.
    Degraded,
    /// Not in force.
    Off,
}

/// One protection in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Which one.
    pub name: Protection,
    /// Its state.
    pub state: State,
    /// What it consists of here, or why it is weaker or off.
    pub detail: String,
    /// Whether the policy asked for it; what it did not ask for does not lower the level.
    #[serde(skip)]
    pub asked: bool,
}

/// The report as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything that the policy asked for is in force.
    Full,
    /// Something that it asked for is degraded or off.
    Partial,
    /// Nothing is in force.
    None,
}

/// What was enforced for a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    entries: Vec<Entry>,
}

impl Enforcement {
    /// The level over all protections.
    #[must_use]
    pub fn level(&self) -> Level {
        let mut asked = self.entries.iter().filter(|entry| entry.asked).peekable();
        if asked.peek().is_none() {
            return Level::None;
        }
        if asked.all(|entry| entry.state == State::Enforced) { Level::Full } else { Level::Partial }
    }

    /// Every protection that the policy touches, in the order in which walls go up.
    #[must_use]
    pub fn protections(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of one protection.
    #[must_use]
    pub fn get(&self, name: Protection) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    pub(crate) fn set(&mut self, name: Protection, state: State, detail: impl Into<String>) {
        self.put(Entry { name, state, detail: detail.into(), asked: true });
    }

    /// What was thought in force is not in full.
    pub(crate) fn weaken(&mut self, name: Protection, reason: &str) {
        let in_force = |entry: &&mut Entry| entry.name == name && entry.state == State::Enforced;
        if let Some(entry) = self.entries.iter_mut().find(in_force) {
            (entry.state, entry.detail) = (State::Degraded, reason.to_owned());
        }
    }

    /// A protection that the policy does without.
    pub(crate) fn not_asked(&mut self, name: Protection, detail: impl Into<String>) {
        self.put(Entry { name, state: State::Off, detail: detail.into(), asked: false });
    }

    fn put(&mut self, entry: Entry) {
        match self.entries.iter_mut().find(|old| old.name == entry.name) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }
}

impl Serialize for Enforcement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut object = serializer.serialize_struct("Enforcement", 2)?;
        object.serialize_field("level", &self.level())?;
        object.serialize_field("protections", &self.entries)?;
        object.end()
    }
}
