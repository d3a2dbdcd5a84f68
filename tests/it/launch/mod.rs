//! Processes and cgroups of a run: how they are made, what happens when something runs out, and that nothing
//! is left.

pub mod cgroups;
mod exhaustion;
mod leftovers;
mod supervisor;
