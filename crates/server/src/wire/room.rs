//! What a worker says about itself at `GET /room`: to routers, and to whoever looks at a fleet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The path.
pub(crate) const ROOM: &str = "/room";

/// The answer. A worker of another version may leave out what it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Room {
    /// With which the ids of its sandboxes begin.
    pub(crate) name: String,
    /// 16 hexadecimal digits, which stay the same as long as its state directory does.
    pub(crate) instance: String,
    /// The version of Kennel.
    pub(crate) version: String,
    pub(crate) templates: Vec<String>,
    /// Of `/run_code`.
    pub(crate) languages: Vec<String>,
    /// Sandboxes that it could still make.
    pub(crate) room: usize,
    /// Sandboxes that run.
    pub(crate) running: usize,
    /// Creations that wait.
    pub(crate) waiting: usize,
    /// Whether it makes no sandboxes any more.
    pub(crate) draining: bool,
    /// Sandboxes that run, by the first 16 hexadecimal digits of the SHA-256 of the key that made them.
    pub(crate) tokens: BTreeMap<String, usize>,
}
