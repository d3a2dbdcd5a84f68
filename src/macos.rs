//! Capabilities on macOS: text for Seatbelt, and the command that runs under it.
//!
//! The text is made and tested everywhere. Nothing of it has been run: Kennel is built for Linux only (its helper refuses
//! every other system at build), and this room waits for a port. Seatbelt itself, and `sandbox-exec`, are deprecated by
//! Apple and undocumented, but have worked the same for years.

#[cfg(any(target_os = "macos", test))]
mod exec;
mod sbpl;

pub use self::sbpl::{SbplError, sbpl};
