//! The audit log: a line of JSON for each session, command, decision, denial and limit. Names, paths and numbers only;
//! nothing of what passes, no value of the environment, and arguments only where the policy says so.

mod chain;
mod file;
mod line;
mod log;
mod place;
mod record;
mod trail;
mod verify;

pub(crate) use self::{
    log::Log,
    record::{Egress, Record, Shape, Spawn},
    trail::{Exec, Late, Trail, millis},
};
pub use self::{
    place::audit_log_path,
    verify::{AuditError, Verified, verify_audit},
};
