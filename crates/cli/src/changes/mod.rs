//! What commands changed with `--overlay`: shown, committed, dropped. It decides nothing about how commands
//! run.

#[cfg(target_os = "linux")]
pub(crate) mod diff;
pub(crate) mod hunks;
#[cfg(target_os = "linux")]
pub(crate) mod lines;
#[cfg(target_os = "linux")]
mod pager;
#[cfg(target_os = "linux")]
mod renames;
#[cfg(target_os = "linux")]
pub(crate) mod review;
#[cfg(target_os = "linux")]
pub(crate) mod settle;
