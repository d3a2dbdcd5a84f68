//! The user's terminal: what a command shows and reads there, and how messages look. It knows no command
//! line, no policy and no session.

#[cfg(target_os = "linux")]
pub(crate) mod job;
pub(crate) mod progress;
#[cfg(target_os = "linux")]
pub(crate) mod relay;
#[cfg(target_os = "linux")]
pub(crate) mod screen;
pub(crate) mod style;
pub(crate) mod table;
#[cfg(target_os = "linux")]
pub(crate) mod typist;
#[cfg(target_os = "linux")]
pub(crate) mod user_terminal;
