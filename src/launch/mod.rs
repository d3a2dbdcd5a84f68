//! A plan becomes processes.

pub(crate) mod bridge;
pub(crate) mod cgroup;
pub(crate) mod control;
pub(crate) mod image;
pub(crate) mod inside;
pub(crate) mod prepared;
pub(crate) mod request;
pub(crate) mod restrict;
pub(crate) mod shared;
pub(crate) mod start;
pub(crate) mod supervisor;
