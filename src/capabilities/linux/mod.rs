//! What enforces capabilities on Linux: sessions, and a client that runs commands in them.

pub(crate) mod granted;
pub(crate) mod kept;
pub(crate) mod missing;
pub(crate) mod plain;
pub(crate) mod policy;
pub(crate) mod wrapper;
