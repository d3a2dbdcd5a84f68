//! A command's process, whatever confines it: its standard streams, why Kennel ends it, how its end counts,
//! and commands that are a process group.

pub(crate) mod cause;
pub(crate) mod ending;
pub(crate) mod group;
pub(crate) mod output;
pub(crate) mod program;
pub(crate) mod stdio;
