//! A pseudoterminal from the sandbox's own devpts: the outside gets the master, and the peer becomes stdio.

use crate::{
    kernel::TIOCSCTTY,
    sys::{self, Errno, Fd},
};

/// Opens a pair with the given window size (rows in the high, columns in the low 16 bits; zero leaves it
/// unset).
pub(crate) fn open(window: u32) -> Result<(Fd, Fd), Errno> {
    let master = sys::open_terminal(c"/dev/pts/ptmx")?;
    sys::unlock_terminal(&master)?;
    let peer = sys::open_peer(&master)?;
    if window != 0 {
        sys::set_window(&peer, (window >> 16) as u16, window as u16)?;
    }
    Ok((master, peer))
}

/// Makes `peer` the controlling terminal and stdio. The caller must lead a session without a terminal.
pub(crate) fn take(peer: &Fd) -> Result<(), Errno> {
    sys::ioctl(peer, TIOCSCTTY, 0)?;
    (0..=2).try_for_each(|number| sys::duplicate_to(peer, number))
}
