//! The client of `kennel serve` with the real server: each promise both ways, and with servers that lie.
//!
//! | module | what |
//! | --- | --- |
//! | `commands` | what a command gets, how it ends, what it writes and reads |
//! | `cancel` | dropped futures and handles leave no command and no sandbox |
//! | `files` | contents, names, and what is refused |
//! | `fleet` | jobs through NATS, which workers of the real server take |
//! | `hostile` | servers that say what no server should |
//! | `life` | creation, attaching, ends, and what is left of lost sessions |
//! | `own_routes` | reports, changes and single runs, in the words of the server's own routes |
//! | `restart` | the server dies and comes back |
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod cancel;
mod commands;
mod files;
#[cfg(feature = "nats")]
mod fleet;
mod hostile;
mod life;
mod own_routes;
mod restart;
mod server;
