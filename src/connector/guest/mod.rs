//! A program of a connector, of either kind: what it imports, the functions that it calls, the state of one
//! call.

pub(crate) mod component;
pub(crate) mod imports;
pub(crate) mod module;
pub(crate) mod state;
