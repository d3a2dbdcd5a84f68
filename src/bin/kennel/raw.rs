//! The state of the user's own terminal while a command runs on another: raw, put back whenever we stop or end.

use std::{io, os::fd::AsFd};

use kennel::Terminal;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// The user's terminal in raw mode; put back when this is dropped.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> io::Result<Self> {
        let entered = Self { before: tcgetattr(io::stdin())? };
        entered.set()?;
        Ok(entered)
    }

    fn set(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        Ok(tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?)
    }

    /// Raw once more, and the command's terminal as large as it: whoever had it while we were stopped, a shell, has modes of
    /// his own, and was told of its size alone.
    ///
    /// # Errors
    /// Those of [`fit`].
    pub(crate) fn again(&self, terminal: impl AsFd) -> io::Result<()> {
        // It may be gone.
        let _ = self.set();
        fit(terminal)
    }

    /// Puts it back, for as long as we are stopped or for good.
    pub(crate) fn leave(&self) {
        // The terminal may be gone; then there is nothing to put back. It may not be read: then TCSADRAIN would not return.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Makes the command's terminal as large as ours, which may be gone.
///
/// # Errors
/// Those of [`Terminal::set_size`].
pub(crate) fn fit(terminal: impl AsFd) -> io::Result<()> {
    let size = Terminal::size(io::stdin());
    size.map_or(Ok(()), |(rows, columns)| Terminal::set_size(terminal, rows, columns))
}
