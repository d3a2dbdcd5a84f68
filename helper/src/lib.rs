//! What the outside and the inside of Kennel agree on: the plan, the control messages, and the image of the
//! program that carries plans out. Besides, what a session and its clients agree on, and the image of the small client.
//!
//! The same `wire`, `plan`, `control` and `client_wire` sources are compiled twice: here, and into the freestanding
//! programs. Nothing here makes a system call.

pub mod client_wire;
pub mod control;
pub mod plan;
pub mod wire;

/// The inside as a static ELF executable of a few kilobytes, built by this package's build script.
///
/// [`kennel`](https://docs.rs/kennel) writes it to a sealed memfd and executes that.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inside"));

/// `kennel-exec`, the client of a session that listens, as a static ELF executable of a few kilobytes.
///
/// [`kennel`](https://docs.rs/kennel) installs it beside the socket of the session.
pub static EXEC_IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kennel-exec"));
