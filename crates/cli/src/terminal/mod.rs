//! The user's terminal: what a command shows and reads there, and how messages look. It knows no command
//! line, no policy and no session.

pub(crate) mod job;
pub(crate) mod progress;
pub(crate) mod relay;
pub(crate) mod screen;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod typist;
pub(crate) mod user_terminal;
