//! What the other packages of this repository need beyond the public interface, so that nothing is there
//! twice. It is no part of that interface and changes in any version.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

pub use crate::caller::{account, writers};
#[cfg(target_os = "linux")]
pub use crate::internal::linux::*;
#[cfg(target_os = "macos")]
pub use crate::internal::macos::*;
pub use crate::report::escape;
pub use crate::report::failure::words;
pub use crate::sys::descriptor::inherited_descriptor;
pub use crate::sys::inode::is_one_file;

use crate::policy::network::destination::Destination;
use crate::policy::network::preset::{self, Preset};

/// Rows and columns of a terminal.
///
/// # Errors
/// Those of ioctl(TIOCGWINSZ): `ENOTTY` if `of` is not a terminal.
pub fn terminal_size(of: impl AsFd) -> io::Result<(u16, u16)> {
    crate::sys::window(of.as_fd().as_raw_fd())
}

/// The preset with a rule for a destination, such as `@cargo` for `index.crates.io:443`.
#[must_use]
pub fn preset_of(destination: &str) -> Option<String> {
    let Destination { host, port } = Destination::parse(destination).ok()?;
    preset::of_host(&host, Some(port)).map(Preset::word)
}
