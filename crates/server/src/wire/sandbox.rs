//! A sandbox, as front and hosts speak about it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel::Policy;
use serde::{Deserialize, Serialize};

use crate::wire::failure::Reason;
use crate::wire::id::SandboxId;
use crate::wire::page::Place;

/// The last second of the year 9999, after which a time has no text.
pub(crate) const LAST: Duration = Duration::from_secs(253_402_300_799);

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// What a host needs to make a sandbox: a template that the request has narrowed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Making {
    /// The name of the template.
    pub(crate) template: String,
    pub(crate) policy: Policy,
    /// The files that the policy was read from; they are not part of its text.
    pub(crate) policy_files: Vec<PathBuf>,
    /// The lower layer of the sandbox's directory.
    pub(crate) files: Option<PathBuf>,
    /// Whether a client may apply its changes to `files`.
    #[serde(default)]
    pub(crate) commit: bool,
    /// Whether shells of commands are login shells.
    pub(crate) login: bool,
    /// Whether ports need no token.
    pub(crate) public_ports: bool,
    /// Pauses after that many milliseconds without use.
    pub(crate) idle_ms: Option<u64>,
}

/// A sandbox to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NewSandbox {
    /// The name of the token that asks for it.
    pub(crate) owner: String,
    pub(crate) making: Making,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Variables of its commands.
    pub(crate) variables: BTreeMap<String, String>,
    /// Milliseconds of its life.
    pub(crate) life_ms: u64,
    /// Milliseconds from now that a later deadline may be away at most.
    pub(crate) longest_ms: u64,
    /// Whether it is paused, and not ended, when its time is over.
    pub(crate) pauses: bool,
    /// Where its ports are reached: `PORT-ID.DOMAIN`.
    pub(crate) domain: Option<String>,
    /// The client's key and the hash of its body.
    pub(crate) idempotency: Option<(String, String)>,
}

/// Whether a sandbox has processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Running,
    Paused,
}

/// What everybody may know who may know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) id: SandboxId,
    pub(crate) owner: String,
    pub(crate) template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) state: State,
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    /// Milliseconds since 1970.
    pub(crate) deadline: u64,
    pub(crate) public_ports: bool,
    /// Bytes that one command may use, where the template has a limit.
    pub(crate) memory: Option<u64>,
}

impl Summary {
    /// Where it is in lists.
    pub(crate) fn place(&self) -> Place {
        Place { started: self.started, id: self.id.clone() }
    }
}

/// A host's news for the front, one JSON object a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum News {
    /// The first line: how many summaries follow of what it has, and how many commands run there by owner.
    Hello { version: u32, sandboxes: usize, commands: BTreeMap<String, i64> },
    /// A sandbox is there, or has changed.
    Sandbox(Summary),
    /// A sandbox is not there any more.
    Ended { id: SandboxId, reason: Reason },
    /// A command of this owner has begun (1) or ended (-1).
    Commands { owner: String, change: i64 },
}

/// A time as E2B's JSON has it.
pub(crate) fn time(milliseconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(milliseconds).min(LAST);
    humantime::format_rfc3339_millis(time).to_string()
}
