//! What the outside and the inside of Kennel agree on: the plan, the control messages, and the image of the
//! program that carries plans out.
//!
//! The same `wire`, `plan` and `control` sources are compiled twice: here, with encoders, and into the
//! freestanding `inside`, which only decodes. Nothing here makes a system call.

pub mod control;
pub mod plan;
pub mod wire;

/// The inside as a static ELF executable of a few kilobytes, built by this package's build script.
///
/// [`kennel`](https://docs.rs/kennel) writes it to a sealed memfd and executes that.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inside"));
