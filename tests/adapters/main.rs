//! Adapters, each driven through the crate whose trait it implements.
//!
//! | module | promise |
//! | --- | --- |
//! | `as_user` | all tests run again as an ordinary user, if root runs them |
//! | `entelix` | tools run commands and code and use files in a session |
//! | `fluers` | an agent harness runs its commands in sessions of Kennel |
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise and says so"
)]
#![expect(unreachable_pub, reason = "a test binary has no public interface")]

mod as_user;
mod entelix;
mod fluers;
#[path = "../it/network/origin.rs"]
#[expect(dead_code, reason = "shared with `it`, which uses all of it")]
mod origin;
#[path = "../it/support/mod.rs"]
#[expect(dead_code, unused_macros, unused_imports, reason = "shared with `it`, which uses all of it")]
mod support;
