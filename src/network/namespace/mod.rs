//! Sockets in the network namespace of a sandbox, made from outside. Only Linux has these.

pub(crate) mod publish;
pub(crate) mod socket;

/// How many sockets a sandbox hands out with which the outside makes others.
pub(crate) const SOCKETS_HANDED_OUT: usize = 2;
