//! The formats that the outside and the inside of Kennel share, and the images of the two programs that run
//! inside or beside it.
//!
//! Cargo compiles the `wire`, `plan`, `control` and `client_wire` sources here; the build script compiles
//! them again into the freestanding programs. Nothing here makes a system call.

pub mod client_wire;
pub mod control;
pub mod plan;
pub mod wire;

/// The inside: a static ELF executable of a few kilobytes, built by this package's build script.
///
/// [`kennel`](https://docs.rs/kennel) writes it to a sealed memfd and executes that.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inside.loaded"));

/// `kennel-exec`, the client of a listening session: a static ELF executable of a few kilobytes.
///
/// [`kennel`](https://docs.rs/kennel) installs it beside the socket of the session.
pub static EXEC_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kennel-exec.loaded"));
