//! A signal as a type.

use std::fmt;
use std::str::FromStr;

/// A signal of Linux, by its number: signal(7).
///
/// ```
/// use kennel::Signal;
///
/// assert_eq!("TERM".parse(), Ok(Signal::TERM));
/// assert_eq!(Signal::new(9), Some(Signal::KILL));
/// assert_eq!(Signal::new(65), None);
/// assert_eq!(Signal::STOP.to_string(), "SIGSTOP");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(i32);

/// The last signal of Linux: SIGRTMAX.
const LAST: i32 = 64;

impl Signal {
    /// The terminal has hung up.
    pub const HUP: Self = Self(libc::SIGHUP);
    /// ^C.
    pub const INT: Self = Self(libc::SIGINT);
    /// ^\\.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// Ends a process, whatever it does.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// Free for programs.
    pub const USR1: Self = Self(libc::SIGUSR1);
    /// Free for programs.
    pub const USR2: Self = Self(libc::SIGUSR2);
    /// Asks a process to end.
    pub const TERM: Self = Self(libc::SIGTERM);
    /// Continues a process.
    pub const CONT: Self = Self(libc::SIGCONT);
    /// Stops a process, whatever it does.
    pub const STOP: Self = Self(libc::SIGSTOP);
    /// ^Z.
    pub const TSTP: Self = Self(libc::SIGTSTP);
    /// A read from the terminal in the background.
    pub const TTIN: Self = Self(libc::SIGTTIN);
    /// A write to the terminal in the background.
    pub const TTOU: Self = Self(libc::SIGTTOU);
    /// The terminal has another size.
    pub const WINCH: Self = Self(libc::SIGWINCH);

    /// The signal of this number, 1 to 64.
    #[must_use]
    pub const fn new(number: i32) -> Option<Self> {
        if number >= 1 && number <= LAST { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// The signal of a number on the wire.
    pub(crate) fn received(number: u32) -> Option<Self> {
        i32::try_from(number).ok().and_then(Self::new)
    }

    /// Its number on the wire.
    pub(crate) const fn unsigned(self) -> u32 {
        self.0.unsigned_abs()
    }
}

/// Its name, or its number if it has none.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::sys::signal::Signal::try_from(self.0) {
            Ok(named) => f.pad(named.as_str()),
            Err(_) => fmt::Display::fmt(&self.0, f),
        }
    }
}

/// The text is no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a signal, such as TERM, KILL or 15")]
#[non_exhaustive]
pub struct UnknownSignal;

/// Reads a number, or a name with or without `SIG`.
impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(text: &str) -> Result<Self, UnknownSignal> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let number = text.parse().ok().and_then(Self::new);
        let named =
            || nix::sys::signal::Signal::from_str(&format!("SIG{name}")).ok().map(|named| Self(named as i32));
        number.or_else(named).ok_or(UnknownSignal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_as_it_is_written() {
        for number in 1..=LAST {
            let signal = Signal::new(number).expect("a signal");
            assert_eq!(signal.to_string().parse(), Ok(signal));
            assert_eq!(number.to_string().parse(), Ok(signal));
        }
        for text in ["term", "SIGTERM", "sigterm", "15"] {
            assert_eq!(text.parse(), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "0", "65", "-1", "SIG", "SIGNAL", "TERM ", "9999999999"] {
            assert_eq!(text.parse::<Signal>(), Err(UnknownSignal), "{text}");
        }
    }
}
