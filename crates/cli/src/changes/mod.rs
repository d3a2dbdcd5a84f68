//! What commands changed with `--overlay`: shown, committed, dropped. It decides nothing about how commands
//! run.

pub(crate) mod diff;
mod pager;
mod renames;
pub(crate) mod review;
pub(crate) mod settle;
