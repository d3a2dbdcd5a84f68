//! The audit log: a line of JSON for each session, command, decision, denial and limit. Names, paths and numbers only;
//! nothing of what passes, no value of the environment, and arguments only where the policy says so.

mod chain;
mod error;
mod file;
mod line;
mod log;
mod place;
mod record;
mod trail;
mod verify;

pub use self::{
    error::AuditError,
    place::audit_log_path,
    verify::{Verified, verify_audit},
};
pub(crate) use self::{
    log::Log,
    record::{Egress, Record, Shape, Spawn},
    trail::{Exec, Late, Trail, millis},
};
