//! The zygote of a session and its workers.

pub(crate) mod common_init;
pub(crate) mod worker;
