//! `kennel image`: what becomes of archives and directories, and of the store of images.

mod commands;
mod disk;
mod fixtures;
mod forms;
mod full;
mod hostile;
mod pull;
mod puller;
mod registry;
mod run;
mod shared;
mod snapshot;

pub(crate) use fixtures::can_hold_layers;
