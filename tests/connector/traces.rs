//! All that this program sends to `tracing`, as text.

use std::fmt::Debug;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static ALL: Mutex<String> = Mutex::new(String::new());

/// Begins to keep events and spans of all levels.
pub(crate) fn keep() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| tracing::subscriber::set_global_default(Keeper).unwrap());
}

/// What was kept so far, of all tests.
pub(crate) fn all() -> String {
    ALL.lock().unwrap().clone()
}

struct Keeper;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Keeper {
    fn keep(write: impl FnOnce(&mut Text)) {
        let mut text = Text(String::new());
        write(&mut text);
        let mut all = ALL.lock().unwrap();
        all.push_str(&text.0);
        all.push('\n');
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        Self::keep(|text| attributes.record(text));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        Self::keep(|text| values.record(text));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        Self::keep(|text| event.record(text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
