//! Permission bits as a type.

use std::fmt;

/// The permission bits of a file, with set-user-ID, set-group-ID and sticky: chmod(2).
///
/// ```
/// use kennel::files::Mode;
///
/// let mode = Mode::new(0o100_640);
/// assert_eq!((mode.bits(), mode.to_string().as_str()), (0o640, "0640"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mode(u32);

impl Mode {
    /// The permission bits of `mode`; the kind of the file, as in `st_mode`, does not count.
    #[must_use]
    pub const fn new(mode: u32) -> Self {
        Self(mode & 0o7777)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// In octal, with four digits.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
