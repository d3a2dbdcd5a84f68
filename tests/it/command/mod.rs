//! One command: its environment and streams, its signals, its exit status, its end, and why something was
//! refused to it.

mod end;
mod environment;
mod explain;
mod job;
mod refused;
mod signals;
mod status;
mod stdio;
mod terminal;
