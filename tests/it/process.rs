//! Signals, exit statuses, terminals, timeouts; nothing outlives the command.

mod end;
mod signals;
mod status;
mod stdio;
mod terminal;
