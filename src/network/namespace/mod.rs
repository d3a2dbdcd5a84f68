//! Sockets in the network namespace of a sandbox, made from outside. Only Linux has these.

pub(crate) mod publish;
pub(crate) mod socket;
